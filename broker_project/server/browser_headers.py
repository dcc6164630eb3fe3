"""Response headers for browsers: content security policy, framing, caching.

API answers can contain text from endpoints and publishers, so a browser may load and run nothing of them. The
documentation and the admin site need their own scripts. The admin theme also evaluates expressions in attributes
(`unsafe-eval`) and puts styles into its pages.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from csp.constants import NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from csp.utils import build_policy
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from broker_project.core.api.problems import PROBLEM_JSON, ProblemType

Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""
GetResponse = Callable[[HttpRequest], HttpResponseBase]

POLICY: Final = "Content-Security-Policy"
BASE: Final[dict[str, Any]] = {
    "default-src": [NONE],
    "object-src": [NONE],
    "base-uri": [SELF],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
}
SAME_ORIGIN: Final[dict[str, Any]] = {
    "script-src": [SELF],
    "style-src": [SELF],
    "img-src": [SELF, "data:"],
    "font-src": [SELF],
    "connect-src": [SELF],
}
DOCUMENT_POLICY: Final = build_policy(BASE | {"sandbox": True})
"""For JSON, files and answers of endpoints: nothing is loaded or run, and the document has no origin."""
DOCUMENTATION_POLICY: Final = build_policy(BASE | SAME_ORIGIN)
ADMIN_POLICY: Final = build_policy(
    BASE | SAME_ORIGIN | {"script-src": [SELF, UNSAFE_EVAL], "style-src": [SELF, UNSAFE_INLINE]}
)

DISABLED_FEATURES: Final = (
    "camera",
    "display-capture",
    "geolocation",
    "microphone",
    "payment",
    "publickey-credentials-get",
    "usb",
)
EVERYWHERE: Final = {
    "Permissions-Policy": ", ".join(f"{feature}=()" for feature in DISABLED_FEATURES),
    "Cross-Origin-Resource-Policy": "same-origin",
}
NO_STORE: Final = {"Cache-Control": "no-store"}
DEFAULT: Final = {**EVERYWHERE, POLICY: DOCUMENT_POLICY}
BY_PREFIX: Final = {
    "/api/docs/": {**EVERYWHERE, POLICY: DOCUMENTATION_POLICY},
    "/api/": DEFAULT | NO_STORE,
    "/admin/": {**EVERYWHERE, **NO_STORE, POLICY: ADMIN_POLICY},
}
"""The first prefix that matches a path counts."""


def browser_headers(get_response: GetResponse) -> GetResponse:
    """Add these headers to every answer; a policy that its view has set stays, as in the portal."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        for name, value in headers_for(request.path).items():
            if name != POLICY or name not in response.headers:
                response.headers[name] = value
        return response

    return answer


def headers_for(path: str) -> Mapping[str, str]:
    """Return the headers of answers to requests for `path`."""
    return next((headers for prefix, headers in BY_PREFIX.items() if path.startswith(prefix)), DEFAULT)


REFUSAL_HEADERS: Final = [
    ("content-type", PROBLEM_JSON),
    ("connection", "close"),
    ("x-content-type-options", "nosniff"),
    *((name.lower(), value) for name, value in headers_for("/api/").items()),
]
"""The same as the middleware adds. The connection is closed: what follows a refused request may be part of it."""


def refusal(status: int, code: str, detail: str, *, retry_after: int | None = None) -> Answer:
    """Return a problem document as the answer to a request that does not reach Django."""
    retry = [] if retry_after is None else [("retry-after", str(retry_after))]
    return status, [*REFUSAL_HEADERS, *retry], orjson.dumps(ProblemType(status, code).document(detail))
