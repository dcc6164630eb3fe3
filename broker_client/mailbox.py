"""One subscriber's mailbox at a broker: each call of its API as a method."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import requests

from broker_client.clock import now
from broker_client.message import Message, Result, refusal, retry_after

MAX_CALL: Final = 20.0
"""Seconds in which there is an answer, or none comes any more; beyond those that the broker was asked to wait."""
CONNECTING: Final = 1 / 4
"""Of that, how much it may take to reach the broker."""

NO_CONTENT: Final = 204


@dataclass(frozen=True, slots=True)
class Fetched:
    """What `next` has brought."""

    messages: Sequence[Message]
    retry_after: float | None
    """Seconds to wait before the next call, where the broker had no place to wait in; else None."""


class Mailbox:
    """A subscriber's mailbox, for any number of threads.

    Every method raises `requests.RequestException` if there is no answer, and `Refused` if the answer is an error.
    """

    def __init__(
        self,
        url: str,
        subscriber: str,
        token: str,
        *,
        sessions: Callable[[], requests.Session] = requests.Session,
    ) -> None:
        """Make the mailbox of a subscriber at the broker with this address, with a key of that subscriber.

        `sessions` makes the session of each thread that calls: a place for certificates and proxies.
        """
        self._address = f"{url.rstrip('/')}/api/v1/mailboxes/{quote(subscriber, safe='')}"
        self._token = token
        self._sessions = sessions
        self._threads = threading.local()

    def next(self, *, most: int = 10, wait: float = 0) -> Fetched:
        """Fetch the oldest messages available, `most` of them (100), if need be after `wait` seconds (20)."""
        asked_at = now()
        answer = self._call("POST", "next", {"max": most, "wait": wait}, wait=wait)
        if answer.status_code == NO_CONTENT:
            return Fetched([], retry_after(answer))
        fetched = answer.json()
        since = asked_at + fetched["waited_seconds"]
        return Fetched([Message.read(document, since=since) for document in fetched["messages"]], None)

    def ack(self, receipts: Sequence[str], *, within: float = MAX_CALL) -> list[Result]:
        """Acknowledge what has been done, 1,000 at most; again after an answer that was lost.

        Of no receipts nothing is asked. Whoever has no answer `within` so many seconds has none; so with the two that
        follow.
        """
        return self._answer("ack", {"receipts": receipts}, within)

    def nack(self, receipts: Sequence[str], *, not_attempted: bool = False, within: float = MAX_CALL) -> list[Result]:
        """Return messages, so that they are available at once; `not_attempted`: nobody has begun to work on them.

        What was tried as often as the mailbox's `max_redeliveries` allows has failed then.
        """
        document: dict[str, object] = {"receipts": receipts}
        return self._answer("nack", document | {"not_attempted": True} if not_attempted else document, within)

    def extend(self, receipts: Sequence[str], *, seconds: int | None = None, within: float = MAX_CALL) -> list[Result]:
        """Keep messages for so long from now on; for the mailbox's own time-out if nothing is said."""
        document: dict[str, object] = {"receipts": receipts}
        return self._answer("extend", document if seconds is None else document | {"seconds": seconds}, within)

    def status(self) -> dict[str, Any]:
        """Return how the mailbox stands, as the API says it."""
        status: dict[str, Any] = self._call("GET", "status").json()
        return status

    def purge(self) -> dict[str, Any]:
        """End all that is there; return what came of it, as the API says it: while not `complete`, there is more."""
        purged: dict[str, Any] = self._call("POST", "purge", {}).json()
        return purged

    def close(self) -> None:
        """End the connections of the thread that calls; if it calls on, there are new ones."""
        if known := self._known_session():
            known.close()

    def _answer(self, what: str, document: dict[str, object], within: float) -> list[Result]:
        if not document["receipts"]:
            return []
        asked_at = now()
        answer = self._call("POST", what, document, within=within)
        return [Result.read(result, since=asked_at) for result in answer.json()["results"]]

    def _call(
        self,
        method: str,
        what: str,
        document: dict[str, object] | None = None,
        *,
        within: float = MAX_CALL,
        wait: float = 0,
    ) -> requests.Response:
        answer = self._session().request(
            method,
            f"{self._address}/{what}",
            json=document,
            auth=self._authorized,
            timeout=(within * CONNECTING, within * (1 - CONNECTING) + wait),
            allow_redirects=False,
        )
        if answer.status_code // 100 != 2:  # noqa: PLR2004 - 2xx
            raise refusal(answer)
        return answer

    def _authorized(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Show the key; as a header of the session, a `.netrc` would be put in its place."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _session(self) -> requests.Session:
        """Return this thread's session: one is not for several."""
        known = self._known_session()
        if known is None:
            known = self._threads.session = self._sessions()
        return known

    def _known_session(self) -> requests.Session | None:
        return getattr(self._threads, "session", None)
