"""What one turn waits for."""

import threading
import time


class Run:
    """What one turn waits for: its lines, until they have stopped or its time is up."""

    def __init__(self, lines: int, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self._left = lines
        self._unfinished: list[int] = []
        self._is_left = False
        self._all_stopped = threading.Event()
        self._lock = threading.Lock()
        if not lines:
            self._all_stopped.set()

    def stopped(self, line_id: int, *, has_more: bool) -> bool:
        """Note that a line has been let go; say whether the turn will see to what it has left."""
        with self._lock:
            self._left -= 1
            if has_more and not self._is_left:
                self._unfinished.append(line_id)
            if self._left == 0:
                self._all_stopped.set()
            return not self._is_left

    def wait(self) -> list[int]:
        """Wait, leave, and return the lines that have stopped and have more work."""
        # A little beyond the time box: lines that stop at its end are then still this run's.
        self._all_stopped.wait(max(0.0, self.until - time.monotonic()) + 0.05)
        with self._lock:
            self._is_left = True
            return self._unfinished
