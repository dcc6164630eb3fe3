"""Pausing subscriptions by hand, and letting those that are paused go on (behaviour 1.6).

What is paused qualifies for messages and is not sent them. Its version rises, so what a line has in hand is refused.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, LiteralString

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.models import Replay, ReplayKind, ReplayState
from delivery.pause_statements import END_SUSPENSIONS, PAUSE, RESUME
from subscriptions.models import EventKind, Subscription
from subscriptions.models.pausable import PausedBy

ENDED_BY_HAND: Final = (PausedBy.HAND, PausedBy.POLICY)
"""The pauses that whoever says so ends."""


class NotPausable(Exception):
    """It is not sent anything that could wait."""


class Backfilling(Exception):
    """It is paused until it has all older messages."""


def pause(subscription_ids: Sequence[int], *, reason: str) -> list[int]:
    """Pause those that nobody has paused by hand, and that are not getting older messages; return which."""
    return _turned(PAUSE, "PAUSED", reason, subscription_ids, paused_by=["", str(PausedBy.POLICY)])


def resume(
    subscription_ids: Sequence[int], *, reason: str = "", paused_by: Collection[PausedBy] = ENDED_BY_HAND
) -> list[int]:
    """Let those go on, in order, that were paused so; return which."""
    return _turned(RESUME, "RESUMED", reason, subscription_ids, paused_by=[str(one) for one in paused_by])


def end_suspensions(since: Mapping[int, datetime], *, reason: str) -> list[int]:
    """Let those go on that have been suspended since then; return which.

    Whoever has one of them locked is not waited for: it is left as it is.
    """
    return _turned(END_SUSPENSIONS, "RESUMED", reason, [*since], since=[*since.values()])


def pause_one(subscription_id: int, *, reason: str) -> None:
    """Pause one; that it is paused by hand already is no error.

    Raises:
        NotPausable, Backfilling: it cannot be; the text says why.

    """
    if not pause([subscription_id], reason=reason):
        _refuse(subscription_id)


def resume_one(subscription_id: int, *, reason: str) -> None:
    """Let one go on; that it does is no error.

    Raises:
        NotPausable, Backfilling: it cannot; the text says why.

    """
    if not resume([subscription_id], reason=reason):
        _refuse(subscription_id)


def _turned(
    statement: LiteralString, event: str, reason: str, subscription_ids: Sequence[int], **which: Any
) -> list[int]:
    arguments = {"subscriptions": [*subscription_ids], "event": event, "why": reason, **which}
    with transaction.atomic():
        found = rows(statement, arguments)
        by_queue: dict[str, set[int]] = defaultdict(set)
        for _, queue, line_id in found:
            if line_id:
                by_queue[queue].add(line_id)
        for queue, lines in by_queue.items():
            transaction.on_commit(partial(notify.wake, queue, sorted(lines)), robust=True)
    return sorted({subscription_id for subscription_id, *_ in found})


def _refuse(subscription_id: int) -> None:
    """Raise where it is not as was asked for: it had not to be changed, or cannot be."""
    kind, paused_by = Subscription.objects.values_list("kind", "paused_by").get(pk=subscription_id)
    if kind == EventKind.SYNC:
        raise NotPausable("A SYNC subscription is asked while the publisher waits; inactivate it instead.")
    if paused_by == PausedBy.BACKFILL or (not paused_by and _is_to_be_backfilled(subscription_id)):
        raise Backfilling("It is getting older messages and goes on by itself after them; cancel that, or wait.")


def _is_to_be_backfilled(subscription_id: int) -> bool:
    """Tell whether a backfill of it is still counting: the pause begins once its place is reserved."""
    its = Replay.objects.filter(subscription=subscription_id, kind=ReplayKind.BACKFILL)
    return its.filter(state=ReplayState.COUNTING).exists()
