"""The driver: one thread and one event loop a process, that drives any number of lines side by side."""

import resource
import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from broker_project.core.db import forget_connection
from broker_project.core.reach import Reach
from delivery.callbacks.terms import CallbackTerms
from delivery.dispatch.claim import DEADLINE_SECONDS
from delivery.http.client import HttpClient
from delivery.worker.buffer import BodyBudget
from delivery.worker.event_loop import Rounds
from delivery.worker.line import DrivenLine
from delivery.worker.pacing_ import Paces
from delivery.worker.release import Releaser
from subscriptions.scripting.runner import ScriptRunner

MOST_UNDER_WAY: Final = 4_000
"""Requests a process has under way at once: 54 KB each, and a file."""
MOST_BESIDE: Final = 2_000
"""How many of them are not the first one of their line: what sends several at a time leaves the other lines theirs."""
MOST_BODY_BYTES: Final = 48 * 1024 * 1024
"""Bodies its lines hold at once: with those of volatile messages a process holds 64 MiB (behaviour 11.1)."""

log = structlog.get_logger(__name__)


class Driver(threading.Thread):
    """Drives lines until it is stopped; the only thread that touches its client and its lines."""

    def __init__(
        self,
        *,
        worker: str,
        under_way: int,
        terms: CallbackTerms,
        reach: Reach,
        on_failure: Callable[[], object] = lambda: None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        super().__init__(name="driver", daemon=True)
        self.worker = worker
        self.under_way = under_way
        """Messages that each QUEUE sender has under way at a time."""
        self._on_failure = on_failure
        self._client = HttpClient(reach=reach, deadline_seconds=deadline_seconds)
        self._scripts = ScriptRunner()
        self._client.watch_too(self._scripts.fileno())
        self._releaser = Releaser(on_failure)
        self.budget = BodyBudget(MOST_BODY_BYTES)
        self.paces = Paces()
        self.lines = Rounds(self._client, self._releaser, self.budget, self._scripts, terms)
        self._inbox: list[DrivenLine] = []
        self._inbox_lock = threading.Lock()
        self._stopping = threading.Event()

    def take(self, lines: Sequence[DrivenLine]) -> None:
        """Drive these lines from now on; may be called from any thread."""
        with self._inbox_lock:
            self._inbox += lines
        self._client.interrupt()

    def free_places(self) -> int:
        """Return how many more lines may be taken."""
        lines, beside = self._taken()
        return 0 if self._stopping.is_set() else max(0, MOST_UNDER_WAY - lines - beside)

    def free_beside(self) -> int:
        """Return how many more requests lines may have under way at a time beside their first one."""
        _, beside = self._taken()
        return max(0, MOST_BESIDE - beside)

    def _taken(self) -> tuple[int, int]:
        """Return how many lines there are, and for how many requests beside the first one of each."""
        lines = [*self.lines.all(), *self._inbox]
        return len(lines), sum(len(line.strands) - 1 for line in lines)

    def stop(self, seconds: float) -> bool:
        """Start nothing new, settle what is under way and let every line go; say whether that was done in time."""
        self._stopping.set()
        self._client.interrupt()
        self.join(seconds)
        return not self.is_alive()

    def run(self) -> None:
        """Go round until stopped and empty, with as many files open as this process may have."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            while not self._stopping.is_set() or self.lines or self._inbox:
                self._round()
        except Exception:
            # A fault of ours: better a new process, which mends these lines, than one that drives half of them.
            log.exception("driver.failed")
            self._on_failure()
            raise
        finally:
            self._releaser.stop()
            self._client.close()
            self._scripts.close()
            forget_connection()

    def _round(self) -> None:
        answers = self._client.wait(self.lines.patience())
        with self._inbox_lock:
            new, self._inbox = self._inbox, []
        self.lines.begin(new)
        if self._stopping.is_set():
            self.lines.stop()  # before they hear of their answers, or they would send once more
        self.lines.answered(answers)
        self.lines.ran(self._scripts.finished())
        self.lines.go()
