"""Backfills: give a new subscription in order the retained messages that it would have received (contract 5.8)."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.db.models import Q

from broker_project.core.db import rows
from delivery.believed_clock import BELIEVED_CLOCK
from delivery.dispatch import notify
from delivery.filing import MAIN_LINE
from delivery.limits import MAX_BACKFILL_BYTES
from delivery.models import Delivery, Replay, ReplayKind, ReplayState
from delivery.operations import BETWEEN_SECONDS, cancel_slice
from delivery.publish.draft import document_of
from delivery.publish.routing import ordering_key_of
from delivery.publish.store import WAITS_FOR
from delivery.publish.together import in_slices
from delivery.replay import job_steps
from delivery.replay.eligibility import NotBackfilled, NotBegun, NotInactive, NotNew, StillPaused
from delivery.replay.job_steps import DUE, ENDED, SLICE, WALK, Count
from delivery.statuses import WaitsFor
from subscriptions.filters import Work
from subscriptions.matching import NO_DELETION, Match, qualified
from subscriptions.models import EventKind, EventType, PausedBy, Status, Subscription
from subscriptions.names import patterns_of

SPARE_IDS: Final = 100_000
"""Further ids, for messages published while they are drawn."""

OUT_OF_IDS: Final = "more was published while it began than ids were kept for; try again when less is published"
OLDER: Final = """
SELECT id, published_at < %s::timestamptz FROM delivery_message WHERE id >= %s ORDER BY id LIMIT 1
"""
NEWEST: Final = "SELECT last_value FROM delivery_message_id_seq"

SPREAD: Final = dt.timedelta(minutes=10)
"""Messages are published in the order of their ids, except concurrent ones and while a clock is set."""

READ: Final = """
SELECT m.id, m.headers, m.content_type, m.filter_string, CASE WHEN %(reads)s THEN m.body END
  FROM delivery_message m WHERE m.id = ANY(%(messages)s::bigint[]) ORDER BY m.id FOR KEY SHARE
"""
"""Locked: their day is not dropped before the deliveries need it."""

EVER: Final = dt.datetime(1, 1, 2, tzinfo=dt.UTC)

ARMS: Final = """
SELECT e.place AS arm, x.*
  FROM unnest(%(event_types)s::bigint[]) WITH ORDINALITY AS e (id, place)
 CROSS JOIN LATERAL (
   SELECT m.id, m.published_at >= %(since)s::timestamptz AND m.answers IS NULL AND m.copy_of IS NULL
                AND m.destination IS NULL AND (m.expires_at <= %(now)s::timestamptz) IS NOT TRUE AS is_wanted,
          m.size
     FROM delivery_message m WHERE m.event_type_id = e.id AND m.id > %(cursor)s AND m.id <= %(newest)s
    ORDER BY m.id LIMIT %(each)s) x"""
"""Not messages with a destination, nor copies made when a message was sent again.

A message published again exists itself; an edited one was for its receiver only.
"""

KEPT: Final = WALK.format(arms=ARMS)
COUNT: Final = f"{KEPT} SELECT count(*) FILTER (WHERE is_wanted), max(id), (SELECT is_end FROM horizon) FROM stretch"
NEXT: Final = f"{KEPT} SELECT id, is_wanted, size FROM stretch ORDER BY id LIMIT %(limit)s"

WAIT: Final = """
UPDATE delivery_replay
   SET updated_at = clock_timestamp(), transactions = ARRAY(
     SELECT l.virtualxid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
      WHERE l.locktype = 'virtualxid' AND a.datname = current_database() AND a.backend_type = 'client backend'
        AND l.pid <> pg_backend_pid())
 WHERE id = %s
"""
"""Sees every transaction that may have published before the subscription was changed; no clock tells them apart."""

DRAW: Final = """
WITH drawn AS MATERIALIZED (
  SELECT range_agg(int8range(id, id, '[]')) AS ids
    FROM (SELECT nextval('delivery_delivery_id_seq') AS id FROM generate_series(1, %(ids)s::bigint)) AS n)
UPDATE delivery_replay
   SET ids = COALESCE(ids, '{}') + COALESCE((SELECT ids FROM drawn), '{}'), total = total + %(messages)s,
       cursor_id = %(last_id)s, failures = 0, reason = '', updated_at = clock_timestamp()
 WHERE id = %(id)s
"""
"""Ids of deliveries published meanwhile lie between these and are not among them.

They are used long after they were drawn, so `next_delivery_id()` would not help: `LINE_UP` deletes the floor instead.
"""

OPEN: Final = """
WITH reserved AS (UPDATE delivery_replay SET state = 'WAITING' WHERE id = %s RETURNING subscription_id)
UPDATE subscriptions_subscription s
   SET status = 'ACTIVE', paused_since = clock_timestamp(), paused_by = 'BACKFILL',
       paused_reason = 'what was published before it is lined up first', updated_at = clock_timestamp()
  FROM reserved WHERE s.id = reserved.subscription_id
"""


def newest_message_id() -> int:
    """Return the id of the newest message, or of one about to be published."""
    ((newest,),) = rows(NEWEST)
    return int(newest)


def published_before(since: dt.datetime | None) -> int:
    """Return a message id up to which all messages are older than `since`, close to it if there is one."""
    low, high = 1, newest_message_id() + 1
    while since and low < high:
        middle = (low + high) // 2
        found = rows(OLDER, [since - SPREAD, middle])
        older = [one for one, is_older in found if is_older]
        low, high = (older[0] + 1, high) if older else (low, middle)
    return low - 1


def event_types_of(subscription: Subscription) -> list[int]:
    """Return the ids of the subscription's event types, by their names today."""
    if subscription.event_type_id:
        return [subscription.event_type_id]
    names = EventType.objects.filter(kind=EventKind.TOPIC).values_list("pk", "name")
    return [pk for pk, name in names if subscription.event_pattern in patterns_of(name)]


def counted(event_types: Sequence[int], since: dt.datetime | None, cursor: int, now: dt.datetime | None) -> Count:
    """Count the messages to backfill among those that one slice after `cursor` meets."""
    arguments = _arguments(event_types, cursor, job_steps.LARGEST_ID, since, job_steps.COUNT_SLICE, now)
    ((messages, last_id, is_end),) = rows(COUNT, arguments)
    return Count(messages, {}, last_id or cursor, is_end)


def _arguments(
    event_types: Sequence[int], cursor: int, newest: int, since: dt.datetime | None, limit: int, now: dt.datetime | None
) -> dict[str, Any]:
    return {
        "event_types": [*event_types],
        "cursor": cursor,
        "newest": newest,
        "since": since or EVER,
        "now": now,
        "each": job_steps.each_of(limit, len(event_types)),
    }


def count(subscription: Subscription, since: dt.datetime | None) -> Count:
    """Count the messages of a backfill; raise `NotBegun` if it cannot start."""
    _check_new(subscription)
    event_types, now = event_types_of(subscription), BELIEVED_CLOCK.now()
    return job_steps.count_all(lambda cursor: counted(event_types, since, cursor, now), published_before(since))


def begin(subscription_id: int, *, since: dt.datetime | None, created_by: str) -> Replay:
    """Store a backfill, which the workers run; raise a subclass of `NotBegun` if it cannot start."""
    with transaction.atomic():
        subscription = _locked(subscription_id)
        _check_new(subscription)
        return Replay.objects.create(
            kind=ReplayKind.BACKFILL,
            subscription=subscription,
            selection={
                "subscriber": subscription.subscriber_id,
                "subscriptions": [subscription.pk],
                "since": since and since.isoformat(),
            },
            cursor_id=published_before(since),
            created_by=created_by,
        )


def _locked(subscription_id: int) -> Subscription:
    its = Subscription.objects.select_for_update(of=("self",), no_key=True).select_related("event_type", "subscriber")
    return its.get(pk=subscription_id)


def _check_new(subscription: Subscription) -> None:
    _check(subscription)
    if Replay.objects.filter(subscription=subscription, kind=ReplayKind.BACKFILL, finished_at=None).exists():
        raise NotInactive("It is being backfilled.")


def _check(subscription: Subscription) -> None:
    event_type = subscription.event_type
    if event_type is not None and event_type.kind != EventKind.TOPIC:
        raise NotBackfilled(
            f"Its event type is of kind {event_type.kind}; only TOPIC messages are kept for later subscriptions."
        )
    if subscription.status == Status.ACTIVE or subscription.subscriber.status != Status.ACTIVE:
        raise NotInactive("A backfill is for an INACTIVE subscription of an ACTIVE subscriber: it activates it.")
    if subscription.paused_by == PausedBy.HAND:
        raise StillPaused("It is paused by hand: resume it first.")
    if _was_sent_any(subscription):
        raise NotNew("It has been sent something, or will be; a backfill is for one that never was. Make another.")


def _was_sent_any(subscription: Subscription) -> bool:
    """Return whether the subscription was ever sent a delivery, or has one, by indexes of the subscription.

    Deliveries cancelled before they were sent, as by a cancelled backfill, do not count.
    """
    its = Delivery.objects.filter(subscription=subscription)
    turn, others = its.open().filter(waits_for=WaitsFor.TURN), its.open().exclude(waits_for=WaitsFor.TURN)
    sent = its.final().filter(Q(attempts__gt=0) | Q(sequence__isnull=False) | Q(fetches__gt=0))
    return any(some.exists() for some in (turn, others, sent))


LINE_UP: Final = f"""
WITH job AS MATERIALIZED (SELECT ids, COALESCE(last_given, 0) AS last_given FROM delivery_replay WHERE id = %(id)s),
wanted AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY w.message_id) AS place, w.*
    FROM unnest(%(messages)s::bigint[], %(failures)s::text[], %(keys)s::text[]) AS w (message_id, failure, ordering_key)
   WHERE NOT EXISTS (
     SELECT FROM delivery_delivery d
      WHERE d.message_id = w.message_id AND d.subscription_id = %(subscription)s AND d.closed_on >= %(first_day)s::date
        AND (d.closed_on = '9999-12-31' OR d.id >= (SELECT lower(ids) FROM job)))),
given AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY id) AS place, id FROM (
    SELECT generate_series(lower(span), upper(span) - 1) AS id
      FROM (SELECT unnest(ids * int8multirange(int8range(last_given + 1, NULL))) AS span FROM job) free
     LIMIT (SELECT count(*) FROM wanted)) g),
unfloored AS (
  DELETE FROM delivery_turnfloor WHERE subscription_id = %(subscription)s),  -- what it has may have higher ids
lined_up AS (
  INSERT INTO delivery_open (id, message_id, line_id, subscription_id, status, size, reason, waits_for, expires_at,
                             not_before, replay_id, ordering_key)
  SELECT g.id, m.id, l.id, s.id, CASE d.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END, m.size, d.failure,{WAITS_FOR},
         m.expires_at, m.not_before, %(id)s, CASE WHEN g.id > u.keyless_until THEN d.ordering_key END
    FROM wanted d JOIN given g USING (place) JOIN delivery_message m ON m.id = d.message_id
    JOIN subscriptions_subscription s ON s.id = %(subscription)s AND {NO_DELETION}
    JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   CROSS JOIN {MAIN_LINE.format("s.subscriber_id")} l
   ORDER BY g.id
  RETURNING id)
SELECT (SELECT count(*) FROM wanted), (SELECT count(*) FROM lined_up), (SELECT max(id) FROM lined_up)
"""
"""A message published for the subscription itself already has its delivery: both are seen together.

Deliveries of a cancelled backfill have lower ids, and are created again. Ids are given lowest first, from as few of the
reserved ranges as possible. Those reserved before the subscriber first named a path stand for no ordering key. Returns
the number of messages without a delivery, of those that have one now, and the id of the last delivery.
"""

TAKE: Final = f"""
SELECT id, state, subscription_id, (selection ->> 'since')::timestamptz, cursor_id, reason, event_types, newest_id,
       transactions IS NOT NULL, (created_at AT TIME ZONE 'UTC')::date - 1
  FROM delivery_replay
 WHERE finished_at IS NULL AND kind = 'BACKFILL' AND {DUE}
   AND (state <> 'CANCELLING' OR updated_at < clock_timestamp() - make_interval(secs => {BETWEEN_SECONDS}))
   AND (state <> 'WAITING' OR NOT EXISTS (
     SELECT FROM pg_locks l WHERE l.locktype = 'virtualxid' AND l.virtualxid = ANY (transactions)))
 ORDER BY updated_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
"""A WAITING job is taken once every transaction is over that may have published with the old subscription.

A job being cancelled is taken a little later, so that what is being sent is settled in between.
"""

STILL_ENDING: Final = "UPDATE delivery_replay SET failures = 0, updated_at = clock_timestamp() WHERE id = %s"

FILE: Final = """
UPDATE delivery_replay
   SET state = 'FILING', event_types = %(event_types)s::bigint[], cursor_id = %(cursor)s, newest_id = %(newest)s,
       updated_at = clock_timestamp()
 WHERE id = %(id)s
"""

MOVE: Final = """
UPDATE delivery_replay
   SET cursor_id = %(cursor)s, filed = filed + %(filed)s, last_given = COALESCE(%(last_given)s, last_given),
       failures = 0, reason = '', updated_at = clock_timestamp()
 WHERE id = %(id)s
"""


class _Job(NamedTuple):
    """A row of `TAKE`."""

    id: int
    state: str
    subscription_id: int
    since: dt.datetime | None
    cursor: int
    reason: str
    event_types: list[int] | None
    newest: int | None
    has_waited: bool
    first_day: dt.date
    """The subscription's deliveries ended on that day or later."""


def go_on() -> int:
    """Take one step of a backfill that is not locked by another worker; return 0 without such a job."""
    now = BELIEVED_CLOCK.now()  # outside of the step: what it notes of a jump stays if that fails
    return job_steps.step(TAKE, lambda *columns: _go_on(_Job(*columns), now))


def _go_on(job: _Job, now: dt.datetime | None) -> None:
    """Take its next step; no message has expired if `now` is None (contract 11.7)."""
    if job.state == ReplayState.COUNTING:
        _reserve(job, now)
    elif job.state == ReplayState.FILING:
        _slice(job, now)
    elif job.state == ReplayState.CANCELLING:
        cancelled = cancel_slice(job.subscription_id, newest=job.cursor, reason=job.reason)
        rows(STILL_ENDING if cancelled.found else ENDED, [job.id])
    elif not job.has_waited:
        rows(WAIT, [job.id])
    else:  # later messages, and those of later event types, found the subscription themselves
        last = newest_message_id()
        event_types = event_types_of(Subscription.objects.get(pk=job.subscription_id))
        before = published_before(job.since)
        rows(FILE, {"id": job.id, "newest": last, "event_types": event_types, "cursor": before})


def _reserve(job: _Job, now: dt.datetime | None) -> None:
    """Reserve ids for the next messages; at the end also activate the subscription, but paused.

    Deliveries published from then on have higher ids, so they wait behind the backfill. Fails the job if the
    subscription cannot be backfilled any more.
    """
    subscription = _locked(job.subscription_id)
    found = counted(event_types_of(subscription), job.since, job.cursor, now)
    ids = found.total + (SPARE_IDS if found.complete else 0)
    rows(DRAW, {"id": job.id, "ids": ids, "messages": found.total, "last_id": found.last_id})
    if not found.complete:
        return
    try:
        _check(subscription)
    except NotBegun as refused:
        job_steps.fail(job.id, reason=str(refused))
    else:
        rows(OPEN, [job.id])


def _slice(job: _Job, now: dt.datetime | None) -> None:
    """Create the next deliveries and note it in the same transaction; at the end, resume the subscription."""
    subscription = Subscription.objects.select_related("subscriber").get(pk=job.subscription_id)
    asked = _arguments(job.event_types or [], job.cursor, job.newest or 0, job.since, SLICE, now)
    met = rows(NEXT, {**asked, "limit": SLICE})
    if not met:
        notify.wake_after_commit((notify.TOPIC, line_id) for (line_id,) in rows(ENDED, [job.id]))
        return
    sizes = {message_id: size for message_id, is_wanted, size in met if is_wanted}
    missed, stopped_at = _missed(subscription, sizes)
    which = {"id": job.id, "subscription": job.subscription_id, "first_day": job.first_day}
    columns = [[*column] for column in zip(*missed, strict=True)] or [[], [], []]
    ((without, filed, last_id),) = rows(
        LINE_UP, which | dict(zip(("messages", "failures", "keys"), columns, strict=True))
    )
    last_met, *_ = met[-1]
    rows(MOVE, {"id": job.id, "cursor": stopped_at or last_met, "filed": filed, "last_given": last_id})
    if filed < without:  # the ids ran out
        job_steps.fail(job.id, reason=OUT_OF_IDS)


class _Missed(NamedTuple):
    """A message that the subscription would have received."""

    message_id: int
    failure: str
    """Why its filter failed; then it is HELD."""
    ordering_key: str


def _missed(subscription: Subscription, sizes: Mapping[int, int]) -> tuple[list[_Missed], int | None]:
    """Return which of the messages, given with their sizes, the subscription would have received.

    Each filter may take as long as if its message were published alone. Once they have taken that long together, or
    `MAX_BACKFILL_BYTES` are read, later messages are left to the next slice; also returns the last message before them.
    """
    wanted, path = subscription.header_filter_string, subscription.subscriber.ordering_key
    reads = bool(subscription.filter or path)
    at_once = next(in_slices([*sizes], lambda one: sizes[one] if reads else 0, MAX_BACKFILL_BYTES), [])
    candidate = Match(0, subscription.pk, subscription.subscriber_id, subscription.filter)
    missed: list[_Missed] = []
    together = Work()
    for message_id, headers, content_type, filter_string, body in rows(READ, {"messages": at_once, "reads": reads}):
        if wanted in {"", filter_string or ""}:
            document = document_of([(name, value) for name, value in headers], content_type, filter_string, body or b"")
            key = ordering_key_of(path, document)
            missed += [_Missed(message_id, match.failure, key) for match in qualified([candidate], document)]
            together.done += document.work.done
        if together.is_used_up:
            return missed, message_id
    return missed, at_once[-1] if len(at_once) < len(sizes) else None
