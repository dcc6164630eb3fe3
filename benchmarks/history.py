"""A history as days of use would leave it, of any size and always the same, written straight into the tables.

It follows the contract: each subscriber's deliveries are sent in order, and once. All its subscribers are inactive, so
that a broker on the same database sends none of it.

The statements in `history.sql` make the lives of deliveries, an hour at a time, in temporary tables. Everything follows
from a message's number `n`. Of ten messages seven are for a TOPIC type, two for a QUEUE type, one is a SYNC call.
Receivers come in pairs, one half by event type, the other by pattern: TOPIC message `m` goes to pair m modulo the
pairs, and has the number m / pairs + 1 in both their lines. Replies have numbers below nought. Of every forty messages
some go to two others as well, late, again, or in no order; and some lie in a mailbox. TOPIC deliveries have one of
three ordering keys, which count for the first receiver: it is KEYED.
"""

import datetime as dt
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
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
  fetches int NOT NULL DEFAULT 0);
CREATE OR REPLACE FUNCTION pg_temp.live(until timestamptz, final text[]) RETURNS void LANGUAGE sql AS $$
UPDATE life SET ended = z.ended, is_over = status = ANY ($2) AND z.ended <= $1,
       made_attempts = CASE WHEN z.ended <= $1 OR interval '0' = pause THEN CASE WHEN
                            first + last_ms * interval '1 ms' <= $1 THEN planned ELSE 0 END
         ELSE GREATEST(0, LEAST(planned, 1 + floor(extract(epoch FROM $1 - first - last_ms * interval '1 ms')
                                                   / extract(epoch FROM pause))))::int END
  FROM (SELECT g AS of, CASE WHEN status = 'REDUNDANT' THEN made + interval '1 s' ELSE first END
                        + GREATEST(planned - 1, 0) * pause + last_ms * interval '1 ms' AS ended FROM life) z
 WHERE z.of = g AND is_over IS NULL;
DELETE FROM life WHERE kind = 'SYNC' AND NOT is_over
$$
"""
"""`failing`, `last`: what its attempts but the last, and the last, are answered with; below nought: an error text.

`lined_up`: when it was made of a message that is older; `meaning`: what is recorded of its attempts but the last.
`live` says how far each has come by the history's end.
"""
AN_HOUR: Final = Path(__file__).with_suffix(".sql").read_text()


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
                cursor.execute(AN_HOUR, {**arguments, "hour": hour, "first": number * per_hour})
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
