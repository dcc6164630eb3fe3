"""The HTTP headers that can be added to deliveries, and other header values."""

import re
from collections.abc import Mapping
from typing import Final

from django.core.exceptions import ValidationError

MAX_HEADERS: Final = 50
MAX_HEADERS_BYTES: Final = 8192
MAX_SHOWN: Final = 128
"""Characters of a wrong name that its error repeats."""

OF_THE_CONNECTION: Final = frozenset(
    {
        "connection",
        "content-length",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of one connection; the broker neither keeps nor forwards them."""

RESERVED: Final = OF_THE_CONNECTION | {"callbackurl"}
"""Headers that cannot be set, like all `webhook-` and `broker-` headers."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_MEDIA_TYPE = re.compile(r"[!#$&^_.+0-9A-Za-z-]+/[!#$&^_.+0-9A-Za-z-]+(\s*;[\x20-\x7e]*)?")
_VALUE = re.compile(r"[\x20-\x7e\t]*")


def validate_headers(headers: object) -> None:
    """Raise `ValidationError` unless `headers` is an object of header names and visible ASCII values."""
    if not isinstance(headers, Mapping):
        raise _refused('Give headers as an object of names and values, such as {"X-Team": "blue"}.')
    if len(headers) > MAX_HEADERS:
        raise _refused(f"At most {MAX_HEADERS} headers; these are {len(headers)}.")
    for name, value in headers.items():
        _check(name, value)
    if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADERS_BYTES:
        raise _refused(f"All headers together have at most {MAX_HEADERS_BYTES} characters.")
    if len({name.lower() for name in headers}) < len(headers):
        raise _refused("Two of these header names differ in case only; leave one of them out.")


def with_values_kept(given: Mapping[str, str | None], now: Mapping[str, str]) -> dict[str, str]:
    """Return the headers, null replaced by the value that one has `now`; raise `ValidationError` if it has none."""
    if not isinstance(given, Mapping):
        validate_headers(given)
    values = {name.lower(): value for name, value in now.items()}
    unknown = sorted(name for name, value in given.items() if value is None and name.lower() not in values)
    if unknown:
        raise _refused(
            f"null keeps the value that a header has, and {', '.join(unknown)} has none that can be read: give one."
        )
    kept = {name: values[name.lower()] if value is None else value for name, value in given.items()}
    validate_headers(kept)
    return kept


def validate_content_type(text: str) -> None:
    """Raise `ValidationError` unless `text` is a media type, with or without parameters."""
    if not _MEDIA_TYPE.fullmatch(text):
        raise ValidationError("Give a media type, such as application/json.", code="content_type")


def validate_filter_string(text: str) -> None:
    """Raise `ValidationError` unless a header can have this value: otherwise it would never match."""
    if not _VALUE.fullmatch(text):
        raise ValidationError(
            "A header filter is compared with a header's value: use visible ASCII and blanks.",
            code="header_filter_string",
        )


def _check(name: object, value: object) -> None:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise _refused(f"{str(name)[:MAX_SHOWN]!r} is not a header name: use letters, digits and hyphens.")
    lower = name.lower().replace("_", "-")  # an underscore is a hyphen behind CGI, WSGI and PHP
    if lower in RESERVED or lower.startswith(("webhook-", "broker-")):
        raise _refused(f"The header {name} is set by the broker or the connection itself; leave it out.")
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise _refused(f"The value of the header {name} must be a text of visible ASCII characters.")


def _refused(text: str) -> ValidationError:
    return ValidationError(text, code="headers")
