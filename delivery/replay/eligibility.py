"""What can be sent again by hand, and why something cannot (contract 5.8)."""

from dataclasses import dataclass
from typing import Final

from delivery.statuses import DEAD, UNFINISHED, DeliveryStatus

RESUBMITTABLE: Final = DEAD - {DeliveryStatus.CANCELLED}
"""Nobody took it, and nobody ended it by hand."""

REPLAYABLE: Final = DEAD | {DeliveryStatus.DELIVERED}
"""What has ended for itself: what is REDUNDANT was another's to take."""

ASYNCHRONOUS: Final = frozenset({"TOPIC", "QUEUE"})


class NotBegun(Exception):
    """A backfill that cannot be; the text says why."""


class NotNew(NotBegun):
    """The subscription has been sent something: what it has missed since is not before it."""


class NotInactive(NotBegun):
    """The subscription gets what is published already, or its subscriber gets nothing."""


class StillPaused(NotBegun):
    """Somebody has paused the subscription, which a backfill would end."""


class NotBackfilled(NotBegun):
    """Only subscriptions to TOPIC event types have something to be filled with."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A delivery as whoever wants it sent again finds it."""

    status: DeliveryStatus
    kind: str | None
    """Its subscription's event type's; None: that has been deleted."""
    is_reply: bool = False
    """Whether it is the reply to a callback, which has no subscription."""
    is_active: bool = True
    """Whether its subscription and subscriber are ACTIVE."""
    is_group_open: bool = False
    """Whether its QUEUE group still looks for somebody who takes the message."""
    is_taken: bool = False
    """Whether another of its QUEUE group has taken the message."""


def why_not(sent: Sent) -> str | None:
    """Return why a delivery cannot be resubmitted, and what can be done instead; None if it can."""
    return _why_not_ever(sent) or _why_not_now(sent)


def _why_not_ever(sent: Sent) -> str | None:
    if sent.is_reply:
        return "It is the reply to a callback, which its publisher's address was to get once."
    if sent.kind is None:
        return "Its subscription has been deleted."
    if sent.kind not in ASYNCHRONOUS:
        return "It was a synchronous request: whoever sent it has had the answer. Publish it again."
    return None


def _why_not_now(sent: Sent) -> str | None:
    if sent.status == DeliveryStatus.HELD:
        return "It is HELD: release it instead."
    if sent.status in UNFINISHED:
        return f"It is {sent.status}, and will be sent. Wait for that, or cancel all that its subscription has waiting."
    if sent.status not in RESUBMITTABLE:
        return f"It is {sent.status}: a replay sends it again." if sent.status in REPLAYABLE else _OF_ANOTHER
    if sent.is_group_open:
        return "Others of its group are still to be asked; wait until one has taken the message or none has."
    if sent.is_taken:
        return _OF_ANOTHER
    return None if sent.is_active else "Its subscription or subscriber is INACTIVE: activate that first."


_OF_ANOTHER: Final = "Another endpoint of its group took the message."
