"""Groups of requests that do the same, and have come while others were answered: they are answered together.

A request that comes alone waits for nobody. While a group is under way the next one gathers, and after a group of
several it waits a moment for those who ask again. So groups grow with the load, and neither a thread nor a transaction
is needed for each request.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Event, Lock
from typing import Any, Final, Protocol

import structlog
from django.core.handlers.exception import response_for_exception
from django.core.handlers.wsgi import WSGIRequest
from django.db import Error, close_old_connections
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.urls import resolve
from django.utils.log import log_response
from rest_framework.status import HTTP_400_BAD_REQUEST

from broker_project.core.db import ANSWER_SECONDS, answered_within, is_away
from broker_project.server.request_head import HEALTH_PATHS
from broker_project.wsgi import application
from delivery.api.grouped_view import MAY_DEFER, DeferredAnswer, resolve_all
from delivery.publish.cloud_events import BINARY, is_batch, is_cloud_event
from delivery.publish.publish import NotAsRemembered
from subscriptions.api.authentication import FOUND, find_keys, give_up, rate_headers
from subscriptions.credentials.keys import FoundKey
from subscriptions.credentials.tokens import bearer_in, recent_tokens

EVENTS: Final = "/api/v1/events"
"""Addresses to which one event is posted are right below this."""
BINARY_VARIABLE: Final = "HTTP_" + BINARY.upper().replace("-", "_")
"""Which request is a CloudEvent in headers."""
MAILBOXES: Final = "/api/v1/mailboxes/"
MAILBOX_CALLS: Final = frozenset({"ack", "next"})
"""The last part of the addresses to which the frequent calls of a mailbox are posted."""
COMMON: Final = "broker.common_headers"
"""Where a request notes the headers that middleware gives to its answer."""
MAX_ADDRESSES: Final = 1024
"""Whose views are remembered."""
MAX_REQUESTS: Final = 64
"""Of a group: more gain nothing, and the first would wait for the last."""
SLOW_SECONDS: Final = 0.05
"""When a group takes longer, for example because one event goes to thousands of subscribers, the next one begins."""
GATHER_SECONDS: Final = 0.003
"""How long the next group waits for those who were answered together: they often ask again at once, and one group costs
less than two that take turns."""
STATEMENT_SECONDS: Final = 4.5
"""How long a statement of one publish or mailbox call may take; then it gets 503, so callers know where they are."""
MAX_GROUPS: Final = 8
"""Of one name at a time: each has a connection of the pool, of which others need some."""

log = structlog.get_logger(__name__)


def group_of(scope: Any) -> str | None:
    """Return the name of the groups that a request belongs to: it publishes one event, or calls this mailbox.

    None: it is answered alone. So is every request without a key that was valid recently: looking up many unknown keys
    must not delay others.
    """
    if scope.method != "POST":
        return None
    name, _, call = scope.path.rpartition("/")
    if name != EVENTS and not (name.startswith(MAILBOXES) and call in MAILBOX_CALLS):
        return None
    token = bearer_in(scope.headers.get("authorization") or "")
    return name if token is not None and hash(token) in recent_tokens else None


def statement_seconds(environ: Mapping[str, Any]) -> float:
    """Return how long a statement of a request that is answered alone may take (contract 11.5), or of a health check.

    A batch or a dry run may have more to do than a statement of one event, whose type a CloudEvent names itself.
    """
    path, content_type = environ["PATH_INFO"], environ["CONTENT_TYPE"]
    is_one = bool(_event_type_in(path))
    if path == EVENTS and not is_batch(content_type):
        is_one = is_cloud_event(content_type, [BINARY] if BINARY_VARIABLE in environ else [])
    return STATEMENT_SECONDS if path in HEALTH_PATHS or is_one else ANSWER_SECONDS


class PendingRequest(Protocol):
    """A request that has come, and the way to answer it."""

    environ: dict[str, Any]
    """Its WSGI variables."""

    def send(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send the answer; from any thread. Names of headers are in lower case."""


Group = dict[PendingRequest, "asyncio.Future[None]"]
"""Requests, with what is done when they have been answered."""
Answer = HttpResponseBase | DeferredAnswer[Any, Any]
Read = tuple[PendingRequest, WSGIRequest, Answer]
"""A request, and its answer, which may have to be made."""


class RequestGroups:
    """Gathers requests of one name on the server's event loop, and answers each group in a thread.

    The thread goes on with what has come meanwhile.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor, long_threads: ThreadPoolExecutor
    ) -> None:
        """Answer groups, and what waits for something else, in `threads`, and in few others what takes long itself."""
        self._loop = loop
        self._threads = threads
        self._long_threads = long_threads
        self._outage: tuple[float, Error] | None = None
        """When one that takes long has last found the database away, in seconds, and why."""
        self._lock = Lock()
        self._waiting: deque[tuple[PendingRequest, asyncio.Future[None]]] = deque()
        self._expected = math.inf
        """With this many requests waiting, the next group begins early; infinite unless a thread waits for them."""
        self._enough = Event()
        self._running = 0
        self._youngest: Group = {}
        """The group that began last; empty when it has ended, or is slow."""
        self._slow: asyncio.TimerHandle | None = None
        """When the youngest group is slow."""

    def answered(self, pending: PendingRequest) -> "asyncio.Future[None]":
        """Return a future that is done when the request has been answered."""
        future = self._loop.create_future()
        self._waiting.append((pending, future))
        if len(self._waiting) >= self._expected:
            self._enough.set()
        self._begin()
        return future

    def _begin(self) -> None:
        """Begin a group of what waits in another thread, unless one is running that is not slow, or too many are."""
        with self._lock:
            group = {} if self._youngest or self._running >= MAX_GROUPS else self._gathered()
            self._running += bool(group)
        if group:
            self._threads.submit(self._answer_groups, group)
            self._watch_youngest()

    def _gathered(self) -> Group:
        """Take the next group of what waits; the caller has the lock."""
        self._youngest = self._taken(MAX_REQUESTS)
        return self._youngest

    def _taken(self, most: int) -> Group:
        return dict(self._waiting.popleft() for _ in range(min(most, len(self._waiting))))

    def _watch_youngest(self) -> None:
        if self._slow:
            self._slow.cancel()
        self._slow = self._loop.call_later(SLOW_SECONDS, self._leave, self._youngest)

    def _leave(self, group: Group) -> None:
        """Let the next group begin, since this one is slow if it is still running."""
        with self._lock:
            if self._youngest is group:
                self._youngest = {}
        self._begin()

    def _answer_groups(self, group: Group) -> None:
        """Answer a group, and then what waits, unless the group was slow: then another thread does."""
        while group:
            self._loop.call_soon_threadsafe(_set_done, self._answer(group))
            if len(group) > 1:
                self._wait_for(len(group) + len(self._waiting))
            with self._lock:
                group = self._gathered() if group is self._youngest else {}
                self._running -= not group
            self._loop.call_soon_threadsafe(self._go_on)

    def _wait_for(self, requests: int) -> None:
        """Wait until there are this many requests, or enough for a whole group, for `GATHER_SECONDS` at most."""
        self._enough.clear()
        self._expected = min(requests, MAX_REQUESTS)
        if len(self._waiting) < self._expected:
            self._enough.wait(GATHER_SECONDS)
        self._expected = math.inf

    def _answer(self, group: Group) -> "Sequence[asyncio.Future[None]]":
        """Answer a group, and what takes longer in threads of their own; return what is done then.

        If the database is away, all that waits is told so too, and does not wait for it in turn (contract 11.5).
        """
        slow: Group = {}
        try:
            with _finished(), answered_within(STATEMENT_SECONDS):
                read, failure = _read_and_done(group)
                if failure:
                    with self._lock:
                        late = self._taken(len(self._waiting))
                    group |= late
                    give_up(failure, [pending.environ for pending in late])
                    read += _read_all(late)
                asked = time.monotonic()
                for pending, request, answer in read:
                    if isinstance(answer, DeferredAnswer) and answer.is_slow:
                        threads = self._long_threads if answer.takes_long else self._threads
                        threads.submit(self._answer_slowly, pending, request, answer, group[pending], asked)
                        slow[pending] = group[pending]
                    else:
                        _send(pending, request, answer)
        except Exception:
            log.exception("requests.group_failed")  # the server answers the rest with 500
        return [future for pending, future in group.items() if pending not in slow]

    def _go_on(self) -> None:
        """Watch the group that a thread has begun, or begin one if something waits."""
        if self._youngest:
            self._watch_youngest()
        else:
            self._begin()

    def _answer_slowly(
        self,
        pending: PendingRequest,
        request: WSGIRequest,
        answer: DeferredAnswer[Any, Any],
        future: "asyncio.Future[None]",
        asked: float,
    ) -> None:
        """Answer one; if the database was found away since it was `asked`, without waiting for it in turn."""
        try:
            if self._outage and asked <= self._outage[0]:
                answer.resolve(self._outage[1])
            with _finished(), answered_within(STATEMENT_SECONDS):
                _send(pending, request, answer)
            if isinstance(answer.failure, Error) and is_away(answer.failure):
                self._outage = time.monotonic(), answer.failure
        finally:
            self._loop.call_soon_threadsafe(_set_done, [future])


@contextmanager
def _finished() -> Iterator[None]:
    """Give the connection back afterwards, as after a request."""
    try:
        yield
    finally:
        close_old_connections()


def _set_done(futures: "Sequence[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _read_and_done(group: Collection[PendingRequest], *, remembered: bool = True) -> tuple[list[Read], Error | None]:
    """Read all requests and do what they ask for; return the answer to each, and why the database is away if it is.

    Answers may have to be made. First with remembered keys and event types; the requests that these do not get stored
    are read a second time, with keys and event types looked up in the database.
    """
    asked = [(pending.environ, _event_type_in(pending.environ["PATH_INFO"])) for pending in group]
    failure = find_keys(asked, remembered=remembered)
    read = _read_all(group)
    deferred = [answer for _, _, answer in read if isinstance(answer, DeferredAnswer)]
    resolve_all(deferred)
    for answer in deferred:
        if isinstance(answer.failure, Error) and is_away(answer.failure):
            failure = answer.failure
    unconfirmed = {pending: None for pending, _, answer in read if _is_unconfirmed(pending, answer)}
    read = [one for one in read if one[0] not in unconfirmed]
    if failure:
        give_up(failure, [pending.environ for pending in unconfirmed])
        return read + _read_all(unconfirmed), failure
    if unconfirmed:
        second_read, failure = _read_and_done(unconfirmed, remembered=False)
        read += second_read
    return read, failure


def _is_unconfirmed(pending: PendingRequest, answer: Answer) -> bool:
    """Return whether an answer rests on a remembered key that no statement has confirmed."""
    found = pending.environ[FOUND]
    failure = answer.failure if isinstance(answer, DeferredAnswer) else None
    is_stored = isinstance(answer, DeferredAnswer) and not (failure or answer.is_slow)
    is_remembered = isinstance(found, FoundKey) and found.is_remembered
    return isinstance(failure, NotAsRemembered) or (is_remembered and not is_stored)


def _read_all(group: Collection[PendingRequest]) -> list[Read]:
    read: list[Read] = []
    for pending in group:
        try:
            pending.environ["wsgi.input"].seek(0)
            request = WSGIRequest(pending.environ)
        except Exception:
            log.exception("requests.unreadable")  # the server answers it with 500, and the others get their own answer
            continue
        read.append((pending, request, _read(request)))
    return read


def _event_type_in(path: str) -> str:
    """Return the event type in the address of one event; empty in any other."""
    parent, _, name = path.rpartition("/")
    return name if parent == EVENTS else ""


def _read(request: WSGIRequest) -> Answer:
    """Call the view without middleware, whose headers are known; return a blank answer if middleware replaces it."""
    try:
        request.META[COMMON] = application.common_headers(request)
        if request.META[COMMON] is None:
            return HttpResponse()
        view, positional, named = _resolved(request.path_info)
        request.META[MAY_DEFER] = True
        answer: Answer = view(request, *positional, **named)
    except Exception as failure:  # noqa: BLE001 - as Django's handler
        return response_for_exception(request, failure)
    return answer


_resolved: Final = lru_cache(MAX_ADDRESSES)(resolve)


def _send(pending: PendingRequest, request: WSGIRequest, answer: Answer) -> None:
    """Send an answer as Django would: rendered, logged, and with the headers that middleware adds; never raise."""
    try:
        made = _made(request, answer)
        headers = [(name.lower(), value) for name, value in made.items()]
        if isinstance(answer, DeferredAnswer) and made.status_code < HTTP_400_BAD_REQUEST and not answer.is_slow:
            headers += [(name.lower(), value) for name, value in rate_headers(request).items()]
            headers += request.META[COMMON]
        else:
            made = application.completed(request, made)
            headers = [(name.lower(), value) for name, value in made.items()]
        pending.send(made.status_code, headers, b"".join(made))
    except Exception:
        log.exception("requests.answer_failed")  # the server answers with 500


def _made(request: WSGIRequest, answer: Answer) -> Any:
    try:
        made: Any = answer.made() if isinstance(answer, DeferredAnswer) else answer
        if isinstance(made, SimpleTemplateResponse):
            made.render()
    except Exception as failure:  # noqa: BLE001 - as Django's handler
        made = response_for_exception(request, failure)
    if made.status_code >= HTTP_400_BAD_REQUEST:
        log_response("%s: %s", made.reason_phrase, request.path, response=made, request=request)
    return made
