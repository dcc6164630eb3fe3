"""Keywords that speak of a value as a whole, and what is said when it breaks one."""

from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs

from subscriptions.schemas.compiling import validator_of

ASSERTIONS: Final = frozenset(
    {
        "const",
        "contentEncoding",
        "contentMediaType",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "type",
        "uniqueItems",
    }
)
"""Keywords that say something by themselves, of the value as a whole."""

SHOWN_NAMES: Final = 5


def broken_assertions(schema: dict[str, Any], value: Any) -> Iterator[str]:
    """Yield what is wrong with `value` by each of the assertions of `schema`, a part of a valid one.

    They are asked one at a time: an error of `jsonschema_rs` holds a copy of the value.
    """
    for keyword in sorted(schema.keys() & ASSERTIONS):
        if keyword == "uniqueItems" or not isinstance(schema[keyword], bool):  # a bare exclusiveMinimum: draft 4
            yield from _broken(keyword, schema[keyword], value)
    if isinstance(value, dict):
        yield from _missing(schema, value)
        yield from _unexpected(schema, value)


def _broken(keyword: str, limit: object, value: object) -> Iterator[str]:
    judged = type(value)() if keyword == "type" and isinstance(value, dict | list) else value
    try:
        validator_of({keyword: limit}).validate(judged)
    except jsonschema_rs.ValidationError as broken:
        yield broken.message


def _missing(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", [])
    for name in required if isinstance(required, list) else ():
        if name not in value:
            yield f"{name!r} is missing"


def _unexpected(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[str]:
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        names = sorted(value.keys() - schema.get("properties", {}).keys())
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        if names:
            yield f"it has members that are not in the schema: {', '.join(map(repr, names[:SHOWN_NAMES]))}{more}"
