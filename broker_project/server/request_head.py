"""Heads of requests: what is refused before anybody acts on what they say.

The server itself refuses what is no HTTP: several lengths, folded or nameless headers, control characters, more than
100 headers. It also leaves out values that are not ASCII, and passes on what two readers may take two ways.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from broker_project.server.browser_headers import Answer, refusal

MAX_BYTES: Final = 64 * 1024
MAX_ADDRESS_CHARACTERS: Final = 8 * 1024
"""Path and query; the longest that the broker itself makes, a cursor in a list's address, has some hundred."""


CLOUD_EVENT: Final = "ce-"
"""So do those that are attributes of a CloudEvent."""

TOO_LONG: Final = refusal(
    414, "address_too_long", "Address too long", f"Path and query have at most {MAX_ADDRESS_CHARACTERS} characters."
)
TOO_LARGE: Final = refusal(
    431, "head_too_large", "Head too large", f"The headers together have at most {MAX_BYTES} bytes."
)
NO_HOST: Final = refusal(400, "ambiguous_host", "Ambiguous host", "Send one Host, the one of the address.")
UNKNOWN_CODING: Final = refusal(
    501, "unknown_transfer_encoding", "Unknown transfer encoding", "The only Transfer-Encoding is 'chunked'."
)

Headers = Sequence[tuple[str, str]]
"""Names in lower case and values, as the server tells them."""

PROBED: Final = frozenset({"/livez", "/readyz"})
"""Asked by machines that know the process by its address alone."""

ONCE: Final = frozenset(
    {
        "authorization",
        "broker-destination",
        "broker-durability",
        "broker-not-before",
        "broker-ttl",
        "callbackurl",
        "content-encoding",
        "content-type",
        "filter-string",
        "filter_string",
        "host",
        "idempotency-key",
        "transfer-encoding",
    }
)
"""Headers that say one thing; two of them would have to be taken for one that nobody sent, or one be left out."""


def refusal_of(scope: Any, headers: Headers) -> Answer | None:
    """Return the answer to a head that is too large or says two things; None if it is as it should be."""
    if len(scope.path) + len(scope.query_string) > MAX_ADDRESS_CHARACTERS:
        return TOO_LONG
    if sum(len(name) + len(value) + len(": \r\n") for name, value in headers) > MAX_BYTES:
        return TOO_LARGE
    values = dict(headers)
    return _unreadable(scope, values) or _repeated(headers, values) or _two_things(scope, values)


def _unreadable(scope: Any, values: dict[str, str]) -> Answer | None:
    """Refuse a header whose value the server has left out; the names it tells all the same."""
    if len(values) == len(scope.headers):
        return None
    name = next(name for name in scope.headers if name not in values)
    return refusal(
        400, "unreadable_header", "Unreadable header", f"The value of {name} has characters other than visible ASCII."
    )


def _repeated(headers: Headers, values: dict[str, str]) -> Answer | None:
    if len(values) == len(headers):
        return None
    names = [name for name, _ in headers]
    for name in names:
        if (name in ONCE or name.startswith(CLOUD_EVENT)) and names.count(name) > 1:
            return refusal(400, "repeated_header", "Repeated header", f"Send {name} once.")
    return None


def _two_things(scope: Any, values: dict[str, str]) -> Answer | None:
    host = values.get("host", None if scope.http_version == "1.1" else "")
    if host is None or scope.authority not in {None, host}:
        return NO_HOST
    return UNKNOWN_CODING if values.get("transfer-encoding", "chunked").lower() != "chunked" else None


def own_host(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Let nothing through that is meant for a host that `ALLOWED_HOSTS` does not name: Django's `DisallowedHost`."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        if request.path not in PROBED:
            request.get_host()
        return get_response(request)

    return answer
