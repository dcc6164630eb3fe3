"""Requests that publish one event: those that have come meanwhile are answered together, from one transaction.

A request that comes alone waits for nobody. While a group is under way the next one gathers, so groups grow with the
load, and neither a thread nor a transaction is needed for each request.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import structlog
from django.core.handlers.exception import response_for_exception
from django.core.handlers.wsgi import WSGIRequest
from django.core.signals import request_finished, request_started
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.urls import resolve
from django.utils.log import log_response

from broker_project.wsgi import application
from delivery.api.publish_view import MAY_DEFER, DeferredAnswer, publish_all
from subscriptions.api.authentication import find_keys, rate_headers
from subscriptions.credentials.tokens import bearer_in, recent_tokens

EVENTS: Final = "/api/v1/events/"
"""Addresses to which one event is posted begin with this."""
MAX_REQUESTS: Final = 64
"""Of a group: more gain nothing, and the first would wait for the last."""
SLOW_SECONDS: Final = 0.05
"""When a group takes longer, for example because one event goes to thousands of subscribers, the next one begins."""
MAX_GROUPS: Final = 4
"""At a time."""
ACCEPTED: Final = 202
FAILED: Final = 400
"""Django logs answers from this status on."""

log = structlog.get_logger(__name__)


def may_be_grouped(scope: Any) -> bool:
    """Return whether a request publishes one event, with a key that was valid recently.

    What others send is answered alone: looking up many unknown keys must not delay publishers.
    """
    if scope.method != "POST" or not scope.path.startswith(EVENTS):
        return False
    token = bearer_in(scope.headers.get("authorization") or "")
    return token is not None and hash(token) in recent_tokens


class PendingRequest(Protocol):
    """A request that has come, and the way to answer it."""

    environ: dict[str, Any]
    """Its WSGI variables."""

    def send(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send the answer; from any thread. Names of headers are in lower case."""


class PublishGroups:
    """Gathers requests on the server's event loop, and answers each group in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor) -> None:
        self._loop = loop
        self._threads = threads
        self._waiting: deque[tuple[PendingRequest, asyncio.Future[None]]] = deque()
        self._running = 0
        self._next_at = 0.0
        """The loop's time from which a group may begin beside one that is slow."""

    def answered(self, call: PendingRequest) -> "asyncio.Future[None]":
        """Return a future that is done when the request has been answered."""
        future = self._loop.create_future()
        self._waiting.append((call, future))
        self._begin()
        return future

    def _begin(self) -> None:
        """Begin a group of what waits, unless one has just begun."""
        now = self._loop.time()
        if not self._waiting or self._running >= MAX_GROUPS or (self._running and now < self._next_at):
            return
        group = [self._waiting.popleft() for _ in range(min(MAX_REQUESTS, len(self._waiting)))]
        self._running += 1
        self._next_at = now + SLOW_SECONDS
        self._loop.call_at(self._next_at, self._begin)
        self._threads.submit(self._answer, dict(group))

    def _answer(self, group: "dict[PendingRequest, asyncio.Future[None]]") -> None:
        """Answer a group, and what takes longer in threads of their own."""
        request_started.send(sender=PublishGroups)
        try:
            for call, request, answer in _read_and_published(group):
                if isinstance(answer, DeferredAnswer) and not answer.is_ready:
                    self._threads.submit(self._answer_apart, call, request, answer, group.pop(call))
                else:
                    _send(call, request, answer)
        except Exception:
            log.exception("publish.group_failed")  # the server answers the rest with 500
        finally:
            request_finished.send(sender=PublishGroups)
            self._loop.call_soon_threadsafe(self._end, [*group.values()])

    def _end(self, futures: "Sequence[asyncio.Future[None]]") -> None:
        self._running -= 1
        _set_done(futures)
        self._begin()

    def _answer_apart(
        self, call: PendingRequest, request: WSGIRequest, answer: DeferredAnswer, future: "asyncio.Future[None]"
    ) -> None:
        try:
            _send(call, request, answer)
        finally:
            request_finished.send(sender=PublishGroups)
            self._loop.call_soon_threadsafe(_set_done, [future])


def _set_done(futures: "Sequence[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _read_and_published(calls: Iterable[PendingRequest]) -> list[tuple[PendingRequest, WSGIRequest, HttpResponseBase]]:
    """Read all requests and publish; return the answer to each, which may have to be completed."""
    find_keys([call.environ for call in calls])
    read = [(call, request := WSGIRequest(call.environ), _read(request)) for call in calls]
    if deferred := [answer for _, _, answer in read if isinstance(answer, DeferredAnswer)]:
        publish_all(deferred)
    return read


def _read(request: WSGIRequest) -> HttpResponseBase:
    """Call the view without middleware, whose headers are known; return a blank answer if middleware replaces it."""
    try:
        if application.headers_for(request) is None:
            return HttpResponse()
        view, positional, named = resolve(request.path_info)
        request.META[MAY_DEFER] = True
        answer: HttpResponseBase = view(request, *positional, **named)
    except Exception as failure:  # noqa: BLE001 - as Django's handler
        return response_for_exception(request, failure)
    return answer


def _send(call: PendingRequest, request: WSGIRequest, answer: HttpResponseBase) -> None:
    """Complete an answer as Django would: rendered, logged, and with the headers that middleware adds."""
    is_stored = isinstance(answer, DeferredAnswer) and answer.is_ready
    try:
        made: Any = answer.completed() if isinstance(answer, DeferredAnswer) else answer
        if isinstance(made, SimpleTemplateResponse):
            made.render()
    except Exception as failure:  # noqa: BLE001 - as Django's handler
        made = response_for_exception(request, failure)
    common: Sequence[tuple[str, str]] = ()
    if is_stored and made.status_code == ACCEPTED:
        for name, value in rate_headers(request).items():
            made.headers[name] = value
        common = application.headers_for(request) or ()
    else:
        made = application.completed(request, made)
    if made.status_code >= FAILED:
        log_response("%s: %s", made.reason_phrase, request.path, response=made, request=request)
    call.send(made.status_code, [*((name.lower(), value) for name, value in made.items()), *common], b"".join(made))
