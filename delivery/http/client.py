"""HTTP over libcurl's multi interface: `requests`' objects, one event loop, no thread per request.

`requests` alone has no total deadline, opens connections where the address cannot be checked, and costs nine times
the CPU.
"""

import time
from collections import OrderedDict
from collections.abc import Hashable
from itertools import takewhile
from typing import Any, Final

import pycurl
import requests

from broker_project.core.egress import EgressPolicy
from delivery.http.sockets import Connections, Sockets
from delivery.http.transfer import Answer, Transfer
from delivery.limits import GATHER_SECONDS, KEPT_CONNECTIONS, MAX_ANSWER_BYTES, OVERDUE_SECONDS

OVERDUE: Final = "Operation timed out"


class HttpClient:
    """Any number of requests at once in one thread: `start` them, then `wait` for answers.

    Owned by one thread; only `interrupt` may be called from others. Create it after forking.
    """

    def __init__(
        self, *, egress: EgressPolicy, deadline_seconds: float, max_answer_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        self._egress = egress
        self._deadline_seconds = deadline_seconds
        self._most_answer_bytes = max_answer_bytes
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, KEPT_CONNECTIONS)
        self._sockets = Sockets(self._multi)
        self._connections = Connections()
        self._idle: list[Transfer] = []
        self._in_flight: OrderedDict[Transfer, None] = OrderedDict()
        """In the order in which they have to end."""
        self._started = 0
        self._burst = 0
        """The number of what goes out with the next `begin`."""
        self._unanswered = 0
        """How many of the last burst."""

    def start(self, token: Hashable, request: requests.PreparedRequest, *, since: float | None = None) -> None:
        """Take on a request; it goes out with the next `begin` or `wait`, its answer comes from a later `wait`.

        Its deadline counts from `since` (monotonic), when it was certain that no other worker sends it; None: from now.
        """
        transfer = self._idle.pop() if self._idle else self._new_transfer()
        begun = time.monotonic() if since is None else since
        transfer.begin(token, request, burst=self._burst, until=begun + self._deadline_seconds)
        self._multi.add_handle(transfer.handle)
        self._in_flight[transfer] = None
        self._started += 1

    def begin(self) -> None:
        """Let what was started go out now, without waiting for anything."""
        if self._started:
            self._unanswered, self._started = self._started, 0
            self._burst += 1
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    @property
    def is_gathering(self) -> bool:
        """Whether some of the requests that went out together last have no answer yet."""
        return self._unanswered > 0

    def wait(self, seconds: float) -> list[Answer]:
        """Return what has been answered, after at most `seconds`, at once when interrupted.

        Where there is an answer, those that went out with it have 3 ms to be answered too.
        """
        end = time.monotonic() + seconds
        answers = self._finished()  # some may have come while others were begun
        while not answers:
            interrupted = self._sockets.act(end)
            answers = self._finished()
            if interrupted or time.monotonic() >= end:
                break
        return answers + self._gathered() if answers else answers

    def watch_too(self, descriptor: int) -> None:
        """Make `wait` return when this descriptor is readable too."""
        self._sockets.watch_too(descriptor)

    def interrupt(self) -> None:
        """Make `wait` return; may be called from any thread."""
        self._sockets.ring()

    def close(self) -> None:
        """Close sockets and descriptors; requests in flight are dropped."""
        self._multi.close()
        self._sockets.close()

    def _gathered(self) -> list[Answer]:
        end = time.monotonic() + GATHER_SECONDS
        answers: list[Answer] = []
        while self.is_gathering and time.monotonic() < end:
            interrupted = self._sockets.act(end)
            answers += self._finished()
            if interrupted:
                break
        return answers

    def _new_transfer(self) -> Transfer:
        return Transfer(self._connections, self._egress, max_answer_bytes=self._most_answer_bytes)

    def _finished(self) -> list[Answer]:
        answers: list[Answer] = []
        more = 1
        while more:
            more, done, failed = self._multi.info_read()
            answers += [self._finish(handle, 0, "") for handle in done]
            answers += [
                self._finish(handle, number, text) for handle, number, text in failed if not self._again(handle)
            ]
        over = time.monotonic() - OVERDUE_SECONDS
        overdue = [*takewhile(lambda transfer: transfer.until <= over, self._in_flight)]
        answers += [self._finish(transfer.handle, pycurl.E_OPERATION_TIMEDOUT, OVERDUE) for transfer in overdue]
        return answers

    def _again(self, handle: Any) -> bool:
        """Send what has not gone out over a kept connection, because something had come on it, over a new one."""
        transfer: Transfer = handle.transfer
        if not transfer.is_stale:
            return False
        self._multi.remove_handle(handle)
        transfer.restart()
        self._multi.add_handle(handle)
        return True

    def _finish(self, handle: Any, number: int, text: str) -> Answer:
        transfer: Transfer = handle.transfer
        answer = transfer.end(number, text)
        self._multi.remove_handle(handle)
        del self._in_flight[transfer]
        self._unanswered -= transfer.burst == self._burst - 1
        self._idle.append(transfer)
        return answer
