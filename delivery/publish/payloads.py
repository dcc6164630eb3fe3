"""What a payload must be (behaviour 2.5): its bytes are only ever judged, never changed."""

import json
from typing import Any, Final

import orjson

from broker_project.core.media_types import is_json, media_type_of
from delivery.publish.errors import MalformedPayload, UnsuitableContentType

SAFE_LEVELS: Final = 900
"""So deep is always taken; what lies beyond depends on the parser."""


def check_content_type(given: str, declared: str) -> None:
    """Raise `UnsuitableContentType` unless what is sent is what the event type declares."""
    if media_type_of(given) != media_type_of(declared) and not (is_json(given) and is_json(declared)):
        raise UnsuitableContentType(f"This event type takes {declared}; send it with that Content-Type.")


def check_json(body: bytes) -> None:
    """Raise `MalformedPayload`, with what is wrong and where, unless `body` is JSON in UTF-8.

    What JSON allows is allowed: keys that stand twice, numbers of any size, lone surrogates as escapes.
    """
    try:
        orjson.loads(body)  # fast, and stricter than JSON: what it takes is JSON
    except orjson.JSONDecodeError:
        _check_slowly(body)


def _check_slowly(body: bytes) -> None:
    if not body:
        raise MalformedPayload("The body is empty; send a JSON value.")
    try:
        text = body.decode()
    except UnicodeDecodeError as broken:
        raise MalformedPayload(f"The body is not UTF-8: byte {broken.start} cannot be read.") from None
    if text.startswith("\ufeff"):
        raise MalformedPayload("The body begins with a byte order mark; JSON is sent without one.")
    try:
        _GRAMMAR.decode(text)
    except RecursionError:
        raise MalformedPayload(f"The body is nested too deep; keep it within {SAFE_LEVELS} levels.") from None
    except ValueError as broken:
        raise MalformedPayload(f"The body is not JSON: {broken}.") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


# Numbers stay texts: only the grammar is wanted, and a number of 5,000 digits costs nothing.
_GRAMMAR: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)
