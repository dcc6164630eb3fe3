"""Flower's configuration file: behind a login, for reading only, with less memory.

By itself Flower shows `/metrics`, `/healthcheck` and its errors to everyone. Access is decided before it routes a
request.
"""

import hmac
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final

from flower import command
from flower.app import Flower
from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

from broker_project.server.runtime import collect_garbage_more_often

SAFE_METHODS: Final = {"GET", "HEAD"}
TASK_LIST: Final = "/tasks/datatable"
"""Read with POST, because it has too many parameters for a URL."""


class ReadOnlyFlower(Flower):  # type: ignore[misc] # it is not typed
    """Flower for the logins of `--basic-auth`; without any, for nobody."""

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Return the handler of a request: a refusal, or Flower's own."""
        if not is_login(request.headers.get("Authorization", ""), self.options.basic_auth or ()):
            return self.get_handler_delegate(request, LoginNeeded)
        if request.method not in SAFE_METHODS and request.path != TASK_LIST:
            return self.get_handler_delegate(request, ReadOnly)
        return super().find_handler(request, **kwargs)


class Refusal(RequestHandler):
    """A handler that refuses every method."""

    status: int
    text: str

    def check_xsrf_cookie(self) -> None:
        """Skip the check, so that the refusal comes first."""

    def prepare(self) -> None:
        """Refuse."""
        self.set_status(self.status)
        self.finish(self.text)


class LoginNeeded(Refusal):
    """The answer to a request without the right name and password."""

    status, text = 401, "Flower asks for its login."

    def set_default_headers(self) -> None:
        """Make browsers ask for the login."""
        self.set_header("WWW-Authenticate", 'Basic realm="flower"')


class ReadOnly(Refusal):
    """The answer to requests that would change something."""

    status, text = 403, "Flower is read-only: it cannot control workers or tasks here."


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
