"""How lines stand: what waits in them, what was set aside and until when, and whether a hold still counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models.enums import TextChoices

from subscriptions.database import rows

COUNTED_AT_MOST: Final = 1000
"""Deliveries are counted no further: a backlog of a million must cost no more to look at."""

HOLD_COUNTS: Final = """
  (l.held_since IS NOT NULL AND l.due_at IS NOT NULL AND EXISTS (
     SELECT FROM delivery_open h JOIN subscriptions_subscription s ON s.id = h.subscription_id AND s.status = 'ACTIVE'
       JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
      WHERE h.id = l.head_id AND h.closed_on = '9999-12-31' AND h.status IN ('PENDING', 'IN_FLIGHT')))
"""
"""A line is held only for a head that can be sent: one cancelled or inactivated meanwhile holds nothing up."""

HELD: Final = f"SELECT l.id FROM delivery_line l WHERE {HOLD_COUNTS}"

STANDINGS: Final = f"""
WITH asked AS (
  SELECT l.*, u.status = 'ACTIVE' AS is_active
    FROM delivery_line l JOIN subscriptions_subscriber u ON u.id = l.subscriber_id WHERE l.id = ANY(%s))
SELECT l.id, {HOLD_COUNTS}, COALESCE(l.lease_until > clock_timestamp(), false),
       l.is_active AND (fresh.sendable OR COALESCE(next.due_at <= clock_timestamp(), false)),
       fresh.number, aside.number, next.due_at, l.held_since, l.held_reason, l.due_at
  FROM asked l
 CROSS JOIN LATERAL (
   SELECT count(*) AS number, COALESCE(bool_or(f.is_active), false) AS sendable FROM (
     SELECT s.status = 'ACTIVE' AS is_active FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at IS NULL
        ORDER BY d.id LIMIT {COUNTED_AT_MOST}) d
      WHERE s.subscriber_id = l.subscriber_id ORDER BY s.status LIMIT {COUNTED_AT_MOST}) f) fresh
 CROSS JOIN LATERAL (
   SELECT count(*) AS number FROM (
     SELECT FROM subscriptions_subscription s CROSS JOIN LATERAL (
       SELECT FROM delivery_open d WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at IS NOT NULL
        ORDER BY d.due_at, d.id LIMIT {COUNTED_AT_MOST}) d
      WHERE s.subscriber_id = l.subscriber_id LIMIT {COUNTED_AT_MOST}) a) aside
 CROSS JOIN LATERAL (
   SELECT min(d.due_at) AS due_at FROM subscriptions_subscription s CROSS JOIN LATERAL (
     SELECT d.due_at FROM delivery_open d
      WHERE d.subscription_id = s.id AND d.line_id = l.id AND d.due_at IS NOT NULL ORDER BY d.due_at LIMIT 1) d
    WHERE s.subscriber_id = l.subscriber_id AND s.status = 'ACTIVE' AND l.is_active) next
"""
"""Active subscriptions sort first, so that what can be sent is seen however much waits that cannot.

Deliveries are sorted, although any will do: else the planner may look for them from the table's beginning on.
"""

UNFINISHED: Final = f"""
SELECT count(*) FROM (
  SELECT FROM unnest(%s::bigint[]) AS s (id) CROSS JOIN LATERAL (
    (SELECT FROM delivery_open WHERE subscription_id = s.id AND due_at IS NULL ORDER BY id LIMIT {COUNTED_AT_MOST})
    UNION ALL
    (SELECT FROM delivery_open WHERE subscription_id = s.id AND due_at IS NOT NULL
      ORDER BY due_at, id LIMIT {COUNTED_AT_MOST})) d
   LIMIT {COUNTED_AT_MOST}) one
"""


class LineState(TextChoices):
    """What a line is doing."""

    HELD = "HELD"
    """Its head could not be sent; it waits for its endpoint (behaviour 4.7)."""

    SENDING = "SENDING"
    """A worker drives it."""

    WAITING = "WAITING"
    """Something can be sent, and no worker has taken it yet."""

    SET_ASIDE = "SET_ASIDE"
    """All that can be sent has failed before and waits until it is due again (behaviour 4.6)."""

    INACTIVE = "INACTIVE"
    """All that waits belongs to something inactive: it is kept and skipped (behaviour 1.7)."""

    AT_REST = "AT_REST"
    """Nothing is unfinished."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Since when a line waits for its endpoint, why, and when it tries again."""

    since: datetime
    reason: str
    next_try_at: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """How one line stands."""

    state: LineState
    hold: Hold | None
    waiting: int
    """Unfinished deliveries, `COUNTED_AT_MOST` or more of them if that many."""
    set_aside: int
    """Those of them that failed before and are tried again later, counted alike."""
    set_aside_due_at: datetime | None
    """When the next one that was set aside is due; None where none of them can be sent."""


def standings_of(line_ids: Sequence[int]) -> dict[int, Standing]:
    """Return how each of the lines stands, in one query."""
    return {line_id: _standing(*columns) for line_id, *columns in rows(STANDINGS, [[*line_ids]])}


def held_lines() -> list[int]:
    """Return the lines that are held."""
    return [line_id for (line_id,) in rows(HELD)]


def unfinished_of(subscription_ids: Sequence[int]) -> int:
    """Return how many deliveries the subscriptions have unfinished, counted to `COUNTED_AT_MOST`."""
    ((number,),) = rows(UNFINISHED, [[*subscription_ids]])
    return int(number)


def _standing(
    is_held: bool, is_driven: bool, is_sendable: bool, fresh: int, aside: int, aside_due_at: datetime | None, *hold: Any
) -> Standing:
    waiting = min(fresh + aside, COUNTED_AT_MOST)
    states = {
        LineState.HELD: is_held,
        LineState.SENDING: is_driven,
        LineState.WAITING: is_sendable,
        LineState.SET_ASIDE: aside_due_at is not None,
        LineState.INACTIVE: waiting > 0,
        LineState.AT_REST: True,
    }
    return Standing(
        state=next(state for state, applies in states.items() if applies),
        hold=Hold(*hold) if is_held else None,
        waiting=waiting,
        set_aside=aside,
        set_aside_due_at=aside_due_at,
    )
