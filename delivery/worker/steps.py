"""What a line wants next, and what it is told: the words between a line's generator and its driver.

The generator yields what it wants, `Wait`, `Transform`, `Send` or `Read`, and is sent what came of it; when all of a
line's rest, it is let go. What has ended is settled with whatever the line wants next, before its next request is sent.
"""

from dataclasses import dataclass
from datetime import datetime

from delivery.http.transfer import Answer
from delivery.worker.buffer import InHand
from delivery.worker.settlements import Settlement, Withheld
from subscriptions.scripting.jobs import Result

Ended = Settlement | Withheld
"""What has come of a delivery: of its request, or of its script where that brought nothing to send."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Settle what has ended, then wait until this one's subscription may be sent again (behaviour 1.4)."""

    ended: Ended | None
    delivery: InHand
    seconds: float


@dataclass(frozen=True, slots=True)
class Transform:
    """Settle what has ended, then run this one's script."""

    ended: Ended | None
    delivery: InHand


@dataclass(frozen=True, slots=True)
class Send:
    """Settle what has ended, then mark and send this."""

    ended: Ended | None
    delivery: InHand


@dataclass(frozen=True, slots=True)
class Read:
    """Settle what has ended, then read a page."""

    ended: Ended | None
    linger: bool = False
    """Whether to wait a moment first: there was nothing to send the last time."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a line waits, and how long."""

    pause: float
    reason: str
    """Empty: for nothing but its rate."""
    stamp: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Settle what has ended, then let the line go, if its other strands rest too."""

    ended: Ended | None


Step = Wait | Transform | Send | Read | Rest


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was started, and its answer."""

    answer: Answer
    started_at: datetime


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The delivery may not be sent any more as it was read: read the page anew."""


Reply = Sent | NotStarted | Result | None
"""None answers a `Read`: the line has its new hand, a `Wait`, and a `Rest` whose strand is called; a script's result
answers a `Transform`."""
