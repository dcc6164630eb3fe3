"""The status of lines: what waits in them, what is deferred until when, and whether they are held."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString, NamedTuple

from django.db.models.enums import TextChoices

from broker_project.core.db import rows
from delivery.dispatch.claim import HELD_DELIVERY
from delivery.dispatch.diversion import RETRIED
from delivery.filing import APART, IS_OWN, IS_SENT_IN, LINES_APART
from delivery.outcomes import KINDS, NO_ANSWER, TLS_FAILED

MAX_COUNTED: Final = 1000
"""Largest count: a backlog of a million must cost no more."""
MAX_HOLDS: Final = 100
"""Holds and diversions of a line that are shown, the oldest first."""


FRESH: Final = "waits_for = 'TURN' ORDER BY id"
LATER: Final = "due_at IS NOT NULL ORDER BY due_at, id"
"""To be tried again; of groups also those that are delayed."""
DELAYED: Final = "l.lane = 'main' AND waits_for = 'START' ORDER BY id"
AWAITING_RELEASE: Final = f"{APART} AND d.due_at IS NULL ORDER BY d.due_at, d.id"
"""What is APART and not due at a moment is HELD; said so that no other index will do."""
PARKED: Final = "waits_for = 'SUBSCRIPTION' ORDER BY id"
HELD_GROUPS: Final = "waits_for = 'RELEASE' ORDER BY id"

IN_LINE: Final = "s.kind = 'TOPIC' AND s.delivery_mode = 'PUSH'"
"""Deliveries in a mailbox are in no line (contract 9.1)."""

HOLDS: Final = f"""
  SELECT h.line_id, h.delivery_id, h.since, h.reason, h.due_at, h.failures, s.id IS NOT NULL AND {IS_OWN} AS is_own
    FROM delivery_hold h {HELD_DELIVERY}
   WHERE h.reason <> '' AND d.status IN ('PENDING', 'IN_FLIGHT')
     AND (s.id IS NULL OR s.is_sending AND NOT s.half_open AND u.status = 'ACTIVE')"""
"""What counts as held: nothing cancelled, paused or inactivated since, nor a probe of a suspended subscription."""

OLDEST_HOLDS: Final = f"""
SELECT h.line_id, h.delivery_id, h.since, h.reason, h.due_at, h.failures FROM unnest(%s::bigint[]) AS l (id)
 CROSS JOIN LATERAL ({HOLDS} AND h.line_id = l.id ORDER BY h.since, h.delivery_id LIMIT {MAX_HOLDS}) h
"""

TLS: Final = next(begins.pattern for begins, kind in KINDS.items() if kind == TLS_FAILED).replace(r"\b", r"\y")
HELD: Final = f"""
SELECT line_id, min(since), min(since) FILTER (WHERE NOT is_own),
       min(since) FILTER (WHERE NOT is_own AND reason ~ '^{NO_ANSWER}{TLS}')
  FROM ({HOLDS}) h GROUP BY line_id ORDER BY min(since), line_id
"""


def _waiting(which: LiteralString) -> LiteralString:
    """Return SQL of the deliveries of line `l` that wait for this, up to the limit."""
    return f"""(
     SELECT FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND line_id = l.id AND {which} LIMIT {MAX_COUNTED}) d
      WHERE s.subscriber_id = l.subscriber_id AND {IN_LINE} LIMIT {MAX_COUNTED})"""


LINE_STATUS: Final = f"""
WITH asked AS (
  SELECT l.*, u.status = 'ACTIVE' AS is_active
    FROM delivery_line l JOIN subscriptions_subscriber u ON u.id = l.subscriber_id WHERE l.id = ANY(%s))
SELECT l.id, COALESCE(l.lease_until > clock_timestamp(), false),
       l.is_active AND (fresh.sendable OR COALESCE(next.due_at <= clock_timestamp(), false)),
       l.is_active AND paused.is_waiting,
       fresh.number, aside.number, delayed.number, held.number, next.due_at,
       l.is_active AND fresh.diverted
  FROM asked l
 CROSS JOIN LATERAL (
   SELECT count(*) AS number, COALESCE(bool_or(f.is_sent), false) AS sendable,
          COALESCE(bool_or(f.is_sending AND NOT f.is_sent), false) AS diverted FROM (
     SELECT s.is_sending, {IS_SENT_IN} AS is_sent FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.waits_for = 'TURN'
        ORDER BY d.id LIMIT {MAX_COUNTED}) d
      WHERE s.subscriber_id = l.subscriber_id AND {IN_LINE} AND l.lane = 'main'
      ORDER BY is_sent DESC, s.is_sending DESC LIMIT {MAX_COUNTED}) f) fresh
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_waiting(LATER)} a) aside
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_waiting(DELAYED)} y) delayed
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_waiting(AWAITING_RELEASE)} h) held
 CROSS JOIN LATERAL (
   SELECT min(d.due_at) AS due_at FROM subscriptions_subscription s CROSS JOIN LATERAL (
     SELECT d.due_at FROM delivery_open d
      WHERE d.subscription_id = s.id AND d.line_id = l.id AND {LATER} LIMIT 1) d
    WHERE s.subscriber_id = l.subscriber_id AND s.kind = 'TOPIC' AND {IS_SENT_IN} AND l.is_active) next
 CROSS JOIN LATERAL (
   SELECT count(*) > 0 AS is_waiting FROM (
     SELECT FROM subscriptions_subscription s CROSS JOIN LATERAL (
       (SELECT FROM delivery_open
         WHERE l.lane = 'main' AND subscription_id = s.id AND line_id = l.id AND {FRESH} LIMIT 1)
       UNION ALL
       (SELECT FROM delivery_open
         WHERE l.lane = 'main' AND subscription_id = s.id AND waits_for IN ('RETURN', 'START')
         ORDER BY waits_for, id LIMIT 1)
       UNION ALL
       (SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND d.line_id = l.id AND {LATER} LIMIT 1)) d
      WHERE s.subscriber_id = l.subscriber_id AND {IN_LINE} AND s.status = 'ACTIVE' AND s.diverted_since IS NULL
        AND NOT ({IS_SENT_IN})
      LIMIT 1) p) paused
"""
"""Subscriptions that are sent sort first, so what can be sent is found behind any amount that cannot.

Deliveries are sorted although any would do: otherwise the planner may scan the table from its beginning.
"""

DIVERSIONS: Final = f"""
SELECT s.id, s.diverted_since, p.due_at FROM subscriptions_subscription s CROSS JOIN LATERAL ({RETRIED}) p
 WHERE s.subscriber_id = %s AND s.diverted_since IS NOT NULL ORDER BY s.diverted_since, s.id LIMIT {MAX_HOLDS}
"""

RETRY_LINES: Final = f"""
WITH RECURSIVE {LINES_APART}
SELECT DISTINCT l.id FROM apart a JOIN delivery_line l ON l.id = a.line_id WHERE l.lane = 'retry'
"""


def _groups(which: LiteralString) -> LiteralString:
    """Return SQL of the groups of line `l` that wait for this, up to the limit."""
    return f"(SELECT * FROM delivery_queuegroup WHERE line_id = l.id AND {which} LIMIT {MAX_COUNTED})"


SENDER_STATUS: Final = f"""
SELECT l.id, COALESCE(l.lease_until > clock_timestamp(), false),
       fresh.number > 0 OR COALESCE(later.next_at <= clock_timestamp(), false), false,
       fresh.number + parked.number, later.retried, later.delayed, held.number, later.retried_at
  FROM delivery_line l
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_groups(FRESH)} g) fresh
 CROSS JOIN LATERAL (
   SELECT count(*) FILTER (WHERE waits_for = 'RETRY') AS retried,
          min(due_at) FILTER (WHERE waits_for = 'RETRY') AS retried_at,
          count(*) FILTER (WHERE waits_for = 'START') AS delayed, min(due_at) AS next_at
     FROM {_groups(LATER)} g) later
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_groups(PARKED)} g) parked
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_groups(HELD_GROUPS)} g) held
 WHERE l.id = ANY(%s) AND l.lane = 'queue'
"""
"""The work of a QUEUE sender is groups."""

CALLBACK_STATUS: Final = """
SELECT l.id, COALESCE(l.lease_until > clock_timestamp(), false), d.id IS NOT NULL,
       false, (d.id IS NOT NULL)::int, 0, 0, 0, NULL::timestamptz
  FROM delivery_line l LEFT JOIN delivery_hold h ON h.line_id = l.id
  LEFT JOIN delivery_open d ON d.id = ANY (ARRAY[h.delivery_id])
 WHERE l.id = ANY(%s) AND l.lane = 'callback'
"""
"""A callback line has one reply."""

SENDERS: Final = f"""
SELECT l.sender, l.id, l.queue, CASE WHEN l.lease_until IS NULL THEN '' ELSE l.worker END, l.lease_until,
       LEAST(fresh.oldest, later.oldest), (
         SELECT count(DISTINCT d.id)
           FROM delivery_pageread p CROSS JOIN LATERAL unnest(p.delivery_ids) AS r (id)
          CROSS JOIN LATERAL (SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
          WHERE p.line_id = l.id AND l.lease_until IS NOT NULL AND d.status = 'IN_FLIGHT')
  FROM delivery_line l
 CROSS JOIN LATERAL (SELECT min(created_at) AS oldest FROM {_groups(FRESH)} g) fresh
 CROSS JOIN LATERAL (
   SELECT min(CASE waits_for WHEN 'START' THEN due_at ELSE created_at END)
          FILTER (WHERE waits_for = 'RETRY' OR due_at <= clock_timestamp()) AS oldest FROM {_groups(LATER)} g) later
 WHERE l.lane = 'queue' ORDER BY l.sender
"""

UNFINISHED: Final = f"""
SELECT count(*) FROM (
  SELECT FROM unnest(%s::bigint[]) AS s (id) CROSS JOIN LATERAL (
    (SELECT FROM delivery_open WHERE subscription_id = s.id AND {FRESH} LIMIT {MAX_COUNTED})
    UNION ALL
    (SELECT FROM delivery_open
      WHERE subscription_id = s.id AND waits_for IN ('RETRY', 'START', 'RELEASE', 'RETURN', 'SUBSCRIPTION')
      ORDER BY waits_for, id LIMIT {MAX_COUNTED})) d
   LIMIT {MAX_COUNTED}) one
"""


class LineState(TextChoices):
    """The state of a line, with the words by which people read it."""

    HELD = "HELD", "Blocked"
    """Something could not be sent, and holds up what comes after it (contract 4.7)."""

    SENDING = "SENDING"
    """A worker runs it."""

    WAITING = "WAITING", "Waiting for a worker"
    """Something can be sent, and no worker has claimed the line yet."""

    DIVERTED = "DIVERTED", "Endpoint hangs"
    """All that can be sent waits until an endpoint that hangs has answered in the retry line (contract 5.10)."""

    DEFERRED = "DEFERRED", "Retry scheduled"
    """All that can be sent has failed before and is not due yet (contract 4.6, 5.3)."""

    PAUSED = "PAUSED"
    """Nothing can be sent, and something waits for a subscription that is paused (contract 1.6, 5.6)."""

    AWAITING_RELEASE = "AWAITING_RELEASE", "Needs decision"
    """Only HELD deliveries wait (contract 3.6)."""

    DELAYED = "DELAYED"
    """Otherwise only delayed deliveries wait (contract 2.13)."""

    INACTIVE = "INACTIVE"
    """All else waits for something inactive, or for a paused sender: it is kept and skipped (1.6, 1.7)."""

    IDLE = "IDLE"
    """Nothing is unfinished."""


class LineHold(NamedTuple):
    """A delivery that waits for its endpoint, and that nothing of its line, or of its key, may overtake."""

    delivery_id: int
    since: datetime
    reason: str
    next_try_at: datetime
    failures: int
    """Unsuccessful tries in a row."""


class HeldLine(NamedTuple):
    """A line that is held."""

    line_id: int
    since: datetime
    published_since: datetime | None
    """`since` of what publishers have published; None if only events of the broker's own hold it."""
    tls_since: datetime | None
    """The same of those of which TLS failed, for example for an expired certificate."""


class Diversion(NamedTuple):
    """A subscription whose endpoint hangs, so that its deliveries wait behind its subscriber's retry line (5.10)."""

    subscription_id: int
    diverted_since: datetime
    next_probe_at: datetime | None
    """When the retry line tries it next; None: within a second or two."""


@dataclass(frozen=True, slots=True)
class LineStatus:
    """The status of one line."""

    state: LineState
    holds: Sequence[LineHold]
    """Oldest first, up to `MAX_HOLDS`."""
    waiting: int
    """Unfinished deliveries, or a QUEUE sender's groups, counted to `MAX_COUNTED`."""
    deferred: int
    """Those that failed before and are tried again, counted alike."""
    deferred_due_at: datetime | None
    """When the next deferred one is due; None if none can be sent."""
    awaiting_release: int = 0
    """HELD ones, counted alike."""
    delayed: int = 0
    """Ones with a `not_before` to come, counted alike."""

    @property
    def hold(self) -> LineHold | None:
        """The oldest hold."""
        return next(iter(self.holds), None)


class _LineFacts(NamedTuple):
    """The columns of the statements, for any lane."""

    is_running: bool
    is_sendable: bool
    is_paused: bool
    fresh: int
    aside: int
    delayed: int
    awaiting_release: int
    aside_due_at: datetime | None
    is_diverted: bool = False
    """Whether something waits whose endpoint hangs; of a main line."""


def line_statuses(line_ids: Sequence[int]) -> dict[int, LineStatus]:
    """Return the status of each line, with a query for holds, one for subscribers and one for each other lane."""
    holds: dict[int, list[LineHold]] = defaultdict(list)
    for line_id, *columns in rows(OLDEST_HOLDS, [[*line_ids]]):
        holds[line_id].append(LineHold(*columns))
    found: dict[int, LineStatus] = {}
    for statement in (LINE_STATUS, SENDER_STATUS, CALLBACK_STATUS):
        if missing := [line_id for line_id in line_ids if line_id not in found]:
            for line_id, *columns in rows(statement, [missing]):
                found[line_id] = _status(_LineFacts(*columns), tuple(holds[line_id]))
    return found


def held_lines() -> list[HeldLine]:
    """Return the lines that are held, the longest held first."""
    return [HeldLine(*columns) for columns in rows(HELD)]


def retry_lines_with_work() -> list[int]:
    """Return the retry lines in which something waits or is in flight."""
    return [line_id for (line_id,) in rows(RETRY_LINES)]


def diversions_of(subscriber_id: int) -> list[Diversion]:
    """Return the subscriber's diverted subscriptions, the longest diverted first."""
    return [Diversion(*row) for row in rows(DIVERSIONS, [subscriber_id])]


def unfinished_of(subscription_ids: Sequence[int]) -> int:
    """Return the number of unfinished deliveries of the subscriptions, counted to `MAX_COUNTED`."""
    ((number,),) = rows(UNFINISHED, [[*subscription_ids]])
    return int(number)


def _status(found: _LineFacts, holds: Sequence[LineHold]) -> LineStatus:
    waiting = min(found.fresh + found.aside + found.delayed + found.awaiting_release, MAX_COUNTED)
    states = {
        LineState.HELD: bool(holds),
        LineState.SENDING: found.is_running,
        LineState.WAITING: found.is_sendable,
        LineState.DIVERTED: found.is_diverted,
        LineState.DEFERRED: found.aside_due_at is not None,
        LineState.PAUSED: found.is_paused,
        LineState.AWAITING_RELEASE: 0 < waiting == found.awaiting_release,
        LineState.DELAYED: 0 < waiting == min(found.delayed + found.awaiting_release, MAX_COUNTED),
        LineState.INACTIVE: waiting > 0,
        LineState.IDLE: True,
    }
    return LineStatus(
        state=next(state for state, applies in states.items() if applies),
        holds=holds,
        waiting=waiting,
        deferred=found.aside,
        deferred_due_at=found.aside_due_at,
        awaiting_release=found.awaiting_release,
        delayed=found.delayed,
    )
