"""Cancelling what a subscription has unfinished: an action of its own (behaviour 1.8)."""

from collections.abc import Callable
from time import sleep
from typing import Final, NamedTuple

from django.db import transaction

from broker_project.core.db import rows
from delivery.operations import CANCEL, LOCK_LINES, NEWEST, SLICE
from delivery.worker.outages import LOCKED_SECONDS

BETWEEN_SECONDS: Final = 3 * LOCKED_SECONDS
"""Pause between two slices where somebody drives one of the lines: what has ended there meanwhile is settled in it."""

FROM_THE_FIRST: Final = "-infinity"


class Slice(NamedTuple):
    """What became of some of it."""

    found: int
    """How many were unfinished and had not been asked to end; somebody else may have ended them since."""
    ended: int
    under_way: int
    """Under way, and newly asked to end so."""
    since: str | None
    """From which time-out on the next slice may look at what is handed out; None: there was no more."""
    is_driven: bool
    """Whether somebody drives one of the lines."""


class Cancelled(NamedTuple):
    """What cancelling did."""

    ended: int
    """Ended at once."""
    under_way: int
    """Under way, and newly asked to end so unless their answer ends them otherwise."""
    is_complete: bool
    """Whether nothing waits any more that was unfinished when it began, and what is under way is asked to end."""


def cancel_deliveries_of(subscription_id: int, *, reason: str) -> tuple[int, int]:
    """End every delivery that the subscription has unfinished now as CANCELLED.

    Returns how many ended at once, and how many are under way and end so unless their answer ends them otherwise.
    """
    ended, under_way, _ = cancel_until(lambda: False, subscription_id, reason=reason)
    return ended, under_way


def cancel_until(is_over: Callable[[], bool], subscription_id: int, *, reason: str) -> Cancelled:
    """Do the same until a look at all of it finds nothing, or time is over; one slice of it at least."""
    ((newest,),) = rows(NEWEST)
    ended, under_way, since = 0, 0, FROM_THE_FIRST
    while True:
        with transaction.atomic():
            done = cancel_slice(subscription_id, newest=newest, since=since, reason=reason)
        ended, under_way = ended + done.ended, under_way + done.under_way
        if since == FROM_THE_FIRST and not done.found:
            return Cancelled(ended, under_way, is_complete=True)
        if is_over():
            return Cancelled(ended, under_way, is_complete=False)
        if done.is_driven and done.found >= SLICE:
            sleep(BETWEEN_SECONDS)
        since = done.since or FROM_THE_FIRST


def cancel_slice(subscription_id: int, *, newest: int, reason: str, since: str = FROM_THE_FIRST) -> Slice:
    """End some of what the subscription has unfinished up to that delivery, in the transaction that is open.

    What is under way is asked to end; from the first on, a slice that finds nothing leaves nothing to be done.
    """
    lines = dict(rows(LOCK_LINES, {"subscription": subscription_id}))
    which = {"subscription": subscription_id, "newest": newest, "lines": [*lines], "since": since, "reason": reason}
    ((found, ended, under_way, next_since),) = rows(CANCEL, which)
    return Slice(found, ended, under_way, next_since, is_driven=any(lines.values()))
