"""The values that pass between a line, its turn and the event loop."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from delivery.http.transfer import Answer
from delivery.webhook.parts import Outgoing
from delivery.worker.settlements import Settlement, Withheld
from subscriptions.scripting.jobs import Result

Ended = Settlement | Withheld
"""What has come of a delivery: of its request, or of its script where that brought nothing to send."""

STILL_SECONDS: Final = 0.1
"""After so long without an answer to any of its lines nobody waits for them: a turn must not keep one of the few
threads from the turns of others because an endpoint hangs."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Settle what has ended, then wait until this one's subscription may be sent again (contract 1.4)."""

    ended: Ended | None
    delivery: Outgoing
    seconds: float


@dataclass(frozen=True, slots=True)
class Transform:
    """Settle what has ended, then run this one's script."""

    ended: Ended | None
    delivery: Outgoing


@dataclass(frozen=True, slots=True)
class Send:
    """Settle what has ended, then mark and send this."""

    ended: Ended | None
    delivery: Outgoing


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
    config_version: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Settle what has ended, then let the line go, if its other slots rest too."""

    ended: Ended | None


Step = Wait | Transform | Send | Read | Rest


@dataclass(frozen=True, slots=True)
class RequestSent:
    """A request that was started, and its answer."""

    answer: Answer
    started_at: datetime


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The delivery may not be sent any more as it was read: read the page anew."""


Reply = RequestSent | NotStarted | Result | None
"""None answers a `Read`: the line has its new buffer, a `Wait`, and a `Rest` whose slot is called; a script's result
answers a `Transform`."""


class Turn:
    """What one turn waits for: its lines to have stopped or to have nothing to send, within its time.

    It leaves them with their event_loop sooner where none of them gets an answer.
    """

    def __init__(self, line_ids: Iterable[int], seconds: float) -> None:
        self.moved_at = time.monotonic()
        """When one of its lines last got an answer; written by the event_loop."""
        self.until = self.moved_at + seconds
        self._busy = set(line_ids)
        self._unfinished: list[int] = []
        self._is_left = False
        self._none_is_busy = threading.Event()
        self._lock = threading.Lock()
        if not self._busy:
            self._none_is_busy.set()

    def idle(self, line_id: int) -> None:
        """Note that a line has nothing to send for now: it stays in the event loop a little, but its turn may end."""
        with self._lock:
            self._rests(line_id)

    def stopped(self, line_id: int, *, has_more: bool) -> bool:
        """Note that a line has been let go; say whether the turn will see to what it has left."""
        with self._lock:
            if has_more and not self._is_left:
                self._unfinished.append(line_id)
            self._rests(line_id)
            return not self._is_left

    def wait(self) -> list[int]:
        """Wait, leave, and return the lines that have stopped and have more work."""
        while not self._none_is_busy.wait(self._patience()) and self._patience():
            pass  # one of them got an answer meanwhile
        with self._lock:
            self._is_left = True
            return self._unfinished

    def _patience(self) -> float:
        # A little beyond the time box: lines that stop at its end are then still this run's.
        end = min(self.until + 0.05, self.moved_at + STILL_SECONDS)
        return max(0.0, end - time.monotonic())

    def _rests(self, line_id: int) -> None:
        self._busy.discard(line_id)
        if not self._busy:
            self._none_is_busy.set()
