"""Flower behind its login: by itself it shows `/metrics`, `/healthcheck` and its errors to anybody.

What a request may do is decided before Flower looks where it leads: without the login nothing, with it reading.
"""

import hmac
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final

from flower.app import Flower
from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

READING: Final = {"GET", "HEAD"}
READ_BY_POST: Final = "/tasks/datatable"
"""What fills the list of tasks: it has too many parameters for an address."""


class ClosedFlower(Flower):  # type: ignore[misc] # it is not typed
    """Flower for whom `--basic-auth` names, and for reading only; without a login it is for nobody."""

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Return what answers a request: a refusal, or whatever Flower has there."""
        if not is_login(request.headers.get("Authorization", ""), self.options.basic_auth or ()):
            return self.get_handler_delegate(request, LoginNeeded)
        if request.method not in READING and request.path != READ_BY_POST:
            return self.get_handler_delegate(request, ReadOnly)
        return super().find_handler(request, **kwargs)


class Refusal(RequestHandler):
    """Answers every method alike."""

    status: int
    text: str

    def check_xsrf_cookie(self) -> None:
        """Let nothing come before the refusal."""

    def prepare(self) -> None:
        """Refuse."""
        self.set_status(self.status)
        self.finish(self.text)


class LoginNeeded(Refusal):
    """For who has not said the right name and password."""

    status, text = 401, "Flower asks for its login."

    def set_default_headers(self) -> None:
        """Let browsers ask for it."""
        self.set_header("WWW-Authenticate", 'Basic realm="flower"')


class ReadOnly(Refusal):
    """For whatever is not reading."""

    status, text = 403, "Flower only shows: workers and tasks are not commanded from here."


def is_login(authorization: str, logins: Sequence[str]) -> bool:
    """Say whether a header has one of the logins, `name:password`."""
    scheme, _, credentials = authorization.partition(" ")
    try:
        said = b64decode(credentials, validate=True)
    except ValueError:
        return False
    return scheme.lower() == "basic" and any(hmac.compare_digest(said, login.encode()) for login in logins)
