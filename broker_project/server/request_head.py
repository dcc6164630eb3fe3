"""Refuse request heads that are too large or ambiguous, before anything acts on them.

The server itself refuses invalid HTTP: several lengths, folded or nameless headers, control characters, more than 100
headers. It drops header values that are not ASCII, and passes on values that two readers may understand differently.
"""

from codecs import lookup
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.http import parse_header_parameters

from broker_project.server.browser_headers import Answer, GetResponse, refusal

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_ADDRESS_CHARACTERS: Final = 8 * 1024
"""Path and query. The longest addresses that the broker makes, cursors of lists, have some hundred characters."""
MAX_TYPE_CHARACTERS: Final = 255
"""Of a content type, as in a message. Python takes a second of the server's loop to read the parameters of a long one.
"""
IN_QUERIES: Final = b"a=%\\"
"""What a charset must be able to read."""
MAX_TYPES: Final = 256
"""Content types with parameters that are remembered."""

TOO_LONG: Final = refusal(414, "address_too_long", f"Path and query have at most {MAX_ADDRESS_CHARACTERS} characters.")
TOO_LARGE: Final = refusal(431, "head_too_large", f"The headers together have at most {MAX_HEADER_BYTES} bytes.")
AMBIGUOUS_HOST: Final = refusal(400, "ambiguous_host", "Send one Host, the one of the address.")
UNREADABLE_TYPE: Final = refusal(
    400,
    "unreadable_header",
    f"A Content-Type has at most {MAX_TYPE_CHARACTERS} characters, and parameters that can be read.",
)
TOO_MANY_PARAMETERS: Final = refusal(
    400, "invalid_query", f"A query has at most {settings.DATA_UPLOAD_MAX_NUMBER_FIELDS} parameters."
)
UNKNOWN_CODING: Final = refusal(501, "unknown_transfer_encoding", "The only Transfer-Encoding is 'chunked'.")
UNKNOWN_METHOD: Final = refusal(
    501, "unknown_method", "Methods are case-sensitive: write them in capital letters, such as POST."
)

Headers = Sequence[tuple[str, str]]
"""Names in lower case, with their values, as the server reports them."""

HEALTH_PATHS: Final = frozenset({"/livez", "/readyz"})
"""Requested by machines that know only the address of the process."""

SINGLE_VALUED: Final = frozenset(
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
"""Headers with one value. A repeated one would have to be joined or dropped, so it is refused instead."""
CLOUD_EVENT_PREFIX: Final = "ce-"
"""Attributes of a CloudEvent have one value too."""


def refusal_of(scope: Any, headers: Headers) -> Answer | None:
    """Return the answer to a head that is too large or ambiguous; None if it is good."""
    if len(scope.path) + len(scope.query_string) > MAX_ADDRESS_CHARACTERS:
        return TOO_LONG
    if sum(len(name) + len(value) + len(": \r\n") for name, value in headers) > MAX_HEADER_BYTES:
        return TOO_LARGE
    values = dict(headers)
    if len(values) != len(scope.headers):  # the server dropped a value, and reports the name nevertheless
        dropped = next(name for name in scope.headers if name not in values)
        detail = f"The value of {dropped} has characters other than visible ASCII."
        return refusal(400, "unreadable_header", detail)
    if len(values) != len(headers):
        names = [name for name, _ in headers]
        for name in names:
            if (name in SINGLE_VALUED or name.startswith(CLOUD_EVENT_PREFIX)) and names.count(name) > 1:
                return refusal(400, "repeated_header", f"Send {name} once.")
    return _unreadable_or_ambiguous(scope, values)


def _unreadable_or_ambiguous(scope: Any, values: dict[str, str]) -> Answer | None:
    """Return the answer to what Django would misunderstand, or fail to read before any view is asked."""
    content_type, host = values.get("content-type", ""), values.get("host", None if scope.http_version == "1.1" else "")
    if scope.query_string.count("&") >= settings.DATA_UPLOAD_MAX_NUMBER_FIELDS:
        return TOO_MANY_PARAMETERS
    if len(content_type) > MAX_TYPE_CHARACTERS or (";" in content_type and not _has_readable_parameters(content_type)):
        return UNREADABLE_TYPE
    if not scope.method.isupper():  # Django would take "post" for POST
        return UNKNOWN_METHOD
    if host is None or scope.authority not in {None, host}:
        return AMBIGUOUS_HOST
    return UNKNOWN_CODING if values.get("transfer-encoding", "chunked").lower() != "chunked" else None


@lru_cache(MAX_TYPES)
def _has_readable_parameters(content_type: str) -> bool:
    """Return whether Django can read the parameters of a content type, and a query in its charset.

    An unknown charset is no error; one that is not of texts, such as `hex`, is.
    """
    try:
        charset = lookup(parse_header_parameters(content_type)[1].get("charset", "utf-8")).name
    except LookupError:
        return True
    except ValueError:
        return False
    try:
        for errors in ("replace", "strict"):
            IN_QUERIES.decode(charset, errors)
    except UnicodeDecodeError:
        return True  # Django reads the query otherwise then
    except (LookupError, ValueError):
        return False
    return True


def check_host(get_response: GetResponse) -> GetResponse:
    """Refuse requests for a host that is not in `ALLOWED_HOSTS`, with Django's `DisallowedHost`."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        if request.path not in HEALTH_PATHS:
            request.get_host()
        return get_response(request)

    return answer
