"""Asking endpoints and running scripts from threads that wait for what comes of it."""

import atexit
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from requests import PreparedRequest

from broker_project.core.egress import EgressPolicy
from delivery.http.futures import CallLoop, Wanted, nothing
from delivery.http.transfer import Answer
from delivery.sync.answer import TooManyCalls
from subscriptions.scripting.jobs import Job, Result

MAX_WAITING: Final = 64
"""Calls of a process: its other threads are for publishing, which must not wait behind endpoints."""
MAX_WAITING_PER_OWNER: Final = 16
"""Of those, for the same subscription: one that hangs leaves the others their places."""
AT_ONCE_SECONDS: Final = 0.005
"""What is answered sooner keeps its database connection: to give that back and take it again costs a third of it."""
SPARE_SECONDS: Final = 5.0
"""Beyond the deadline nobody waits longer, whatever has become of the loop."""


class Caller:
    """A process's calls: each in the thread of whoever waits for it, so many at a time."""

    def __init__(
        self, *, egress: EgressPolicy, deadline_seconds: float, max_answer_bytes: int, max_waiting: int = MAX_WAITING
    ) -> None:
        self.max_answer_bytes = max_answer_bytes
        self._most_waiting = max_waiting
        self._patience = deadline_seconds + SPARE_SECONDS
        self._waiting: Counter[int] = Counter()
        self._waiting_lock = threading.Lock()
        # A byte more than an answer may have tells the one that has too many.
        self.loop = CallLoop(egress=egress, deadline_seconds=deadline_seconds, max_answer_bytes=max_answer_bytes + 1)
        self.loop.start()

    @contextmanager
    def place(self, subscription_id: int) -> Iterator[None]:
        """Be one of those that wait, for this subscription.

        Raises:
            TooManyCalls: there are as many as may be, of all or of its own.

        """
        with self._waiting_lock:
            _check_room(self._waiting.total(), self._most_waiting, "their endpoints")
            _check_room(self._waiting[subscription_id], MAX_WAITING_PER_OWNER, f"subscription {subscription_id}")
            self._waiting[subscription_id] += 1
        try:
            yield
        finally:
            with self._waiting_lock:
                self._waiting[subscription_id] -= 1
                self._waiting += Counter()  # forgets those that nobody waits for

    def ask(self, request: PreparedRequest, *, before_waiting: Callable[[], object]) -> Answer:
        """Send a request and return what came back, or that nothing did; waits at most for the deadline.

        `before_waiting` is called once unless the answer comes at once.
        """
        answer: Answer = self._take(request, before_waiting)
        return answer

    def run_script(self, job: Job, *, before_waiting: Callable[[], object]) -> Result:
        """Run a script and return what came of it, as `ask` does."""
        result: Result = self._take(job, before_waiting)
        return result

    def _take(self, wanted: Wanted, before_waiting: Callable[[], object]) -> Any:
        future = self.loop.take(wanted)
        with suppress(TimeoutError):
            return future.result(AT_ONCE_SECONDS)
        before_waiting()
        with suppress(TimeoutError):
            return future.result(self._patience)
        return nothing(wanted, "the broker has lost sight of the call", was_sent=True)


def _check_room(waiting: int, most: int, what: str) -> None:
    if waiting >= most:
        raise TooManyCalls(f"{most} calls are waiting for {what} in this process already; try again.")


_callers: dict[tuple[int, EgressPolicy, float, int, int], Caller] = {}
_start_lock: Final = threading.Lock()


def running_caller(
    *, egress: EgressPolicy, deadline_seconds: float, max_answer_bytes: int, max_waiting: int = MAX_WAITING
) -> Caller:
    """Return this process's caller; made when first asked for, since no thread survives a fork."""
    key = (os.getpid(), egress, deadline_seconds, max_answer_bytes, max_waiting)
    with _start_lock:
        if key not in _callers or not _callers[key].loop.is_alive():
            caller = Caller(
                egress=egress,
                deadline_seconds=deadline_seconds,
                max_answer_bytes=max_answer_bytes,
                max_waiting=max_waiting,
            )
            _callers[key] = caller
            atexit.register(caller.loop.stop)
        return _callers[key]
