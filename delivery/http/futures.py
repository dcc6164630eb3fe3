"""The loop behind SYNC calls: requests and scripts for other threads, which get a future each."""

import threading
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Any, Final

import structlog

from broker_project.core.egress import EgressPolicy
from delivery.http.client import HttpClient
from delivery.http.transfer import Answer, EncodedRequest, RequestNotCompleted
from subscriptions.scripting.jobs import Job, Lost, Result
from subscriptions.scripting.runner import ScriptRunner

IDLE_SECONDS: Final = 1.0
STOP_SECONDS: Final = 5.0

Wanted = EncodedRequest | Job

log = structlog.get_logger(__name__)


class CallLoop(threading.Thread):
    """Asks endpoints and runs scripts for any number of threads; what fails fails its own call only."""

    def __init__(self, *, egress: EgressPolicy, deadline_seconds: float, max_answer_bytes: int) -> None:
        super().__init__(name="calls", daemon=True)
        self._egress = egress
        self._deadline_seconds = deadline_seconds
        self._max_answer_bytes = max_answer_bytes
        self._lock = threading.Lock()
        """Of the inbox, and of the client, whose bell is rung by others."""
        self._inbox: list[tuple[Wanted, Future[Any]]] = []
        self._in_flight: dict[Future[Any], Wanted] = {}
        self._stopping = False
        self._client, self._scripts = self._new_loop()

    def take(self, wanted: Wanted) -> Future[Any]:
        """Send a request or run a script; the future brings an `Answer` or a `Result`, never an exception."""
        future: Future[Any] = Future()
        with self._lock:
            if self._stopping:
                future.set_result(nothing(wanted, "the broker is stopping", was_sent=False))
            else:
                self._inbox.append((wanted, future))
                self._client.interrupt()
        return future

    def stop(self) -> None:
        """Stop waiting: what is in flight has no answer."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._client.interrupt()
        self.join(STOP_SECONDS)

    def run(self) -> None:
        """Go round until stopped; after a fault of its own, start over with a new client."""
        while not self._stopping:
            try:
                self._round()
            except Exception:
                log.exception("caller.failed")
                broken = self._client, self._scripts
                with self._lock:
                    self._client, self._scripts = self._new_loop()
                for part in broken:
                    part.close()
                self._lose_all()
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

    def _begin(self, wanted: Wanted, future: Future[Any]) -> None:
        try:
            if isinstance(wanted, Job):
                self._scripts.run(future, wanted)
            else:
                self._client.start(future, wanted)
            self._in_flight[future] = wanted
        except Exception:
            log.exception("caller.not_begun")
            future.set_result(nothing(wanted, "the request could not be made", was_sent=False))

    def _end(self, token: Hashable, came: Answer | Result) -> None:
        assert isinstance(token, Future)  # noqa: S101 - the only tokens there are
        del self._in_flight[token]
        token.set_result(came)

    def _new_loop(self) -> tuple[HttpClient, ScriptRunner]:
        client = HttpClient(
            egress=self._egress, deadline_seconds=self._deadline_seconds, max_answer_bytes=self._max_answer_bytes
        )
        scripts = ScriptRunner()
        client.watch_too(scripts.fileno())
        return client, scripts

    def _lose_all(self) -> None:
        """Answer all callers that nothing will come."""
        with self._lock:
            inbox, self._inbox = self._inbox, []
        lost, self._in_flight = self._in_flight, {}
        for future, wanted in lost.items():
            future.set_result(nothing(wanted, "the broker stopped waiting for it", was_sent=True))
        for wanted, future in inbox:
            future.set_result(nothing(wanted, "the broker stopped before it was sent", was_sent=False))


def nothing(wanted: Wanted, reason: str, *, was_sent: bool) -> Answer | Result:
    """Return the result of a request or script that has none."""
    if isinstance(wanted, Job):
        return Lost(reason)
    return Answer(None, 0, b"", b"", 0, RequestNotCompleted(reason, was_sent=was_sent))
