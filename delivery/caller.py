"""Requests and scripts for threads that wait for what comes of them: one event loop in a thread of its own."""

import atexit
import os
import threading
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

import structlog
from requests import PreparedRequest

from delivery.call_failures import TooManyCalls
from delivery.http_client import HttpClient
from delivery.transfers import Answer, RequestNotCompleted
from subscriptions.scripts.jobs import Job, Lost, Result
from subscriptions.scripts.runner import ScriptRunner

MOST_WAITING: Final = 64
"""Calls of a process: its other threads are for publishing, which must not wait behind endpoints."""
IDLE_SECONDS: Final = 1.0
STOP_SECONDS: Final = 5.0
SPARE_SECONDS: Final = 5.0
"""Beyond the deadline nobody waits longer, whatever has become of the caller."""

Wanted = PreparedRequest | Job

log = structlog.get_logger(__name__)


class Caller(threading.Thread):
    """Asks endpoints and runs scripts for any number of threads; what fails fails its own call only."""

    def __init__(self, *, deadline_seconds: float, most_answer_bytes: int) -> None:
        super().__init__(name="caller", daemon=True)
        self.most_answer_bytes = most_answer_bytes
        self._deadline_seconds = deadline_seconds
        self._places = threading.BoundedSemaphore(MOST_WAITING)
        self._lock = threading.Lock()
        """Of the inbox, and of the client, whose bell is rung by others."""
        self._inbox: list[tuple[Wanted, Future[Any]]] = []
        self._under_way: dict[Future[Any], Wanted] = {}
        self._stopping = False
        self._client, self._scripts = self._new_loop()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Be one of those that wait.

        Raises:
            TooManyCalls: there are as many as may be.

        """
        if not self._places.acquire(blocking=False):
            raise TooManyCalls(f"{MOST_WAITING} calls are waiting for their endpoints already; try again.")
        try:
            yield
        finally:
            self._places.release()

    def ask(self, request: PreparedRequest) -> Answer:
        """Send a request and return what came back, or that nothing did; waits at most for the deadline."""
        answer: Answer = self._take(request)
        return answer

    def run_script(self, job: Job) -> Result:
        """Run a script and return what came of it."""
        result: Result = self._take(job)
        return result

    def stop(self) -> None:
        """Wait for nothing any more: what is under way has no answer."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._client.interrupt()
        self.join(STOP_SECONDS)

    def run(self) -> None:
        """Go round until stopped; after a fault of its own, begin anew."""
        while not self._stopping:
            try:
                self._round()
            except Exception:
                log.exception("caller.failed")
                self._begin_anew()
        self._client.close()
        self._scripts.close()
        self._lose_all()

    def _round(self) -> None:
        with self._lock:
            new, self._inbox = self._inbox, []
        for wanted, future in new:
            self._begin(wanted, future)
        patience = self._scripts.patience()
        answers = self._client.wait(IDLE_SECONDS if patience is None else min(IDLE_SECONDS, patience))
        for answer in answers:
            self._end(answer.token, answer)
        for token, result in self._scripts.finished():
            self._end(token, result)

    def _take(self, wanted: Wanted) -> Any:
        future: Future[Any] = Future()
        with self._lock:
            if self._stopping:
                return _nothing(wanted, "the broker is stopping", was_sent=False)
            self._inbox.append((wanted, future))
            self._client.interrupt()
        try:
            return future.result(self._deadline_seconds + SPARE_SECONDS)
        except TimeoutError:
            return _nothing(wanted, "the broker has lost sight of the call", was_sent=True)

    def _begin(self, wanted: Wanted, future: Future[Any]) -> None:
        try:
            if isinstance(wanted, Job):
                self._scripts.run(future, wanted)
            else:
                self._client.start(future, wanted)
            self._under_way[future] = wanted
        except Exception:
            log.exception("caller.not_begun")
            future.set_result(_nothing(wanted, "the request could not be made", was_sent=False))

    def _end(self, token: Hashable, came: Answer | Result) -> None:
        assert isinstance(token, Future)  # noqa: S101 - the only tokens there are
        del self._under_way[token]
        token.set_result(came)

    def _new_loop(self) -> tuple[HttpClient, ScriptRunner]:
        client = HttpClient(deadline_seconds=self._deadline_seconds, most_answer_bytes=self.most_answer_bytes + 1)
        scripts = ScriptRunner()
        client.watch_too(scripts.fileno())
        return client, scripts

    def _begin_anew(self) -> None:
        broken = self._client, self._scripts
        with self._lock:
            self._client, self._scripts = self._new_loop()
        for one in broken:
            one.close()
        self._lose_all()

    def _lose_all(self) -> None:
        """Tell all who wait that nothing will come."""
        with self._lock:
            inbox, self._inbox = self._inbox, []
        lost, self._under_way = self._under_way, {}
        for future, wanted in lost.items():
            future.set_result(_nothing(wanted, "the broker stopped waiting for it", was_sent=True))
        for wanted, future in inbox:
            future.set_result(_nothing(wanted, "the broker stopped before it was sent", was_sent=False))


def _nothing(wanted: Wanted, reason: str, *, was_sent: bool) -> Answer | Result:
    """Return what came of something that nothing came of."""
    if isinstance(wanted, Job):
        return Lost(reason)
    return Answer(None, RequestNotCompleted(reason, was_sent=was_sent), b"", 0)


_callers: dict[tuple[int, float, int], Caller] = {}
_start_lock: Final = threading.Lock()


def running_caller(*, deadline_seconds: float, most_answer_bytes: int) -> Caller:
    """Return this process's caller; started when first asked for, since no thread survives a fork."""
    key = (os.getpid(), deadline_seconds, most_answer_bytes)
    with _start_lock:
        if key not in _callers or not _callers[key].is_alive():
            caller = _callers[key] = Caller(deadline_seconds=deadline_seconds, most_answer_bytes=most_answer_bytes)
            caller.start()
            atexit.register(caller.stop)
        return _callers[key]
