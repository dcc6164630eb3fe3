"""One subscriber's mailbox at a broker, with each call of its API as a method."""

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import requests

from broker_client.message import BrokerError, Message, ReceiptResult, now, retry_after

TIMEOUT_SECONDS: Final = 20.0
"""Of a call, in addition to the seconds that the broker is asked to wait for messages."""
CONNECT_SHARE: Final = 1 / 4
"""Share of the time-out that connecting may take."""
_TOKEN: Final = re.compile("[!-~]+")
"""Other characters cannot be sent in a header, and what refuses them there shows the token."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What `Mailbox.fetch` returns."""

    messages: Sequence[Message]
    retry_after: float | None
    """Seconds to wait before the next call, if the broker had no free place for a waiting client; else None."""


class Mailbox:
    """A subscriber's mailbox, safe for any number of threads, and after a fork.

    Every method raises `requests.RequestException` if there is no answer, and `BrokerError` for an error response.
    """

    def __init__(
        self,
        url: str,
        subscriber: str,
        token: str,
        *,
        sessions: Callable[[], requests.Session] = requests.Session,
    ) -> None:
        """Connect to the mailbox of a subscriber at the broker `url`, with an API key of that subscriber.

        `sessions` creates the session of each calling thread: the place for certificates and proxies.

        Raise ValueError for a token that no API key can be, such as one with a line break at its end.
        """
        if not _TOKEN.fullmatch(token):
            raise ValueError("The token is empty or has a character that no API key has, such as a line break.")
        self._url = f"{url.rstrip('/')}/api/v1/mailboxes/{quote(subscriber, safe='')}"
        self._token = token
        self._sessions = sessions
        self._threads = threading.local()

    def fetch(self, *, max_messages: int = 10, wait_seconds: float = 0) -> FetchResult:
        """Fetch the oldest available messages, 100 at most; if there are none, wait for some, 20 seconds at most."""
        asked_at = now()
        response = self._call(
            "POST", "next", {"max_messages": max_messages, "wait_seconds": wait_seconds}, wait_seconds=wait_seconds
        )
        if response.status_code == HTTPStatus.NO_CONTENT:
            return FetchResult([], retry_after(response))
        document = response.json()
        since = asked_at + document["waited_seconds"]
        return FetchResult([Message.parse(one, since=since) for one in document["messages"]], None)

    def ack(self, receipts: Sequence[str], *, timeout: float = TIMEOUT_SECONDS) -> list[ReceiptResult]:
        """Acknowledge messages, 1,000 at most; safe to repeat. Without receipts nothing is sent."""
        return self._resolve("ack", {"receipts": receipts}, timeout)

    def nack(
        self, receipts: Sequence[str], *, not_attempted: bool = False, timeout: float = TIMEOUT_SECONDS
    ) -> list[ReceiptResult]:
        """Return messages, so that they are available at once.

        A message that was tried as often as the mailbox's `max_redeliveries` allows fails, unless `not_attempted` says
        that nobody has started to work on it.
        """
        return self._resolve("nack", {"receipts": receipts, "not_attempted": not_attempted}, timeout)

    def extend(
        self, receipts: Sequence[str], *, seconds: int | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> list[ReceiptResult]:
        """Keep messages in flight for `seconds` from now; by default, for the time-out of the mailbox."""
        given = {} if seconds is None else {"seconds": seconds}
        return self._resolve("extend", {"receipts": receipts, **given}, timeout)

    def status(self) -> dict[str, Any]:
        """Return the status of the mailbox as the API's JSON object."""
        status: dict[str, Any] = self._call("GET", "status").json()
        return status

    def purge(self) -> dict[str, Any]:
        """Cancel all messages and return the API's JSON object; if `complete` is false, purge again."""
        purged: dict[str, Any] = self._call("POST", "purge", {}).json()
        return purged

    def close(self) -> None:
        """Close the connections of the calling thread; further calls open new ones."""
        session: requests.Session | None = getattr(self._threads, "session", None)
        if session:
            session.close()

    def _resolve(self, operation: str, document: Mapping[str, object], timeout: float) -> list[ReceiptResult]:
        if not document["receipts"]:
            return []
        asked_at = now()
        response = self._call("POST", operation, document, timeout=timeout)
        return [ReceiptResult.parse(one, since=asked_at) for one in response.json()["results"]]

    def _call(
        self,
        method: str,
        operation: str,
        document: Mapping[str, object] | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        wait_seconds: float = 0,
    ) -> requests.Response:
        if getattr(self._threads, "process", None) != os.getpid():  # neither threads nor processes can share a session
            self._threads.session, self._threads.process = self._sessions(), os.getpid()
        response: requests.Response = self._threads.session.request(
            method,
            f"{self._url}/{operation}",
            json=document,
            auth=self._authorize,
            timeout=(timeout * CONNECT_SHARE, timeout * (1 - CONNECT_SHARE) + wait_seconds),
            allow_redirects=False,
        )
        if response.status_code // 100 != 2:  # noqa: PLR2004 - 2xx
            raise BrokerError.from_response(response)
        return response

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the key; a `.netrc` would replace a header of the session."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request
