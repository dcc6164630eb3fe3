"""How lines stand: what waits in them, what is deferred and until when, and whether a hold still counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString, NamedTuple

from django.db.models.enums import TextChoices

from broker_project.core.db import rows
from delivery.due_times import ACTIVE, DUE_LATER, FIRST_SENTINEL, RELEASED

MAX_COUNTED: Final = 1000
"""Deliveries are counted no further: a backlog of a million must cost no more to look at."""


FRESH: Final = "due_at IS NULL ORDER BY id"
LATER: Final = f"due_at < {FIRST_SENTINEL} ORDER BY due_at, id"
DELAYED: Final = f"due_at = {DUE_LATER} ORDER BY id"
PARKED: Final = f"due_at = {ACTIVE} ORDER BY id"
AWAITING_RELEASE: Final = f"due_at = {RELEASED} ORDER BY id"
NOT_HELD: Final = f"due_at < {RELEASED} ORDER BY due_at, id"

IN_LINE: Final = "s.kind = 'TOPIC' AND s.delivery_mode = 'PUSH'"
"""What waits in a mailbox is in no line (contract 9.1)."""
SENT_BY_IT: Final = "s.is_sending AND (l.lane = 'main' OR NOT s.half_open)"
"""A subscription on trial is tried by the main line alone."""

HOLD_COUNTS: Final = """
  (l.held_since IS NOT NULL AND l.due_at IS NOT NULL AND EXISTS (
     SELECT FROM delivery_open h LEFT JOIN subscriptions_subscription s ON s.id = h.subscription_id
       LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
      WHERE h.id = l.head_id AND h.closed_on = '9999-12-31' AND h.status IN ('PENDING', 'IN_FLIGHT')
        AND (h.subscription_id IS NULL OR s.is_sending AND NOT s.half_open AND u.status = 'ACTIVE')))
"""
"""A line is held only for a head that can be sent: one cancelled, paused or inactivated meanwhile holds nothing up.

Nor does one that a suspended subscription is tried with.
"""

HELD: Final = f"SELECT l.id FROM delivery_line l WHERE {HOLD_COUNTS}"


def _waiting(which: LiteralString) -> LiteralString:
    """Return where deliveries of line `l` are that are due so, those that are counted."""
    return f"""(
     SELECT FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open WHERE subscription_id = s.id AND line_id = l.id AND {which} LIMIT {MAX_COUNTED}) d
      WHERE s.subscriber_id = l.subscriber_id AND {IN_LINE} LIMIT {MAX_COUNTED})"""


STANDINGS: Final = f"""
WITH asked AS (
  SELECT l.*, u.status = 'ACTIVE' AS is_active
    FROM delivery_line l JOIN subscriptions_subscriber u ON u.id = l.subscriber_id WHERE l.id = ANY(%s))
SELECT l.id, {HOLD_COUNTS}, COALESCE(l.lease_until > clock_timestamp(), false),
       l.is_active AND (fresh.sendable OR COALESCE(next.due_at <= clock_timestamp(), false)),
       l.is_active AND paused.is_waiting,
       fresh.number, aside.number, delayed.number, held.number, next.due_at, l.held_since, l.held_reason, l.due_at
  FROM asked l
 CROSS JOIN LATERAL (
   SELECT count(*) AS number, COALESCE(bool_or(f.is_sending), false) AS sendable FROM (
     SELECT s.is_sending FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at IS NULL
        ORDER BY d.id LIMIT {MAX_COUNTED}) d
      WHERE s.subscriber_id = l.subscriber_id AND {IN_LINE} AND l.lane = 'main'
      ORDER BY s.is_sending DESC LIMIT {MAX_COUNTED}) f) fresh
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_waiting(LATER)} a) aside
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_waiting(DELAYED)} y) delayed
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_waiting(AWAITING_RELEASE)} h) held
 CROSS JOIN LATERAL (
   SELECT min(d.due_at) AS due_at FROM subscriptions_subscription s CROSS JOIN LATERAL (
     SELECT d.due_at FROM delivery_open d
      WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at < {FIRST_SENTINEL} ORDER BY d.due_at LIMIT 1) d
    WHERE s.subscriber_id = l.subscriber_id AND s.kind = 'TOPIC' AND {SENT_BY_IT} AND l.is_active) next
 CROSS JOIN LATERAL (
   SELECT count(*) > 0 AS is_waiting FROM (
     SELECT FROM subscriptions_subscription s CROSS JOIN LATERAL (
       (SELECT FROM delivery_open
         WHERE l.lane = 'main' AND subscription_id = s.id AND line_id = l.id AND {FRESH} LIMIT 1)
       UNION ALL
       (SELECT FROM delivery_open WHERE subscription_id = s.id AND line_id = l.id AND {NOT_HELD} LIMIT 1)) d
      WHERE s.subscriber_id = l.subscriber_id AND {IN_LINE} AND s.status = 'ACTIVE' AND NOT ({SENT_BY_IT})
      LIMIT 1) p) paused
"""
"""Subscriptions that are sent sort first, so that what can be sent is seen however much waits that cannot.

Deliveries are sorted, although any will do: else the planner may look for them from the table's beginning on.
"""

APART: Final = """
WITH RECURSIVE apart AS (
  (SELECT subscription_id, line_id FROM delivery_open
    WHERE due_at IS NOT NULL ORDER BY subscription_id, line_id LIMIT 1)
  UNION ALL
  SELECT n.* FROM apart a CROSS JOIN LATERAL (
    SELECT d.subscription_id, d.line_id FROM delivery_open d
     WHERE d.due_at IS NOT NULL AND (d.subscription_id, d.line_id) > (a.subscription_id, a.line_id)
     ORDER BY d.subscription_id, d.line_id LIMIT 1) n)
SELECT DISTINCT l.id FROM apart a JOIN delivery_line l ON l.id = a.line_id WHERE l.lane = 'retry'
"""
"""Walks from one line of one subscription to the next, as the sweep does: its cost follows them, not deliveries."""


def _groups(which: LiteralString) -> LiteralString:
    """Return where the groups of line `l` are that are due so, those that are counted."""
    return f"(SELECT due_at, created_at FROM delivery_queuegroup WHERE line_id = l.id AND {which} LIMIT {MAX_COUNTED})"


SENDER_STANDINGS: Final = f"""
SELECT l.id, false, COALESCE(l.lease_until > clock_timestamp(), false),
       fresh.number > 0 OR COALESCE(later.due_at <= clock_timestamp(), false), false,
       fresh.number + parked.number, later.number, 0, held.number, later.due_at,
       NULL::timestamptz, '', NULL::timestamptz
  FROM delivery_line l
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_groups(FRESH)} g) fresh
 CROSS JOIN LATERAL (SELECT count(*) AS number, min(due_at) AS due_at FROM {_groups(LATER)} g) later
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_groups(PARKED)} g) parked
 CROSS JOIN LATERAL (SELECT count(*) AS number FROM {_groups(AWAITING_RELEASE)} g) held
 WHERE l.id = ANY(%s) AND l.lane = 'queue'
"""
"""What a QUEUE sender has are groups."""

CALLBACK_STANDINGS: Final = f"""
SELECT l.id, {HOLD_COUNTS}, COALESCE(l.lease_until > clock_timestamp(), false), d.id IS NOT NULL,
       false, (d.id IS NOT NULL)::int, 0, 0, 0, NULL::timestamptz, l.held_since, l.held_reason, l.due_at
  FROM delivery_line l LEFT JOIN delivery_open d ON d.id = l.head_id AND d.closed_on = '9999-12-31'
 WHERE l.id = ANY(%s) AND l.lane = 'callback'
"""
"""What a callback has is the one reply."""

SENDERS: Final = f"""
SELECT l.sender, l.id, l.queue, l.worker, l.lease_until, LEAST(fresh.oldest, later.oldest), (
         SELECT count(DISTINCT d.id)
           FROM delivery_pageread p CROSS JOIN LATERAL unnest(p.delivery_ids) AS r (id)
          CROSS JOIN LATERAL (SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
          WHERE p.line_id = l.id AND l.lease_until IS NOT NULL AND d.status = 'IN_FLIGHT')
  FROM delivery_line l
 CROSS JOIN LATERAL (SELECT min(created_at) AS oldest FROM {_groups(FRESH)} g) fresh
 CROSS JOIN LATERAL (SELECT min(created_at) AS oldest FROM {_groups(LATER)} g) later
 WHERE l.lane = 'queue' ORDER BY l.sender
"""

UNFINISHED: Final = f"""
SELECT count(*) FROM (
  SELECT FROM unnest(%s::bigint[]) AS s (id) CROSS JOIN LATERAL (
    (SELECT FROM delivery_open WHERE subscription_id = s.id AND due_at IS NULL ORDER BY id LIMIT {MAX_COUNTED})
    UNION ALL
    (SELECT FROM delivery_open WHERE subscription_id = s.id AND due_at IS NOT NULL
      ORDER BY line_id, due_at, id LIMIT {MAX_COUNTED})) d
   LIMIT {MAX_COUNTED}) one
"""


class LineState(TextChoices):
    """What a line is doing."""

    HELD = "HELD"
    """Its head could not be sent; it waits for its endpoint (contract 4.7)."""

    SENDING = "SENDING"
    """A worker drives it."""

    WAITING = "WAITING"
    """Something can be sent, and no worker has taken it yet."""

    DEFERRED = "DEFERRED"
    """All that can be sent has failed before and waits until it is due again (contract 4.6, 5.3)."""

    PAUSED = "PAUSED"
    """Nothing can be sent, and something waits for a subscription that is paused (contract 1.6, 5.6)."""

    AWAITING_RELEASE = "AWAITING_RELEASE"
    """Nothing waits but what is HELD until somebody releases it (contract 3.6)."""

    DELAYED = "DELAYED"
    """Nothing else waits but what is not to be sent yet (contract 2.13)."""

    INACTIVE = "INACTIVE"
    """All else that waits belongs to something inactive, or of a sender paused: it is kept and skipped (1.6, 1.7)."""

    IDLE = "IDLE"
    """Nothing is unfinished."""


@dataclass(frozen=True, slots=True)
class LineHold:
    """Since when a line waits for its endpoint, why, and when it tries again."""

    since: datetime
    reason: str
    next_try_at: datetime


@dataclass(frozen=True, slots=True)
class LineStatus:
    """How one line stands."""

    state: LineState
    hold: LineHold | None
    waiting: int
    """Unfinished deliveries, or a QUEUE sender's groups, `MAX_COUNTED` or more of them if that many."""
    deferred: int
    """Those of them that failed before and are tried again later, counted alike."""
    deferred_due_at: datetime | None
    """When the next one that was set aside is due; None where none of them can be sent."""
    awaiting_release: int = 0
    """Those of the unfinished that are HELD, counted alike."""
    delayed: int = 0
    """Those of them that are not to be sent before a moment of their own, counted alike; groups are `deferred`."""


class _Found(NamedTuple):
    """What the statements tell of a line, whatever its lane."""

    is_held: bool
    is_driven: bool
    is_sendable: bool
    is_paused: bool
    fresh: int
    aside: int
    delayed: int
    awaiting_release: int
    aside_due_at: datetime | None
    held_since: datetime
    held_reason: str
    held_until: datetime


def line_statuses(line_ids: Sequence[int]) -> dict[int, LineStatus]:
    """Return how each of the lines stands, in one query for those of subscribers and one for each other lane."""
    found: dict[int, LineStatus] = {}
    for statement in (STANDINGS, SENDER_STANDINGS, CALLBACK_STANDINGS):
        if missing := [line_id for line_id in line_ids if line_id not in found]:
            found |= {line_id: _standing(_Found(*columns)) for line_id, *columns in rows(statement, [missing])}
    return found


def held_lines() -> list[int]:
    """Return the lines that are held."""
    return [line_id for (line_id,) in rows(HELD)]


def lines_with_some_apart() -> list[int]:
    """Return the retry lines in which something waits, or is under way."""
    return [line_id for (line_id,) in rows(APART)]


def unfinished_of(subscription_ids: Sequence[int]) -> int:
    """Return how many deliveries the subscriptions have unfinished, counted to `MAX_COUNTED`."""
    ((number,),) = rows(UNFINISHED, [[*subscription_ids]])
    return int(number)


def _standing(found: _Found) -> LineStatus:
    waiting = min(found.fresh + found.aside + found.delayed + found.awaiting_release, MAX_COUNTED)
    states = {
        LineState.HELD: found.is_held,
        LineState.SENDING: found.is_driven,
        LineState.WAITING: found.is_sendable,
        LineState.DEFERRED: found.aside_due_at is not None,
        LineState.PAUSED: found.is_paused,
        LineState.AWAITING_RELEASE: 0 < waiting == found.awaiting_release,
        LineState.DELAYED: 0 < waiting == min(found.delayed + found.awaiting_release, MAX_COUNTED),
        LineState.INACTIVE: waiting > 0,
        LineState.IDLE: True,
    }
    return LineStatus(
        state=next(state for state, applies in states.items() if applies),
        hold=LineHold(found.held_since, found.held_reason, found.held_until) if found.is_held else None,
        waiting=waiting,
        deferred=found.aside,
        deferred_due_at=found.aside_due_at,
        awaiting_release=found.awaiting_release,
        delayed=found.delayed,
    )
