"""Django's application, in which requests to the API skip the middleware of pages."""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

import django
import structlog
from django.conf import settings
from django.core.cache import close_caches
from django.core.exceptions import DisallowedHost
from django.core.handlers.base import reset_urlconf
from django.core.handlers.exception import convert_exception_to_response
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, reset_queries
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from broker_project.core.api.problems import API
from broker_project.server.browser_headers import GetResponse

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")


DROPS_UNDERSCORES: Final = ("gunicorn", "waitress", "runserver")
"""Servers that drop headers with underscores: modules that have imported this one, or Django's command."""
PASSES_IT: Final = re.compile("dangerous|FILTER_STRING")
"""Values of gunicorn's options `--header-map` and `--forwarder-headers` with which it passes `FILTER_STRING`."""
ADVICE: Final = (
    "send Filter-String instead, or use a server that passes it: docs/how-to/deploy.md, Web servers and FILTER_STRING"
)

log = structlog.get_logger(__name__)

ANSWER: Final = "broker.answer"
"""Where a request notes the answer that middleware is to complete."""


class WebApplication(WSGIHandler):
    """Runs the middleware: for the API only `API_MIDDLEWARE`, since the others cost a twelfth of its CPU time."""

    def load_middleware(self, is_async: bool = False) -> None:
        """Build the chains of middleware."""
        super().load_middleware(is_async)
        pages: Any = self._middleware_chain  # type: ignore[has-type]  # as Django declares it
        api = _with_middleware(self._get_response)  # type: ignore[attr-defined]
        self._complete = _with_middleware(lambda request: request.META[ANSWER])
        self._headers: dict[str, Sequence[tuple[str, str]]] = {}

        def chain(request: HttpRequest) -> Any:
            return (api if request.path.startswith(API) else pages)(request)

        self._middleware_chain = chain

    def completed(self, request: HttpRequest, answer: HttpResponseBase) -> HttpResponseBase:
        """Return an answer that a view of the API has made as the middleware leaves it."""
        request.META[ANSWER] = answer
        return self._complete(request)

    def common_headers(self, request: HttpRequest) -> Sequence[tuple[str, str]] | None:
        """Return the headers that middleware gives to every answer of the API.

        They depend on the request's scheme alone, so they are asked for once. None: the middleware answers the request
        itself, since its host is wrong, or it has to come by https.
        """
        try:
            request.get_host()
        except DisallowedHost:
            return None
        scheme = request.scheme or ""
        if scheme not in self._headers:
            blank = HttpResponse()
            if self.completed(request, blank) is not blank:
                return None
            self._headers[scheme] = [(name.lower(), value) for name, value in blank.items() if name != "Content-Type"]
        return self._headers[scheme]


def _with_middleware(answer: GetResponse) -> GetResponse:
    chain: Any = convert_exception_to_response(answer)
    for name in reversed(settings.API_MIDDLEWARE):
        chain = convert_exception_to_response(import_string(name)(chain))
    return cast(GetResponse, chain)


def warn_of_server() -> None:
    """Warn if the server that has imported this drops `FILTER_STRING`, so that no header filter matches (2.3)."""
    for server in DROPS_UNDERSCORES:
        if server in {*sys.modules, *sys.argv[1:2]} and not any(map(PASSES_IT.search, sys.argv)):
            log.warning("web.filter_string_dropped", server=server, hint=ADVICE)


django.setup(set_prefix=False)
# Django resets all of this before and after each request. But here nothing records queries, has caches or other URLs,
# and a request that ends gives its connection back.
request_started.disconnect(reset_queries)
request_started.disconnect(close_old_connections)
request_finished.disconnect(close_caches)
request_finished.disconnect(reset_urlconf)
application = WebApplication()
warn_of_server()
