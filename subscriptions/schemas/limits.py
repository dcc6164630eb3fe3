"""Limits of schemas: how large, how deep, and what they may refer to, so that every check ends soon."""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from subscriptions.schemas.exact_json import Path, found_at, path_of, pointer_of

MAX_BYTES: Final = 64 * 1024
MAX_LEVELS: Final = 64

DEFINITIONS: Final = frozenset({"$defs", "definitions"})
"""What stands there counts only where something refers to it."""


LISTED: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
NAMED: Final = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"}) | DEFINITIONS

OF_THE_SAME_VALUE: Final = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)
"""What stands there is asked of the value itself, not of a member or element."""

UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})

MAX_REFERENCE_LEVELS: Final = 150
"""How deep a schema may be with its references followed; a reference is a level."""

MAX_CHECKS: Final = 10_000
"""How many schemas one value may have to be held against, references followed; a doubling in each of 20 definitions
would make a million of them. Beside `unevaluated…` what is said of the same value counts threefold, for it is asked
again which members and elements it spoke of."""

UNSERVED: Final = ("$dynamicRef", "$recursiveRef")


class BrokenSchema(ValueError):
    """This is no schema that payloads can be held against; `pointer` says which part of it."""

    def __init__(self, text: str, path: Path = ()) -> None:
        super().__init__(text)
        self.pointer = pointer_of(path)

    def __str__(self) -> str:
        return f"At {self.pointer}: {self.args[0]}" if self.pointer else str(self.args[0])


def text_of(schema: object) -> str:
    """Return the canonical JSON text of `schema`: sorted, without blanks.

    Raises:
        BrokenSchema: it is no object, too long, too deep, or has what JSON or the database cannot keep.

    """
    if not isinstance(schema, dict):
        raise BrokenSchema('A schema is a JSON object, such as {"type": "object"}.')
    if not _is_shallow(schema):
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


def _is_shallow(value: object) -> bool:
    """Tell whether `value` has few levels, going down level by level, so that no depth can break it."""
    level = [value]
    for _ in range(MAX_LEVELS + 1):
        if not level:
            return True
        members = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [member for some in members for member in some]
    return False


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


def check_limits(schema: dict[str, Any]) -> None:
    """Raise `BrokenSchema` if `schema` refers to what is outside of it or may take too long."""
    for path, part in _all_parts(schema, ()):
        _check_part(path, part)
    _Expansion(schema).weight((), _Way())


def _all_parts(part: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if isinstance(part, dict):
        yield path, part
        for steps, inner in subschemas(part):
            yield from _all_parts(inner, path + steps)


def _check_part(path: Path, part: dict[str, Any]) -> None:
    reference = part.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        raise BrokenSchema(
            f"It refers to {reference[:100]!r}; a schema refers to its own parts only, such as #/$defs/address: "
            "nothing is fetched.",
            (*path, "$ref"),
        )
    for keyword in UNSERVED:
        if keyword in part:
            raise BrokenSchema(f"{keyword} is not served; use $ref.", (*path, keyword))
    if path:
        _refuse_id(path, part)


def _refuse_id(path: Path, part: dict[str, Any]) -> None:
    if isinstance(part.get("$id"), str) or isinstance(part.get("id"), str):
        raise BrokenSchema("Only the whole schema may have an id: references begin there.", path)


class _Way(NamedTuple):
    """How one came to a part of the schema."""

    within: frozenset[Path] = frozenset()
    """What was referred to."""
    here: frozenset[Path] = frozenset()
    """What was referred to for the same value."""
    levels: int = 0

    def down(self, *, same_value: bool) -> "_Way":
        return _Way(self.within, self.here if same_value else frozenset(), self.levels + 1)

    def to(self, path: Path) -> "_Way":
        return _Way(self.within | {path}, self.here | {path}, self.levels)


class _Weight(NamedTuple):
    """How many schemas a part stands for, and how deep, references followed."""

    checks: int
    levels: int


class _Expansion:
    """Weighs what a value is held against; a reference back to where one is weighs nothing more."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._known: dict[Path, _Weight] = {}

    def weight(self, path: Path, way: _Way) -> _Weight:
        """Return the weight of what is referred to at `path`."""
        if path in way.here:
            raise BrokenSchema("It refers back to itself for the same value, without an end.", path)
        if path in way.within:
            return _Weight(0, 0)
        if path not in self._known:
            self._known[path] = self._weighed(path, self._part(path), way.to(path))
        _check_levels(path, way.levels + self._known[path].levels)
        return self._known[path]

    def _weighed(self, path: Path, part: Any, way: _Way) -> _Weight:
        _check_levels(path, way.levels)
        if not isinstance(part, dict):
            return _Weight(1, 0)
        _check_part(path, part)
        checks, levels = 1, 0
        for weight, times in self._below(path, part, way):
            checks, levels = checks + times * weight.checks, max(levels, 1 + weight.levels)
        if checks > MAX_CHECKS:
            raise BrokenSchema(f"With its references it stands for more than {MAX_CHECKS} schemas.", path)
        return _Weight(checks, levels)

    def _below(self, path: Path, part: dict[str, Any], way: _Way) -> Iterator[tuple[_Weight, int]]:
        """Yield the weights of what `part` asks for, and how many times each counts."""
        again = 1 if UNEVALUATED.isdisjoint(part) else 3
        reference = reference_in(part)
        if reference is not None:
            yield self.weight(path_of(reference), way.down(same_value=True)), again
        for steps, one in subschemas(part):
            if steps[0] not in DEFINITIONS:
                same_value = steps[0] in OF_THE_SAME_VALUE
                weight = self._weighed(path + steps, one, way.down(same_value=same_value))
                yield weight, again if same_value else 1

    def _part(self, path: Path) -> Any:
        try:
            on_the_way = [(path[:steps], found_at(self._document, path[:steps])) for steps in range(1, len(path))]
            part = found_at(self._document, path)
        except LookupError:
            raise BrokenSchema(f"It refers to #{pointer_of(path)}, and there is nothing there.") from None
        for passed, one in on_the_way:
            if isinstance(one, dict):
                _refuse_id(passed, one)
        return part


def _check_levels(path: Path, levels: int) -> None:
    if levels > MAX_REFERENCE_LEVELS:
        raise BrokenSchema(f"With its references it has more than {MAX_REFERENCE_LEVELS} levels.", path)
