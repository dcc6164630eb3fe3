"""Asking monitor URLs whether an endpoint works again, without waiting for their answers."""

import atexit
import os
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Final, NamedTuple

from requests import Response

from broker_project.core.reach import Reach
from delivery.http.futures import CallLoop
from delivery.http.headers import EncodedRequest
from delivery.http.transfer import RequestNotCompleted
from delivery.webhook.request import USER_AGENT

DEADLINE_SECONDS: Final = 5.0
MOST_ANSWER_BYTES: Final = 1
"""Its status is what it says."""
SUCCESS: Final = range(200, 300)


class Asked(NamedTuple):
    """A monitor that was asked, and of which pause."""

    answer: Future[Any]
    since: datetime
    """When its subscription was suspended: a later suspension is not ended by what it says."""


class Monitors:
    """The monitors that a process has asked, and what has come of it; for one thread."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._loop: CallLoop | None = None
        self._process = 0
        self._asked: dict[int, Asked] = {}
        """By subscription."""

    def ask(self, subscription_id: int, url: str, since: datetime) -> None:
        """Send a GET, unless one to the same subscription's is under way."""
        loop = self._running()
        before = self._asked.get(subscription_id)
        if before is None or before.answer.done():
            request = EncodedRequest("GET", url, [f"User-Agent: {USER_AGENT}".encode()], b"")
            self._asked[subscription_id] = Asked(loop.take(request), since)

    def working(self) -> dict[int, datetime]:
        """Return the subscriptions whose monitors have answered 2xx, with since when they were suspended.

        Forget the others that have been answered; these are to be forgotten by whoever has let them go on.
        """
        done = {one: asked for one, asked in self._asked.items() if asked.answer.done()}
        working = {one: asked.since for one, asked in done.items() if _is_fine(asked.answer.result().result)}
        self.forget(done.keys() - working)
        return working

    def forget(self, subscription_ids: Iterable[int]) -> None:
        """Forget what came of asking these."""
        for one in subscription_ids:
            self._asked.pop(one, None)

    def _running(self) -> CallLoop:
        """Return the loop of this process: no thread survives a fork."""
        if self._loop is None or self._process != os.getpid() or not self._loop.is_alive():
            self._asked, self._process = {}, os.getpid()
            self._loop = CallLoop(
                reach=self._reach, deadline_seconds=DEADLINE_SECONDS, most_answer_bytes=MOST_ANSWER_BYTES
            )
            self._loop.start()
            atexit.register(self._loop.stop)
        return self._loop


def _is_fine(answer: Response | RequestNotCompleted) -> bool:
    return isinstance(answer, Response) and answer.status_code in SUCCESS
