"""Flower's configuration file, also if none is named: behind a login, for reading only, with less memory.

By itself Flower shows `/metrics`, `/healthcheck` and its errors to everyone. Access is decided before it routes a
request.
"""

import hmac
from base64 import b64decode
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import structlog
from django.conf import settings
from flower import command
from flower.app import Flower
from flower.views.broker import BrokerView
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.netutil import bind_sockets
from tornado.web import RequestHandler

from broker_project.server.runtime import collect_garbage_more_often

# Flower's options; its command line takes precedence.
address = "127.0.0.1"
read_only = True
enable_events = False
"""Workers send events from the start, so Flower need not tell them to, again and again."""
max_tasks = 1_000
"""Tasks that Flower keeps in memory: some minutes of a busy broker."""

SAFE_METHODS: Final = {"GET", "HEAD"}
TASK_LIST: Final = "/tasks/datatable"
"""Read with POST, because it has too many parameters for a URL."""

QUEUES: Final = "/broker"
TABLE: Final = b'<section class="broker-table-card"'
"""Begins the table of queues in the page."""
BACKLOG: Final = f'<a href="{settings.PUBLIC_URL}/admin/delivery/line/">Lines</a>' if settings.PUBLIC_URL else "Lines"
EXPLANATION: Final = (
    "<p>These are turns that no worker has taken yet, not deliveries: a turn brings up to 256 lines to a worker, and"
    f" deliveries wait in PostgreSQL. What waits, and how long, is in the admin site under {BACKLOG}.</p>"
)

log = structlog.get_logger(__name__)


class ReadOnlyFlower(Flower):  # type: ignore[misc] # it is not typed
    """Flower for the logins of `--basic-auth`; without any, for nobody."""

    def start_http_server(self) -> int:
        """Listen, also on a port that a stack holds for it, and say so if nobody can log in."""
        if not self.options.basic_auth:
            log.warning("flower.closed", hint="nobody can log in: set FLOWER_BASIC_AUTH to name:password")
        sockets = bind_sockets(self.options.port, self.options.address, reuse_port=True)
        HTTPServer(self, ssl_options=self.ssl_options, xheaders=self.options.xheaders).add_sockets(sockets)
        return int(sockets[0].getsockname()[1])

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Return the handler of a request: a refusal, or Flower's own."""
        if not is_login(request.headers.get("Authorization", ""), self.options.basic_auth or ()):
            return self.get_handler_delegate(request, Refusal, {"status": 401, "text": "Flower asks for its login."})
        if request.method not in SAFE_METHODS and request.path != TASK_LIST:
            text = "Flower is read-only: it cannot control workers or tasks here."
            return self.get_handler_delegate(request, Refusal, {"status": 403, "text": text})
        if request.path == QUEUES:
            return self.get_handler_delegate(request, ExplainedQueues)
        return super().find_handler(request, **kwargs)


class ExplainedQueues(BrokerView):  # type: ignore[misc] # it is not typed
    """Flower's page of queues, which also says what their lengths mean."""

    def render_string(self, template_name: str, **values: Any) -> bytes:
        """Return the page with the explanation above the table."""
        page: bytes = super().render_string(template_name, **values)
        return page.replace(TABLE, EXPLANATION.encode() + TABLE, 1)


class Refusal(RequestHandler):
    """A handler that refuses every method; a 401 makes browsers ask for the login."""

    def initialize(self, status: int, text: str) -> None:
        """Take the answer."""
        self._status, self._text = status, text

    def check_xsrf_cookie(self) -> None:
        """Skip the check, so that the refusal comes first."""

    def prepare(self) -> None:
        """Refuse."""
        self.set_status(self._status)
        if self._status == HTTPStatus.UNAUTHORIZED:
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        self.finish(self._text)


def is_login(authorization: str, logins: Sequence[str]) -> bool:
    """Tell whether an `Authorization` header has one of the logins (`name:password`)."""
    scheme, _, credentials = authorization.partition(" ")
    try:
        given = b64decode(credentials, validate=True)
    except ValueError:
        return False
    return scheme.lower() == "basic" and any(hmac.compare_digest(given, login.encode()) for login in logins)


command.Flower = ReadOnlyFlower
collect_garbage_more_often()
