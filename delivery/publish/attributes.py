"""The attributes of a CloudEvent: what they must be, and how each stands in a header (CloudEvents 1.0.2)."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote, unquote

from delivery.publish.errors import InvalidCloudEvent

PREFIX: Final = "ce-"
"""What the names of the headers begin with that are attributes."""
SPECVERSION: Final = "1.0"
REQUIRED: Final = ("specversion", "id", "source", "type")
OPTIONAL: Final = ("subject", "time", "dataschema", "datacontenttype")
NEVER: Final = frozenset({"data", "data_base64"})
"""What no attribute may be called: the payload is."""

_NAME: Final = re.compile("[a-z0-9]+")
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SAFE: Final = "".join(sign for sign in map(chr, range(0x21, 0x7F)) if sign not in '"%')
"""What stands in a header as it is: visible ASCII but the quote and the percent sign (HTTP binding 3.1.3.2)."""


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Raise `InvalidCloudEvent` for what is missing, or not as CloudEvents 1.0 says."""
    for name in REQUIRED:
        if not attributes.get(name):
            raise InvalidCloudEvent(f"The attribute {name!r} is missing or empty; a CloudEvent has one.")
    if attributes["specversion"] != SPECVERSION:
        raise InvalidCloudEvent(f"This is CloudEvents {attributes['specversion'][:20]!r}; send {SPECVERSION!r}.")
    for name, value in attributes.items():
        _check_attribute(name, value)
    if "time" in attributes and not _is_time(attributes["time"]):
        raise InvalidCloudEvent("The attribute 'time' is none of RFC 3339, such as 2026-01-31T12:00:00Z.")


def _check_attribute(name: str, value: str) -> None:
    if not is_attribute(name):
        raise InvalidCloudEvent(f"No attribute can be called {name[:100]!r}: use letters a to z and digits.")
    if name in OPTIONAL and not value:
        raise InvalidCloudEvent(f"The attribute {name!r} is empty; leave it out.")
    if _FORBIDDEN.search(value):
        raise InvalidCloudEvent(f"The attribute {name!r} has characters that no attribute may have.")


def is_attribute(name: str) -> bool:
    """Tell whether an attribute can be called so."""
    return bool(_NAME.fullmatch(name)) and name not in NEVER


def _is_time(text: str) -> bool:
    try:
        return bool(_TIME.fullmatch(text) and datetime.fromisoformat(text.upper()))
    except ValueError:
        return False


def header_value(value: str) -> str:
    """Return an attribute's value as it stands in a header: percent-encoded UTF-8."""
    return quote(value, safe=_SAFE)


def attribute_value(header: str, errors: str = "replace") -> str:
    """Return the attribute's value that stands in a header; bytes that are no UTF-8 are replaced."""
    quoted = _QUOTED.fullmatch(header)
    return unquote(re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else header, errors=errors)


def attributes_in(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes among headers, in their order."""
    return {
        name.lower().removeprefix(PREFIX): attribute_value(value)
        for name, value in headers.items()
        if name.lower().startswith(PREFIX)
    }


def made_another(headers: Sequence[tuple[str, str]], suffix: str) -> list[tuple[str, str]]:
    """Return a message's headers with `suffix` at the end of the event's id, if it is a CloudEvent.

    Two events with other data never have one source and id, and who has seen one takes no other of that id.
    """
    if not any(name.lower() == f"{PREFIX}specversion" for name, _ in headers):
        return [*headers]
    return [
        (name, header_value(attribute_value(value) + suffix) if name.lower() == f"{PREFIX}id" else value)
        for name, value in headers
    ]


def check_encoding(headers: Mapping[str, str]) -> None:
    """Raise `InvalidCloudEvent` where attributes are not UTF-8: with replaced bytes two would seem to be the same."""
    for name, value in headers.items():
        if name.lower().startswith(PREFIX):
            try:
                attribute_value(value, errors="strict")
            except UnicodeDecodeError:
                raise InvalidCloudEvent(f"The header {name[:100]!r} is not percent-encoded UTF-8.") from None


def idempotency_key_of(attributes: Mapping[str, str]) -> str:
    """Return the key under which an event is taken once: source and id tell it from all others (contract 2.6)."""
    return "ce:" + hashlib.sha256(f"{attributes['source']}\0{attributes['id']}".encode()).hexdigest()
