"""What a schema may refer to, so that checking a payload ends soon whatever the payload."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from subscriptions.schemas.keywords import DEFINITIONS, OF_THE_SAME_VALUE, UNEVALUATED, reference_in, subschemas
from subscriptions.schemas.limits import BrokenSchema
from subscriptions.schemas.pointers import Path, found_at, path_of, pointer_of

MOST_LEVELS: Final = 150
"""How deep a schema may be with its references followed; a reference is a level."""

MOST_CHECKS: Final = 10_000
"""How many schemas one value may have to be held against, references followed; a doubling in each of 20 definitions
would make a million of them. Beside `unevaluated…` what is said of the same value counts threefold, for it is asked
again which members and elements it spoke of."""

UNSERVED: Final = ("$dynamicRef", "$recursiveRef")


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
        if checks > MOST_CHECKS:
            raise BrokenSchema(f"With its references it stands for more than {MOST_CHECKS} schemas.", path)
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
    if levels > MOST_LEVELS:
        raise BrokenSchema(f"With its references it has more than {MOST_LEVELS} levels.", path)
