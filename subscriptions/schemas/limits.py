"""What a schema may be, so that checking a payload ends soon whatever the payload."""

import json
from collections.abc import Iterator
from typing import Any, Final

from subscriptions.schemas.keywords import DEFINITIONS, OF_THE_SAME_VALUE, reference_in, subschemas
from subscriptions.schemas.pointers import Path, found_at, path_of, pointer_of

MOST_BYTES: Final = 64 * 1024
MOST_LEVELS: Final = 64
MOST_REFERENCES_IN_A_ROW: Final = 100
MOST_CHECKS: Final = 10_000
"""How many schemas one value may have to be held against, references followed; a doubling in each of 20 definitions
would make a million of them."""

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
        raise BrokenSchema(f"A schema has at most {MOST_LEVELS} levels.")
    try:
        text = json.dumps(schema, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (ValueError, TypeError):
        raise BrokenSchema("A schema has no lone surrogates, and no numbers that JSON does not have.") from None
    if size > MOST_BYTES:
        raise BrokenSchema(f"A schema has at most {MOST_BYTES} bytes; this one has {size}.")
    if "\\u0000" in text.replace("\\\\", ""):
        raise BrokenSchema("A schema has no NUL characters.")
    return text


def check_limits(schema: dict[str, Any]) -> None:
    """Raise `BrokenSchema` if `schema` refers to what is outside of it or may take too long."""
    for path, part in _all_parts(schema, ()):
        _check_part(path, part)
    _Expansion(schema).checks((), (), frozenset())


def _is_shallow(value: object) -> bool:
    """Tell whether `value` has few levels, going down level by level, so that no depth can break it."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        if not level:
            return True
        members = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [member for some in members for member in some]
    return False


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
    if path and isinstance(part.get("$id", part.get("id")), str):
        raise BrokenSchema("Only the whole schema may have an id: references begin there.", path)


class _Expansion:
    """Counts the schemas that a value is held against; a reference back to where one is counts nothing more."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._known: dict[Path, int] = {}

    def checks(self, path: Path, within: tuple[Path, ...], here: frozenset[Path]) -> int:
        """Return the count for the schema at `path`; those `within` lead to it, those `here` for the same value."""
        if path in here:
            raise BrokenSchema("It refers back to itself for the same value, without an end.", path)
        if path in within:
            return 0
        if len(within) > MOST_REFERENCES_IN_A_ROW:
            raise BrokenSchema(f"More than {MOST_REFERENCES_IN_A_ROW} references lead from one to the next.", path)
        if path not in self._known:
            self._known[path] = self._counted(path, self._part(path), (*within, path), here | {path})
        return self._known[path]

    def _counted(self, path: Path, part: Any, within: tuple[Path, ...], here: frozenset[Path]) -> int:
        if not isinstance(part, dict):
            return 1
        reference = reference_in(part)
        count = 1 if reference is None else 1 + self.checks(path_of(reference), within, here)
        for steps, one in subschemas(part):
            if steps[0] not in DEFINITIONS:
                there = here if steps[0] in OF_THE_SAME_VALUE else frozenset()
                count += self._counted(path + steps, one, within, there)
        if count > MOST_CHECKS:
            raise BrokenSchema(f"With its references it stands for more than {MOST_CHECKS} schemas.", path)
        return count

    def _part(self, path: Path) -> Any:
        try:
            return found_at(self._document, path)
        except LookupError:
            raise BrokenSchema(f"It refers to #{pointer_of(path)}, and there is nothing there.") from None
