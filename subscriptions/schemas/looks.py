"""Which parts of a schema must hold for which parts of a value, so that the whole holds."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from subscriptions.schemas.keywords import reference_in
from subscriptions.schemas.pointers import Path, path_of


class Look(NamedTuple):
    """A value that is held against a part of the schema."""

    schema: Path
    value: Any
    path: Path
    """Where in the payload the value stands."""

    def at(self, *steps: str | int) -> "Look":
        """Return the look of the same value at a part of this part of the schema."""
        return self._replace(schema=self.schema + steps)

    def into(self, step: str | int, *steps: str | int) -> "Look":
        """Return the look of a member or element, by a part of this part of the schema."""
        return Look(self.schema + steps, self.value[step], (*self.path, step))


def looks_below(schema: dict[str, Any], look: Look, holds: Callable[[Look], bool]) -> Iterator[Look]:
    """Yield the looks that `schema`, which stands at `look`, asks for; what it asks beside them, others say."""
    yield from _of_the_same_value(schema, look, holds)
    if isinstance(look.value, dict):
        yield from _of_members(schema, look)
    if isinstance(look.value, list):
        yield from _of_elements(schema, look)


def _of_the_same_value(schema: dict[str, Any], look: Look, holds: Callable[[Look], bool]) -> Iterator[Look]:
    reference = reference_in(schema)
    if reference is not None:
        yield look._replace(schema=path_of(reference))
    yield from (look.at("allOf", position) for position in range(len(schema.get("allOf", []))))
    if "if" in schema:
        branch = "then" if holds(look.at("if")) else "else"
        yield from [look.at(branch)] if branch in schema else ()


def _of_members(schema: dict[str, Any], look: Look) -> Iterator[Look]:
    declared = schema.get("properties", {})
    yield from (look.into(name, "properties", name) for name in declared if name in look.value)
    if isinstance(schema.get("additionalProperties"), dict) and "patternProperties" not in schema:
        yield from (look.into(name, "additionalProperties") for name in look.value if name not in declared)
    if "propertyNames" in schema:
        yield from (Look((*look.schema, "propertyNames"), name, (*look.path, name)) for name in look.value)
    yield from (look.at("dependentSchemas", name) for name in schema.get("dependentSchemas", {}) if name in look.value)


def _of_elements(schema: dict[str, Any], look: Look) -> Iterator[Look]:
    items = schema.get("items", {})
    first, keyword = (items, "items") if isinstance(items, list) else (schema.get("prefixItems", []), "prefixItems")
    count = min(len(first), len(look.value))
    yield from (look.into(position, keyword, position) for position in range(count))
    if items is False or (isinstance(items, dict) and items):
        yield from (look.into(position, "items") for position in range(count, len(look.value)))
