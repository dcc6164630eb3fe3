"""A history as days of use would leave it, of any size and always the same, written straight into the tables.

It follows the contract: each subscriber's deliveries are sent in order, and once. All its subscribers are inactive, so
that a broker on the same database sends none of it.

The statements make the lives of deliveries, an hour at a time, in temporary tables. Everything follows from a
message's number `n`. Of ten messages seven are for a TOPIC type, two for a QUEUE type, one is a SYNC call. Receivers
come in pairs, one half by event type, the other by pattern: TOPIC message `m` goes to pair m modulo the pairs, and has
the number m / pairs + 1 in both their lines. Replies have numbers below nought. Of every forty messages some go to two
others as well, late, again, or in no order; and some lie in a mailbox. TOPIC deliveries have one of three ordering
keys, which count for the first receiver: it is KEYED.
"""

import datetime as dt
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from django.db import connection, transaction

from delivery.maintenance.partitions import open_days
from delivery.models import Delivery, Lane, Line, LineEvent, LineEventKind, MessageOutcome
from delivery.statuses import FINAL, UNFINISHED, DeliveryStatus
from subscriptions.models import (
    DeliveryMode,
    EventKind,
    EventType,
    Processing,
    Publisher,
    Status,
    StatusChange,
    Subscriber,
    Subscription,
)

SECRET: Final = "whsec_" + "A" * 43 + "="
TOPICS: Final = 3
SENDERS: Final = 5

HOUR: Final = dt.timedelta(hours=1)
MILLISECOND: Final = dt.timedelta(milliseconds=1)

ERRORS: Final = (
    'Could not resolve host: "quoted", it\'s',
    "Operation timed out after 10000 milliseconds with 0 bytes received",
    "Failed to connect to 127.0.0.1 port 9 after 0 ms: Could not connect to server",
    "TLS connect error: unexpected eof",
    "Empty reply from server\nand a second line,\r\nand a third",
    "\\N",
    "\\.",
    "\u0001 \\0 \u0085 \U0001f600 ü",
)
"""One of each kind, and what breaks a careless reader of CSV."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How lives of TOPIC deliveries go, and of how many in a thousand."""

    status: DeliveryStatus
    attempts: int
    failing: int
    last: int
    weight: int


KNOWN: Final = (
    Ending(DeliveryStatus.DELIVERED, 2, 500, 200, 40),
    Ending(DeliveryStatus.DELIVERED, 3, 502, 201, 30),
    Ending(DeliveryStatus.REJECTED, 1, 500, 404, 20),
    Ending(DeliveryStatus.NOT_SUPPORTED, 1, 500, 301, 10),
    Ending(DeliveryStatus.FAILED, 4, 500, 599, 10),
    Ending(DeliveryStatus.EXPIRED, 2, 500, 500, 5),
    Ending(DeliveryStatus.CANCELLED, 0, 500, 500, 5),
    Ending(DeliveryStatus.CANCELLED, 1, 500, 500, 5),
    Ending(DeliveryStatus.PENDING, 0, 500, 500, 3),
    Ending(DeliveryStatus.PENDING, 1, 500, 500, 2),
    Ending(DeliveryStatus.IN_FLIGHT, 1, 500, 500, 1),
    Ending(DeliveryStatus.HELD, 0, 500, 500, 3),
)
NAMED: Final = {ending.status for ending in KNOWN} | {DeliveryStatus.REDUNDANT}
OTHERS: Final = tuple(Ending(status, 1, 500, 500, 5) for status in DeliveryStatus if status not in NAMED)
"""Attempts with any other status."""
USUAL: Final = Ending(DeliveryStatus.DELIVERED, 1, 500, 200, 1000 - sum(ending.weight for ending in KNOWN + OTHERS))
ENDINGS: Final = (USUAL, *KNOWN, *OTHERS)

HIGHS: Final = list(accumulate(ending.weight for ending in ENDINGS))
ENDINGS_AND_WORDS: Final[dict[str, Any]] = {
    "statuses": [ending.status.value for ending in ENDINGS],
    "planned": [ending.attempts for ending in ENDINGS],
    "failing": [ending.failing for ending in ENDINGS],
    "lasts": [ending.last for ending in ENDINGS],
    "lows": [0, *HIGHS[:-1]],
    "highs": HIGHS,
    "final": [status.value for status in FINAL],
    "unfinished": [status.value for status in UNFINISHED],
    "astray": [outcome.value for outcome in MessageOutcome if outcome != MessageOutcome.ROUTED],
    "errors": list(ERRORS),
}

MAILBOX: Final = """
INSERT INTO life (n, g, kind, type_id, line_id, subscription_id, status, planned, failing, last, made, first, pause,
                  last_ms, uncertain, fetches)
SELECT n, 100000000 + 2 * n, 'MAILBOX', type_id, %(mailbox_line)s, %(mailbox_subscription)s,
       COALESCE(fate, 'DELIVERED'), COALESCE(requests, 0), 500, 500, made,
       made + pg_temp.draw(n, 50, 600) * interval '1 s', interval '0', 30, false, COALESCE(hand_outs, 1)
  FROM life
  LEFT JOIN (VALUES (0, 'EXPIRED', 0, 0), (1, 'CANCELLED', 0, 0), (2, 'FAILED', 0, 3), (3, 'PENDING', 0, 1),
                    (4, 'DELIVERED', 0, 2), (5, 'DELIVERED', 1, 1), (6, 'EXPIRED', 1, 0))
            AS f (lot, fate, requests, hand_outs) ON lot = pg_temp.draw(n, 51, 20)
 WHERE kind = 'TOPIC' AND g = 2 * n AND n %% 10 = 1
"""
"""Those with a request were sent before their subscription was switched to being fetched."""

FUNCTIONS: Final = """
CREATE OR REPLACE FUNCTION pg_temp.draw(number bigint, what int, below int) RETURNS int LANGUAGE sql IMMUTABLE
  RETURN (hashint8extended(number, 1 + what) & 2147483647) % below;
-- Above what a broker gives out itself on a day.
CREATE OR REPLACE FUNCTION pg_temp.id_of(made timestamptz, number bigint) RETURNS bigint LANGUAGE sql STABLE
  RETURN to_char(made AT TIME ZONE 'UTC', 'YYMMDD')::bigint * 10000000000 + 1000000000 + 2 * abs(number)
         + (number < 0)::int;
DROP TABLE IF EXISTS pg_temp.life, pg_temp.published;
CREATE TEMP TABLE published (k bigint, n bigint, made timestamptz);
CREATE TEMP TABLE life (
  n bigint, g bigint, kind text, type_id bigint, line_id bigint, subscription_id bigint, group_of bigint,
  answers bigint, status text, planned int, failing int, last int, made timestamptz, first timestamptz,
  pause interval, last_ms int, sequence bigint, uncertain boolean,
  ended timestamptz, made_attempts int, is_over boolean,
  lined_up timestamptz, not_before timestamptz, resubmit_of bigint, replay_id bigint, meaning text,
  fetches int NOT NULL DEFAULT 0)
"""
"""`failing`, `last`: what its attempts but the last, and the last, are answered with; below nought: an error text.

`lined_up`: when it was made of a message that is older; `meaning`: what is recorded of its attempts but the last.
"""

PUBLISHED: Final = """
TRUNCATE life, published;
INSERT INTO published
SELECT k, %(first)s + k, %(hour)s::timestamptz + k * %(step)s
  FROM generate_series(0, %(per_hour)s::bigint - 1) k WHERE %(hour)s::timestamptz + k * %(step)s <= %(until)s
"""
TOPIC: Final = """
WITH numbers AS (SELECT x.*, n / 10 * 7 + n %% 10 AS m FROM published x WHERE n %% 10 < 7),
sent AS (
  SELECT n.*, r.*, 2 * n + receiver / %(pairs)s AS g,
         %(hour)s::timestamptz + make_interval(mins => 5 + pg_temp.draw(receiver, 1, 40)) AS outage,
         pg_temp.draw(receiver + 1000 * (%(first)s / %(per_hour)s), 2, 4) = 0 AS has_outage
    FROM numbers n
    JOIN unnest(%(receivers)s::int[], %(types)s::bigint[], %(subscriptions)s::bigint[], %(lines)s::bigint[])
         AS r (receiver, type_id, subscription_id, line_id)
      ON receiver %% %(pairs)s = m %% %(pairs)s
     AND type_id = (%(topic_types)s::bigint[])[1 + m / %(pairs)s %% cardinality(%(topic_types)s::bigint[])]),
phased AS (
  SELECT s.*, has_outage AND made >= outage AND made < outage + interval '5 min' AS is_out,
         has_outage AND made >= outage + interval '5 min' AND made < outage + interval '6 min' AS is_after
    FROM sent s),
headed AS (
  SELECT p.*, is_out AND row_number() OVER (PARTITION BY receiver, is_out ORDER BY made) = 1 AS is_head,
         GREATEST(1, ceil(extract(epoch FROM outage + interval '5 min' - made) / 60))::int AS tries
    FROM phased p)
INSERT INTO life
SELECT n, g, 'TOPIC', type_id, line_id, subscription_id, NULL, NULL,
       CASE WHEN is_head THEN 'DELIVERED' ELSE status END, CASE WHEN is_head THEN tries + 1 ELSE planned END,
       CASE WHEN is_head THEN -1 - pg_temp.draw(g, 3, 1000) ELSE failing END, CASE WHEN is_head THEN 200 ELSE last END,
       made,
       -- What waited for the outage's end goes out ten times as fast, what came just then twice as fast: in order.
       CASE WHEN is_out AND NOT is_head THEN outage + interval '5 min' + (made - outage) / 10
            WHEN is_after THEN outage + interval '330 s' + (made - outage - interval '5 min') / 2
            WHEN k = 0 THEN made ELSE made + interval '10 ms' END,
       CASE WHEN is_head THEN (outage + interval '5 min' - made) / tries ELSE interval '1 min' END,
       CASE WHEN k = %(per_hour)s - 4 THEN  -- the last of the hour, which ends with it
                 1000 * extract(epoch FROM %(hour)s::timestamptz + interval '1 hour' - made) - 10
            WHEN pg_temp.draw(g, 4, 100) = 0 THEN 3000 ELSE pg_temp.draw(g, 5, 200) END,
       m / %(pairs)s + 1, NOT is_head AND pg_temp.draw(g, 6, 200) = 0
  FROM headed
  JOIN unnest(%(statuses)s::text[], %(planned)s::int[], %(failing)s::int[], %(lasts)s::int[], %(lows)s::int[],
              %(highs)s::int[]) AS e (status, planned, failing, last, low, high)
    ON pg_temp.draw(g, 7, 1000) >= low AND pg_temp.draw(g, 7, 1000) < high
"""
QUEUE: Final = """
INSERT INTO life
SELECT n, 2 * n + side, 'QUEUE', %(queue_type)s, (%(senders)s::bigint[])[1 + n %% cardinality(%(senders)s::bigint[])],
       (%(queue_subscriptions)s::bigint[])[1 + n %% %(pairs)s + side * %(pairs)s], pg_temp.id_of(made, 2 * n), NULL,
       CASE WHEN wins THEN 'DELIVERED' ELSE 'REDUNDANT' END,
       CASE WHEN wins OR pg_temp.draw(n, 10, 5) = 0 THEN 1 ELSE 0 END, 500, CASE WHEN wins THEN 200 ELSE 500 END,
       made, made + CASE WHEN wins THEN interval '1 s' ELSE interval '10 ms' END, interval '0',
       pg_temp.draw(n, 11, 150), NULL, false
  FROM (SELECT x.*, side, side = pg_temp.draw(n, 12, 2) AS wins FROM published x, generate_series(0, 1) side
         WHERE n %% 10 IN (7, 8)) x
"""
SYNC: Final = """
INSERT INTO life
SELECT n, 2 * n, 'SYNC', %(sync_type)s, NULL, (%(sync_subscriptions)s::bigint[])[1 + n / 10 %% 2], NULL, NULL,
       CASE fate WHEN 0 THEN 'FAILED' WHEN 1 THEN 'REJECTED' ELSE 'DELIVERED' END, 1, NULL,
       CASE fate WHEN 0 THEN -1 - pg_temp.draw(n, 20, 1000) WHEN 1 THEN 400 ELSE 200 END,
       made, made, interval '0', pg_temp.draw(n, 21, 2000), NULL, fate = 0
  FROM (SELECT x.*, pg_temp.draw(n, 22, 20) AS fate FROM published x WHERE n %% 10 = 9) x
"""
LATER: Final = """
INSERT INTO life
SELECT n + 10 * message, 100000000 + 2 * (n + 10 * place) + half, 'TOPIC',
       (%(topic_types)s::bigint[])[1 + (n / 10 + message) * 7 / %(pairs)s %% cardinality(%(topic_types)s::bigint[])],
       (%(later_lines)s::bigint[])[line], (%(later_subscriptions)s::bigint[])[subscription], NULL, NULL,
       'DELIVERED', planned, 404, 200, made + 10 * message * %(step)s,
       made + 10 * first * %(step)s + interval '10 ms', 5 * %(step)s, 20, n / 40 * 5 + number, number IS NULL,
       NULL, NULL, NULL, CASE WHEN made_at > message THEN made + 10 * made_at * %(step)s END,
       CASE WHEN first > made_at THEN made + 10 * first * %(step)s END,
       CASE WHEN what = 'again' THEN pg_temp.id_of(made, 100000000 + 2 * n) END,
       CASE WHEN made_at > message THEN 1 END, CASE WHEN planned > 1 THEN 'retry_lane' END
  FROM published, (VALUES
         ('retried apart', 0, 0, 0, 2, 1, 2, 0, 0.0, 1),
         ('delayed',       1, 1, 0, 1, 1, 1, 1, 2.5, 3),
         ('overtakes',     2, 2, 0, 1, 2, 1, 2, 2.0, 2),
         ('backfilled',    1, 1, 1, 1, 1, 1, 3, 3.0, 4),
         ('again',         0, 3, 0, 1, 1, 1, 3, 3.0, 5),
         ('in no order',   3, 3, 1, 3, 3, 1, 3, 3.0, NULL))
       AS l (what, message, place, half, line, subscription, planned, made_at, first, number)
 WHERE n %% 40 = 0 AND k <= %(per_hour)s - 40 AND made + 40 * %(step)s <= %(until)s
"""
"""`message`, `made_at`, `first`: of which of four messages, with which it was made, and from when on it was sent.

Ids go by `place` and `half`, and so what is backfilled has an older one than what overtakes it.
"""
LIVED: Final = """
UPDATE life SET ended = z.ended, is_over = status = ANY (%(final)s) AND z.ended <= %(until)s,
       made_attempts = CASE WHEN z.ended <= %(until)s OR interval '0' = pause THEN CASE WHEN
                            first + last_ms * interval '1 ms' <= %(until)s THEN planned ELSE 0 END
         ELSE GREATEST(0, LEAST(planned, 1 + floor(extract(epoch FROM %(until)s - first - last_ms * interval '1 ms')
                                                   / extract(epoch FROM pause))))::int END
  FROM (SELECT g AS of, CASE WHEN status = 'REDUNDANT' THEN made + interval '1 s' ELSE first END
                        + GREATEST(planned - 1, 0) * pause + last_ms * interval '1 ms' AS ended FROM life) z
 WHERE z.of = g AND is_over IS NULL;
DELETE FROM life WHERE kind = 'SYNC' AND NOT is_over;
ANALYZE life
"""
"""How far each has come by the history's end."""
REPLIES: Final = """
INSERT INTO life
SELECT -n, -2 * n, 'REPLY', type_id, -n, NULL, NULL, pg_temp.id_of(made, n), 'DELIVERED', 2, 503, 200,
       ended + interval '2 s', ended + interval '2 s', interval '5 s', pg_temp.draw(n, 30, 100), 1, false
  FROM life WHERE kind = 'QUEUE' AND status = 'DELIVERED' AND is_over AND pg_temp.draw(n, 31, 10) < 2
   AND ended + interval '10 s' <= %(until)s
"""
"""Of every fifth group; four in ten have a callback. Their lines are gone."""

MESSAGES: Final = """
INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, answers, outcome,
                              deliveries_count, published_at)
SELECT pg_temp.id_of(made, n), type_id, (%(publishers)s::bigint[])[1 + abs(n) %% cardinality(%(publishers)s::bigint[])],
       '', 100 + pg_temp.draw(n, 40, 5000), 'application/json', '[]', answers, 'ROUTED', count(*), made
  FROM life GROUP BY n, type_id, made, answers;
INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, outcome,
                              deliveries_count, published_at)
SELECT pg_temp.id_of(%(hour)s, 500000000 + %(first)s + number), %(queue_type)s, NULL, '', 7, 'text/plain', '[]',
       outcome, 0, %(hour)s
  FROM unnest(%(astray)s::text[]) WITH ORDINALITY AS o (outcome, number)
"""
DELIVERIES: Final = """
INSERT INTO delivery_delivery (id, message_id, line_id, subscription_id, group_id, status, size, attempts,
                               times_deferred, waits_for, due_at, sequence, ordering_key, uncertain, not_before,
                               resubmit_of, replay_id, created_at, finished_at, closed_on, fetches, reason)
SELECT pg_temp.id_of(made, g), pg_temp.id_of(made, n), line_id, subscription_id, group_of, status, 100, planned,
       CASE WHEN is_set_aside THEN planned - 1 ELSE 0 END,
       CASE WHEN is_set_aside THEN 'RETRY' ELSE 'TURN' END,
       CASE WHEN is_set_aside THEN first + (planned - 1) * pause END,
       CASE WHEN planned > 0 THEN sequence END, CASE WHEN kind = 'TOPIC' THEN (sequence %% 3)::text END, uncertain,
       not_before, resubmit_of, replay_id, COALESCE(lined_up, made), ended, (ended AT TIME ZONE 'UTC')::date, fetches,
       CASE WHEN kind = 'MAILBOX' AND status = 'EXPIRED' THEN 'unread for 4 days' ELSE '' END
  FROM (SELECT l.*, kind = 'TOPIC' AND planned > 1 AND failing > 0 AS is_set_aside FROM life l WHERE is_over) l;
INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, attempts,
                           times_deferred, waits_for, due_at, sequence, ordering_key, uncertain, not_before,
                           resubmit_of, replay_id, created_at, fetches)
SELECT pg_temp.id_of(made, g), pg_temp.id_of(made, n), line_id, subscription_id, group_of,
       CASE WHEN status = ANY (%(unfinished)s) THEN status
            WHEN first + made_attempts * pause <= %(until)s AND planned > made_attempts THEN 'IN_FLIGHT'
            ELSE 'PENDING' END, 100, made_attempts, made_attempts,
       CASE WHEN status = 'HELD' THEN 'RELEASE' WHEN made_attempts > 0 THEN 'RETRY' ELSE 'TURN' END,
       CASE WHEN status <> 'HELD' AND made_attempts > 0 THEN first + made_attempts * pause END,
       CASE WHEN planned > 0 AND first <= %(until)s THEN sequence END,
       CASE WHEN kind = 'TOPIC' THEN (sequence %% 3)::text END, uncertain, not_before, resubmit_of, replay_id,
       COALESCE(lined_up, made), fetches
  FROM life WHERE NOT is_over
"""
ATTEMPTS: Final = """
INSERT INTO delivery_attempt (id, delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                              answer_excerpt, meaning)
SELECT pg_temp.id_of(started + last_ms * interval '1 ms', 16 * (2 * abs(g) + (g < 0)::int) + number),
       pg_temp.id_of(made, g), number, started, last_ms, CASE WHEN code > 0 THEN code END,
       CASE WHEN code > 0 THEN ''
            ELSE (%(errors)s::text[])[1 + (-1 - code + number) %% cardinality(%(errors)s::text[])] END, '', '',
       CASE WHEN number < planned THEN meaning END
  FROM (SELECT l.*, number, first + (number - 1) * pause AS started,
               CASE WHEN number < planned THEN failing ELSE last END AS code
          FROM life l, generate_series(1, made_attempts) number) l
"""
CALLBACKS: Final = """
INSERT INTO delivery_callback (group_id, message_id, event_type_id, publisher_id, url, token_hash, token_sealed,
                               created_at, expires_at, reply_id, reply_fingerprint, replied_at)
SELECT q.group_of, pg_temp.id_of(q.made, q.n), q.type_id, NULL, 'https://publisher.example/',
       sha256(q.group_of::text::bytea), '', q.made, q.made + interval '30 days',
       pg_temp.id_of(r.made, r.n), CASE WHEN r.n IS NOT NULL THEN ''::bytea END, r.made
  FROM life q LEFT JOIN life r ON r.n = -q.n
 WHERE q.kind = 'QUEUE' AND q.g = 2 * q.n AND pg_temp.draw(q.n, 31, 10) < 4
"""

AN_HOUR: Final = (
    *(PUBLISHED, TOPIC, MAILBOX, QUEUE, SYNC, LATER, LIVED, REPLIES, LIVED),
    *(MESSAGES, DELIVERIES, ATTEMPTS, CALLBACKS),
)


def write_history(until: dt.datetime, *, messages: int = 100_000, days: int, subscribers: int = 20) -> None:
    """Write a history into the database, an hour a transaction; there must be nothing else of this kind in it yet.

    It has about twice as many deliveries and attempts as messages, and ends at `until`, on the last of its days. The
    number of subscribers is even.
    """
    start = dt.datetime.combine(until.date() - dt.timedelta(days=days - 1), dt.time(), dt.UTC)
    hours = [start + number * HOUR for number in range((until - start) // HOUR + 1)]
    for day in sorted({hour.date() for hour in hours}):
        open_days(day, ahead=1)
    arguments, leaving = _participants(subscribers)
    per_hour = max(10, messages // len(hours) // 10 * 10)
    step = HOUR // per_hour // MILLISECOND * MILLISECOND
    arguments |= ENDINGS_AND_WORDS | {"until": until, "per_hour": per_hour, "step": step}
    with connection.cursor() as cursor:
        cursor.execute(FUNCTIONS)
        for number, hour in enumerate(hours):
            with transaction.atomic():
                for statement in AN_HOUR:
                    cursor.execute(statement, {**arguments, "hour": hour, "first": number * per_hour})
    leaving.delete()
    _switch(hours[-1])


def _participants(count: int) -> tuple[dict[str, Any], Subscription]:
    """Create publishers and receivers; return the parameters that name them, and a subscription that is to go."""
    topics = [EventType.objects.create(name=f"History.Topic{number}") for number in range(TOPICS)]
    queue, sync = (
        EventType.objects.create(name=f"History.{kind}", kind=kind) for kind in (EventKind.QUEUE, EventKind.SYNC)
    )
    keyed = {"processing": Processing.KEYED, "ordering_key": "$$->>'Body'"}
    receivers = [
        Subscriber.objects.create(name=f"history-{number}", **({} if number else keyed)) for number in range(count)
    ]
    leaving = _subscription(receivers[-1], sync)
    # A receiver's subscription for each TOPIC type: of the second half it is always the same, by pattern.
    wanted = [
        (number, topic.pk, subscription.pk, _line(receiver))
        for number, receiver in enumerate(receivers)
        for by_pattern in [_subscription(receiver) if number >= count // 2 else None]
        for topic in topics
        for subscription in [by_pattern or _subscription(receiver, topic)]
    ]
    late = Subscriber.objects.create(name="history-late")
    unordered = Subscriber.objects.create(name="history-unordered", processing=Processing.CONCURRENT)
    fetching = Subscriber.objects.create(name="history-mailbox")
    named = zip(("receivers", "types", "subscriptions", "lines"), map(list, zip(*wanted, strict=True)), strict=True)
    return {
        **dict(named),
        "publishers": [Publisher.objects.create(name=f"History.{number}").pk for number in range(2)],
        "pairs": count // 2,
        "topic_types": [topic.pk for topic in topics],
        "queue_type": queue.pk,
        "sync_type": sync.pk,
        "senders": [Line.objects.get_or_create(lane=Lane.QUEUE, sender=number)[0].pk for number in range(SENDERS)],
        "queue_subscriptions": [_subscription(receiver, queue).pk for receiver in receivers],
        "sync_subscriptions": [_subscription(receivers[0], sync).pk, leaving.pk],
        "later_subscriptions": [_subscription(receiver).pk for receiver in (late, late, unordered)],
        "later_lines": [_line(late), _line(late, Lane.RETRY), _line(unordered)],
        "mailbox_subscription": _subscription(fetching, delivery_mode=DeliveryMode.PULL).pk,
        "mailbox_line": _line(fetching),
    }, leaving


def _line(subscriber: Subscriber, lane: Lane = Lane.MAIN) -> int:
    return subscriber.lines.get(lane=lane).pk


def _subscription(subscriber: Subscriber, event_type: EventType | None = None, **fields: Any) -> Subscription:
    """Create a subscription to an event type, by default to all of them by pattern."""
    return Subscription.objects.create(
        subscriber=subscriber,
        event_type=event_type,
        event_pattern="" if event_type else "History.*",
        endpoint=f"PATCH:http://127.0.0.1:9/{subscriber.name}?token=secret",
        status=Status.INACTIVE,
        signing_secret=SECRET,
        **fields,
    )


def _switch(at: dt.datetime) -> None:
    """Record that a subscription and a subscriber were inactive for a minute, and that a delivery was released."""
    one, other = Subscription.objects.order_by("pk")[:2]
    for subscriber_id, subscription_id in ((one.subscriber_id, one.pk), (other.subscriber_id, None)):
        for status, when in ((Status.INACTIVE, at), (Status.ACTIVE, at + dt.timedelta(minutes=1))):
            StatusChange.objects.create(
                subscriber_id=subscriber_id,
                subscription_id=subscription_id,
                status=status,
                processing_before="" if subscription_id else other.subscriber.processing,
                at=when,
            )
    held = Delivery.objects.final().filter(line__lane=Lane.MAIN).oldest_first()[0]
    LineEvent.objects.create(
        line=Line.objects.get(delivery=held), kind=LineEventKind.RELEASED, delivery_id=held.pk, at=held.created_at
    )
