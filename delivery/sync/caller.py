"""Send requests and run scripts from threads that wait for the result."""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from broker_project.core.db import give_connection_back
from broker_project.core.egress import EgressPolicy
from broker_project.core.fair_share import FairShare
from delivery.http.futures import CallLoop, Wanted, nothing
from delivery.sync.answer import TooManyCalls

MAX_CALLS: Final = 64
"""In a web process, each in one of its threads: the others are for publishing, which must not wait for endpoints."""
PART_OF_ONE: Final = 4
"""One subscription has a fourth of the calls: a hanging endpoint leaves room for others."""
MIN_CALLS_OF_ONE: Final = 4
"""One subscription may have this many, also where few may wait."""
AT_ONCE_SECONDS: Final = 0.005
"""A call that is answered sooner keeps its database connection: giving it back costs a third of such a call."""
SPARE_SECONDS: Final = 5.0
"""How long a thread waits beyond the deadline for the loop, at most."""


def max_calls(threads: int) -> int:
    """Return how many of a web process's requests may be waiting calls: half, but at least one."""
    return max(1, min(MAX_CALLS, threads // 2))


class Caller:
    """A process's calls, each in the thread that waits for it."""

    def __init__(self, egress: EgressPolicy, deadline_seconds: float, max_answer_bytes: int, max_waiting: int) -> None:
        self.max_answer_bytes = max_answer_bytes
        self._max_waiting = max_waiting
        self._max_of_one = max(MIN_CALLS_OF_ONE, max_waiting // PART_OF_ONE)
        self._slots = FairShare(max_waiting, self._max_of_one)
        self._max_wait_seconds = deadline_seconds + SPARE_SECONDS
        # One more byte than an answer may have shows that it has too many.
        self.loop = CallLoop(egress=egress, deadline_seconds=deadline_seconds, max_answer_bytes=max_answer_bytes + 1)
        self.loop.start()

    @contextmanager
    def slot(self, subscription_id: int) -> Iterator[None]:
        """Take a place among the calls that may wait; raise `TooManyCalls` if none is left for this subscription."""
        if not self._slots.take(subscription_id):
            limit, what = self._max_of_one, f"subscription {subscription_id}"
            if self._slots.is_full:
                limit, what = self._max_waiting, "their endpoints"
            raise TooManyCalls(f"{limit} calls are waiting for {what} in this process already; try again.")
        try:
            yield
        finally:
            self._slots.give_back(subscription_id)

    def ask(self, wanted: Wanted) -> Any:
        """Send a request or run a script; return the `Answer` or `Result`, even if it is only that nothing came.

        Unless the answer comes at once, the thread's database connection is given back while it waits.
        """
        future = self.loop.take(wanted)
        with suppress(TimeoutError):
            return future.result(AT_ONCE_SECONDS)
        give_connection_back()
        with suppress(TimeoutError):
            return future.result(self._max_wait_seconds)
        return nothing(wanted, "the broker has lost sight of the call", was_sent=True)


_callers: dict[tuple[int, EgressPolicy, float, int, int], Caller] = {}
_start_lock: Final = threading.Lock()


def get_caller(*, egress: EgressPolicy, deadline_seconds: float, max_answer_bytes: int, max_waiting: int) -> Caller:
    """Return this process's caller with these limits; started when first asked for: threads do not survive a fork."""
    limits = (egress, deadline_seconds, max_answer_bytes, max_waiting)
    key = (os.getpid(), *limits)
    with _start_lock:
        if key not in _callers or not _callers[key].loop.is_alive():
            _callers[key] = Caller(*limits)
            atexit.register(_callers[key].loop.stop)
        return _callers[key]
