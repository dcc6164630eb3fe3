"""Where schemas stand in schemas, in every draft since 4."""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from subscriptions.schemas.pointers import Path

DEFINITIONS: Final = frozenset({"$defs", "definitions"})
"""What stands there counts only where something refers to it."""

SINGLE: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
LISTED: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
NAMED: Final = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"}) | DEFINITIONS

OF_THE_SAME_VALUE: Final = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)
"""What stands there is asked of the value itself, not of a member or element."""

UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Return the schemas that stand directly in `schema`, with the steps to each."""
    for keyword, value in schema.items():
        if keyword in NAMED and isinstance(value, dict):
            yield from (((keyword, name), inner) for name, inner in value.items())
        elif keyword in LISTED and isinstance(value, list):
            yield from (((keyword, position), inner) for position, inner in enumerate(value))
        elif keyword in SINGLE:
            yield (keyword,), value


def reference_in(schema: dict[str, Any]) -> str | None:
    """Return the pointer that `schema` refers to within its document, None if it refers to nothing."""
    reference = schema.get("$ref")
    return unquote(reference[1:]) if isinstance(reference, str) and reference.startswith("#") else None
