"""What one turn waits for."""

import threading
import time
from collections.abc import Iterable


class Run:
    """What one turn waits for: until its lines have stopped or have nothing to send, or its time is up."""

    def __init__(self, line_ids: Iterable[int], seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self._busy = set(line_ids)
        self._unfinished: list[int] = []
        self._is_left = False
        self._none_is_busy = threading.Event()
        self._lock = threading.Lock()
        if not self._busy:
            self._none_is_busy.set()

    def idle(self, line_id: int) -> None:
        """Note that a line has nothing to send for now: it stays with its driver a little, but nobody waits for it."""
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
        # A little beyond the time box: lines that stop at its end are then still this run's.
        self._none_is_busy.wait(max(0.0, self.until - time.monotonic()) + 0.05)
        with self._lock:
            self._is_left = True
            return self._unfinished

    def _rests(self, line_id: int) -> None:
        self._busy.discard(line_id)
        if not self._busy:
            self._none_is_busy.set()
