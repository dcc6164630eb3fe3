"""Asking monitor URLs whether an endpoint works again, without waiting for their answers."""

import atexit
import os
from concurrent.futures import Future
from typing import Any, Final

from requests import Response

from delivery.calls.loop import CallLoop
from delivery.http.header_lines import EncodedRequest
from delivery.http.transfers import RequestNotCompleted
from delivery.webhooks.requests import USER_AGENT

DEADLINE_SECONDS: Final = 5.0
MOST_ANSWER_BYTES: Final = 1
"""Its status is what it says."""
SUCCESS: Final = range(200, 300)


class Monitors:
    """The monitors that a process has asked, and what has come of it; for one thread."""

    def __init__(self) -> None:
        self._loop: CallLoop | None = None
        self._process = 0
        self._asked: dict[int, Future[Any]] = {}
        """By subscription."""

    def ask(self, subscription_id: int, url: str) -> None:
        """Send a GET, unless one to the same subscription's is under way."""
        loop = self._running()
        if subscription_id not in self._asked:
            request = EncodedRequest("GET", url, [f"User-Agent: {USER_AGENT}".encode()], b"")
            self._asked[subscription_id] = loop.take(request)

    def working(self) -> list[int]:
        """Return the subscriptions whose monitors have answered 2xx since; forget all that have been answered."""
        done = [one for one, future in [*self._asked.items()] if future.done()]
        answers = {one: self._asked.pop(one).result().result for one in done}
        return sorted(one for one, answer in answers.items() if _is_fine(answer))

    def _running(self) -> CallLoop:
        """Return the loop of this process: no thread survives a fork."""
        if self._loop is None or self._process != os.getpid() or not self._loop.is_alive():
            self._asked, self._process = {}, os.getpid()
            self._loop = CallLoop(deadline_seconds=DEADLINE_SECONDS, most_answer_bytes=MOST_ANSWER_BYTES)
            self._loop.start()
            atexit.register(self._loop.stop)
        return self._loop


def _is_fine(answer: Response | RequestNotCompleted) -> bool:
    return isinstance(answer, Response) and answer.status_code in SUCCESS
