"""What every answer tells browsers: what a page may load and do, that nobody frames it, and what nobody keeps.

Answers of the API may bear what an endpoint or a publisher has written, so a browser is to run and load nothing of
them. The documentation and the admin need scripts of their own; the admin's theme besides evaluates what stands in
attributes (`unsafe-eval`) and puts styles into its pages.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from csp.constants import NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from csp.utils import build_policy
from django.http import HttpRequest
from django.http.response import HttpResponseBase

GetResponse = Callable[[HttpRequest], HttpResponseBase]


NOT_KEPT: Final = {"Cache-Control": "no-store"}

Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""

ALWAYS: Final[dict[str, Any]] = {
    "default-src": [NONE],
    "object-src": [NONE],
    "base-uri": [SELF],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
}
FROM_HERE: Final[dict[str, Any]] = {
    "script-src": [SELF],
    "style-src": [SELF],
    "img-src": [SELF, "data:"],
    "font-src": [SELF],
    "connect-src": [SELF],
}
DOCUMENT: Final = build_policy(ALWAYS | {"sandbox": True})
"""Of JSON, of files, and of whatever an endpoint answers: nothing is loaded or run, and it has no origin."""
DOCUMENTATION: Final = build_policy(ALWAYS | FROM_HERE)
ADMIN: Final = build_policy(
    ALWAYS | FROM_HERE | {"script-src": [SELF, UNSAFE_EVAL], "style-src": [SELF, UNSAFE_INLINE]}
)

UNUSED: Final = (
    "camera",
    "display-capture",
    "geolocation",
    "microphone",
    "payment",
    "publickey-credentials-get",
    "usb",
)
EVERYWHERE: Final = {
    "Permissions-Policy": ", ".join(f"{feature}=()" for feature in UNUSED),
    "Cross-Origin-Resource-Policy": "same-origin",
}


def browser_headers(get_response: GetResponse) -> GetResponse:
    """Add them to every answer."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        for name, value in headers_for(request.path).items():
            response.headers[name] = value
        return response

    return answer


def headers_for(path: str) -> Mapping[str, str]:
    """Return what answers to requests for `path` tell browsers."""
    return next((headers for below, headers in _BY_PATH.items() if path.startswith(below)), _OTHERWISE)


_OTHERWISE: Final = {**EVERYWHERE, "Content-Security-Policy": DOCUMENT}
_BY_PATH: Final = {
    "/api/docs/": {**EVERYWHERE, "Content-Security-Policy": DOCUMENTATION},
    "/api/": _OTHERWISE | NOT_KEPT,
    "/admin/": {**EVERYWHERE, **NOT_KEPT, "Content-Security-Policy": ADMIN},
}
"""The innermost first."""

HEADERS: Final = [
    ("content-type", "application/problem+json"),
    ("x-content-type-options", "nosniff"),
    *((name.lower(), value) for name, value in headers_for("/api/").items()),
]
"""As middleware would have them."""


def refusal(status: int, code: str, title: str, detail: str, *, retry_after: int | None = None) -> Answer:
    """Return the answer that says what is wrong with a request."""
    problem = {"type": f"urn:broker:{code}", "code": code, "title": title, "status": status, "detail": detail}
    retry = [] if retry_after is None else [("retry-after", str(retry_after))]
    return status, [*HEADERS, *retry], json.dumps(problem).encode()
