"""What a line wants next, and what it is told: the words between a line's generator and its driver.

The generator yields what it wants, `Send` or `Read`, and is sent what came of it; when it returns a `Rest`, the line is
let go. What has ended is settled with whatever the line wants next, before its next request is sent.
"""

from dataclasses import dataclass
from datetime import datetime

from delivery.hands import InHand
from delivery.settlements import Settlement
from delivery.transfers import Answer


@dataclass(frozen=True, slots=True)
class Send:
    """Settle what has ended, then mark and send this."""

    ended: Settlement | None
    delivery: InHand


@dataclass(frozen=True, slots=True)
class Read:
    """Settle what has ended, then read a page."""

    ended: Settlement | None
    linger: bool = False
    """Whether to wait a moment first: there was nothing to send the last time."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a line waits, and how long."""

    pause: float
    reason: str
    stamp: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Settle what has ended, then let the line go."""

    ended: Settlement | None
    hold: Hold | None = None


Step = Send | Read | Rest


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was started, and its answer."""

    answer: Answer
    started_at: datetime


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The delivery may not be sent any more as it was read: read the page anew."""


Reply = Sent | NotStarted | None
"""None answers a `Read`: the line has its new hand."""
