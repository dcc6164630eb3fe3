"""The entry of the web server: Django's WSGI application behind granian's RSGI.

RSGI keeps `FILTER_STRING` and `Filter-String` apart, which WSGI merges into one variable (contract 2.3). It also lets
bodies be limited while they arrive, and lets a view that makes its client wait notice that the client is gone.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from django.conf import settings

from broker_project.wsgi import application as wsgi_application  # first: it loads the apps

# isort: split
from analytics.alerts import start_watching
from broker_project.core.db import answered_within
from broker_project.server.browser_headers import Answer
from broker_project.server.request_groups import RequestGroups, group_of, statement_seconds
from broker_project.server.request_head import HEALTH_PATHS, Headers, refusal_of
from broker_project.server.runtime import raise_open_files_limit, sparingly, tune_runtime
from broker_project.server.uploads import Upload, UploadQuotas
from broker_project.server.wsgi_environ import environ_of
from delivery.callbacks import address as callback_address
from delivery.mailbox import long_poll
from delivery.mailbox.long_poll import max_polls
from subscriptions.api.authentication import is_stranger

DISCONNECTED: Final = "broker.disconnected"
"""The WSGI variable with a function that starts watching the client. It returns a future that is done when the client
has disconnected. The caller cancels the future when it no longer needs it."""

FEW_THREADS: Final = max(2, settings.WEB_THREADS // 32)
"""For callers that show no key, such as people, and as many for callback replies: however much they ask for, others
share Python with few of them."""
LONG_THREADS: Final = 2
"""For events that take seconds to store: with more, each would take longer, in a transaction that stays open."""
HEALTH_SECONDS: Final = 1.0
"""How long an answer to a health check is given again."""

_threads = ThreadPoolExecutor(settings.WEB_THREADS, thread_name_prefix="web")
_long_threads = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="long")
_strangers = ThreadPoolExecutor(FEW_THREADS, thread_name_prefix="stranger")
_repliers = ThreadPoolExecutor(FEW_THREADS, thread_name_prefix="replier")
_quotas = UploadQuotas(settings.UPLOADS_BYTES)

tune_runtime()
raise_open_files_limit()
long_poll.WAITING.set_limit(max_polls(settings.WEB_THREADS))


class RsgiApplication:
    """Answers HTTP requests."""

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look after alerts, also while no worker runs, and end waiting long polls when the server is told to stop."""

        def end_long_polls(*_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no poll is waiting
                loop.call_soon_threadsafe(long_poll.WAITING.close)

        for number in (signal.SIGTERM, signal.SIGINT):
            # The server is notified of signals through the loop's own descriptor, which this does not replace.
            signal.signal(number, end_long_polls)
        self._loop = loop
        self._groups: WeakValueDictionary[str, RequestGroups] = WeakValueDictionary()
        """By name, while one of them is being answered."""
        self._health = HealthAnswers(loop)
        start_watching(settings.ALERT_THRESHOLDS, threading.Event())

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one HTTP request."""
        headers = scope.headers.items()
        if refusal := refusal_of(scope, headers):
            protocol.response_bytes(*refusal)
            return
        if scope.path in HEALTH_PATHS and scope.method in {"GET", "HEAD"}:
            protocol.response_bytes(*await self._health.answer(scope, headers))
            return
        upload = Upload(scope.headers, *_quotas.quota_of(scope.headers.get("authorization") or ""))
        try:
            await upload.receive(protocol)
            if upload.refusal:
                protocol.response_bytes(*upload.refusal)
                return
            request = _Request(environ_of(scope, headers, upload.body), upload, protocol, self._loop)
            if name := group_of(scope):
                groups = self._groups.setdefault(name, RequestGroups(self._loop, _threads, _long_threads))
                await groups.answered(request)
            else:
                of_stranger = _repliers if scope.path.startswith(callback_address.PATH) else _strangers
                threads = of_stranger if is_stranger(request.environ) else _threads
                answer = partial(sparingly, request.answer) if threads is _strangers else request.answer
                await self._loop.run_in_executor(threads, answer)
        finally:
            upload.release()


application = RsgiApplication()


class _Request:
    """One request on its way through Django."""

    def __init__(self, environ: dict[str, Any], upload: Upload, protocol: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.environ = environ
        environ[DISCONNECTED] = partial(_watch, protocol, loop)
        self._upload = upload
        self._protocol = protocol

    def answer(self) -> None:
        """Call the WSGI application, and send its answer from this thread."""
        self.send(*_answer_to(self.environ))

    def send(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send the answer. First release the upload quota: a client that has the answer finds it free."""
        self._upload.release()
        self._protocol.response_bytes(status, headers, body)


class HealthAnswers:
    """Answers to health checks, made in a thread for each path and at most once a second, however many ask.

    `/readyz` may wait for the database, and must not keep `/livez` waiting.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = {path: ThreadPoolExecutor(1, thread_name_prefix="health") for path in HEALTH_PATHS}
        self._made: dict[tuple[str, str], tuple[float, asyncio.Future[Answer]]] = {}
        """By method and path: since when, and the answer."""

    async def answer(self, scope: Any, headers: Headers) -> Answer:
        """Return the answer to a health check."""
        asked = scope.method, scope.path
        began, made = self._made.get(asked, (0.0, None))
        if made is None or (made.done() and self._loop.time() > began + HEALTH_SECONDS):
            made = self._loop.run_in_executor(self._threads[scope.path], _answer_to, environ_of(scope, headers, b""))
            self._made[asked] = self._loop.time(), made
        return await asyncio.shield(made)


def _answer_to(environ: dict[str, Any]) -> Answer:
    """Return the WSGI application's answer; each of its statements has the time that its path allows."""
    status, headers = "", []

    def start(*started: Any) -> Callable[[bytes], object]:
        nonlocal status, headers
        status, headers, *_ = started
        return lambda _: None

    with answered_within(statement_seconds(environ)):
        chunks: Iterable[bytes] = wsgi_application(environ, start)
        try:
            body = b"".join(chunks)
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
    return int(status[:3]), [(name.lower(), value) for name, value in headers], body


def _watch(protocol: Any, loop: asyncio.AbstractEventLoop) -> "Future[None]":
    async def disconnected() -> None:
        await protocol.client_disconnect()

    return asyncio.run_coroutine_threadsafe(disconnected(), loop)
