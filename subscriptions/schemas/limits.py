"""Limits of schemas: how large, how deep, and what they may refer to, so that every check ends soon."""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from subscriptions.schemas.exact_json import Path, found_at, path_of, pointer_of

MAX_BYTES: Final = 64 * 1024
MAX_LEVELS: Final = 64
MAX_REFERENCE_LEVELS: Final = 150
"""Levels of a schema with its references followed; a reference is a level."""
MAX_CHECKS: Final = 10_000
"""Schemas that one value may be checked against, references followed: with two references to the next one in each of
20 definitions it would be a million. Next to `unevaluated…`, schemas of the same value count threefold, because they
are asked again which members and elements they have evaluated."""

DEFINITIONS: Final = frozenset({"$defs", "definitions"})
"""Their schemas count only if something refers to them."""
LISTED: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
NAMED: Final = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"}) | DEFINITIONS
SINGLE: Final = frozenset(
    [
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
    ]
)
"""Keywords with a list of schemas, schemas by name, and one schema."""
SAME_VALUE: Final = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)
"""Keywords whose schemas are for the value itself, not for a member or element."""
UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
NOT_SUPPORTED: Final = ("$dynamicRef", "$recursiveRef")


class BrokenSchema(ValueError):
    """Payloads cannot be checked against this schema; `pointer` says because of which part."""

    def __init__(self, text: str, path: Path = ()) -> None:
        super().__init__(text)
        self.pointer = pointer_of(path)

    def __str__(self) -> str:
        return f"At {self.pointer}: {self.args[0]}" if self.pointer else str(self.args[0])


def text_of(schema: object) -> str:
    """Return the canonical JSON text of `schema`, sorted, without blanks; raise `BrokenSchema` if it breaks a limit."""
    if not isinstance(schema, dict):
        raise BrokenSchema('A schema is a JSON object, such as {"type": "object"}.')
    level: list[Any] = [schema]
    for _ in range(MAX_LEVELS):  # level by level, so that no depth exhausts the stack
        containers = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [member for members in containers for member in members]
    if level:
        raise BrokenSchema(f"A schema has at most {MAX_LEVELS} levels.")
    try:
        text = json.dumps(schema, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (ValueError, TypeError):
        raise BrokenSchema("A schema has no lone surrogates, and no numbers that JSON does not have.") from None
    if size > MAX_BYTES:
        raise BrokenSchema(f"A schema has at most {MAX_BYTES} bytes; this one has {size}.")
    if "\\u0000" in text.replace("\\\\", ""):
        raise BrokenSchema("A schema has no NUL characters.")
    return text


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield the schemas directly in `schema`, with the steps to each."""
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


def check_limits(document: dict[str, Any]) -> None:
    """Raise `BrokenSchema` if a schema refers to anything outside of it or could take too long."""
    parts: list[tuple[Path, Any]] = [((), document)]
    while parts:
        path, part = parts.pop(0)
        if isinstance(part, dict):
            _check_part(path, part)
            parts[:0] = [(path + steps, inner) for steps, inner in subschemas(part)]
    _Expansion(document).weight((), _Way())


def _check_part(path: Path, part: dict[str, Any]) -> None:
    reference = part.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        raise BrokenSchema(
            f"It refers to {reference[:100]!r}; a schema refers to its own parts only, such as #/$defs/address: "
            "nothing is fetched.",
            (*path, "$ref"),
        )
    for keyword in NOT_SUPPORTED:
        if keyword in part:
            raise BrokenSchema(f"{keyword} is not supported; use $ref.", (*path, keyword))
    if path:
        _refuse_id(path, part)


def _refuse_id(path: Path, part: dict[str, Any]) -> None:
    if isinstance(part.get("$id"), str) or isinstance(part.get("id"), str):
        raise BrokenSchema("Only the whole schema may have an id: references begin there.", path)


class _Way(NamedTuple):
    """How a part of the schema was reached."""

    within: frozenset[Path] = frozenset()
    """References followed."""
    here: frozenset[Path] = frozenset()
    """References followed for the same value."""
    levels: int = 0

    def down(self, *, same_value: bool) -> "_Way":
        return _Way(self.within, self.here if same_value else frozenset(), self.levels + 1)


class _Weight(NamedTuple):
    """How many schemas a part stands for, and how deep they are, references followed."""

    checks: int
    levels: int


class _Expansion:
    """Counts what a value is checked against; a reference back to a part that is being counted adds nothing."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._known: dict[Path, _Weight] = {}

    def weight(self, path: Path, way: _Way) -> _Weight:
        """Return the weight of the part at `path`, which is referred to."""
        if path in way.here:
            raise BrokenSchema("It refers back to itself for the same value, without an end.", path)
        if path in way.within:
            return _Weight(0, 0)
        if path not in self._known:
            part_way = _Way(way.within | {path}, way.here | {path}, way.levels)
            self._known[path] = self._weighed(path, self._part(path), part_way)
        _check_levels(path, way.levels + self._known[path].levels)
        return self._known[path]

    def _weighed(self, path: Path, part: Any, way: _Way) -> _Weight:
        _check_levels(path, way.levels)
        if not isinstance(part, dict):
            return _Weight(1, 0)
        _check_part(path, part)
        again = 1 if UNEVALUATED.isdisjoint(part) else 3
        checks, levels = 1, 0
        if (reference := reference_in(part)) is not None:
            weight = self.weight(path_of(reference), way.down(same_value=True))
            checks, levels = 1 + again * weight.checks, 1 + weight.levels
        for steps, inner in subschemas(part):
            if steps[0] not in DEFINITIONS:
                same_value = steps[0] in SAME_VALUE
                weight = self._weighed(path + steps, inner, way.down(same_value=same_value))
                checks += weight.checks * (again if same_value else 1)
                levels = max(levels, 1 + weight.levels)
        if checks > MAX_CHECKS:
            raise BrokenSchema(f"With its references it stands for more than {MAX_CHECKS} schemas.", path)
        return _Weight(checks, levels)

    def _part(self, path: Path) -> Any:
        try:
            passed = [(path[:steps], found_at(self._document, path[:steps])) for steps in range(1, len(path))]
            part = found_at(self._document, path)
        except LookupError:
            raise BrokenSchema(f"It refers to #{pointer_of(path)}, and there is nothing there.") from None
        for passed_path, one in passed:
            if isinstance(one, dict):
                _refuse_id(passed_path, one)
        return part


def _check_levels(path: Path, levels: int) -> None:
    if levels > MAX_REFERENCE_LEVELS:
        raise BrokenSchema(f"With its references it has more than {MAX_REFERENCE_LEVELS} levels.", path)
