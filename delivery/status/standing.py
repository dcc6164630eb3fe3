"""How lines stand: what waits in them, what was set aside and until when, and whether a hold still counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db.models.enums import TextChoices

from broker_project.core.db import rows
from delivery.status.line_status import (
    APART,
    CALLBACK_STANDINGS,
    COUNTED_AT_MOST,
    HELD,
    SENDER_STANDINGS,
    STANDINGS,
    UNFINISHED,
)


class LineState(TextChoices):
    """What a line is doing."""

    HELD = "HELD"
    """Its head could not be sent; it waits for its endpoint (behaviour 4.7)."""

    SENDING = "SENDING"
    """A worker drives it."""

    WAITING = "WAITING"
    """Something can be sent, and no worker has taken it yet."""

    DEFERRED = "DEFERRED"
    """All that can be sent has failed before and waits until it is due again (behaviour 4.6, 5.3)."""

    PAUSED = "PAUSED"
    """Nothing can be sent, and something waits for a subscription that is paused (behaviour 1.6, 5.6)."""

    AWAITING_RELEASE = "AWAITING_RELEASE"
    """Nothing waits but what is HELD until somebody releases it (behaviour 3.6)."""

    DELAYED = "DELAYED"
    """Nothing else waits but what is not to be sent yet (behaviour 2.13)."""

    INACTIVE = "INACTIVE"
    """All else that waits belongs to something inactive, or of a sender paused: it is kept and skipped (1.6, 1.7)."""

    IDLE = "IDLE"
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
    """Unfinished deliveries, or a QUEUE sender's groups, `COUNTED_AT_MOST` or more of them if that many."""
    set_aside: int
    """Those of them that failed before and are tried again later, counted alike."""
    set_aside_due_at: datetime | None
    """When the next one that was set aside is due; None where none of them can be sent."""
    awaiting_release: int = 0
    """Those of the unfinished that are HELD, counted alike."""
    delayed: int = 0
    """Those of them that are not to be sent before a moment of their own, counted alike; groups are `set_aside`."""


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


def standings_of(line_ids: Sequence[int]) -> dict[int, Standing]:
    """Return how each of the lines stands, in one query for those of subscribers and one for each other lane."""
    found: dict[int, Standing] = {}
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
    """Return how many deliveries the subscriptions have unfinished, counted to `COUNTED_AT_MOST`."""
    ((number,),) = rows(UNFINISHED, [[*subscription_ids]])
    return int(number)


def _standing(found: _Found) -> Standing:
    waiting = min(found.fresh + found.aside + found.delayed + found.awaiting_release, COUNTED_AT_MOST)
    states = {
        LineState.HELD: found.is_held,
        LineState.SENDING: found.is_driven,
        LineState.WAITING: found.is_sendable,
        LineState.DEFERRED: found.aside_due_at is not None,
        LineState.PAUSED: found.is_paused,
        LineState.AWAITING_RELEASE: 0 < waiting == found.awaiting_release,
        LineState.DELAYED: 0 < waiting == min(found.delayed + found.awaiting_release, COUNTED_AT_MOST),
        LineState.INACTIVE: waiting > 0,
        LineState.IDLE: True,
    }
    return Standing(
        state=next(state for state, applies in states.items() if applies),
        hold=Hold(found.held_since, found.held_reason, found.held_until) if found.is_held else None,
        waiting=waiting,
        set_aside=found.aside,
        set_aside_due_at=found.aside_due_at,
        awaiting_release=found.awaiting_release,
        delayed=found.delayed,
    )
