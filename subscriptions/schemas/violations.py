"""What in a value breaks a schema, and where: found one by one, going down only where something is wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from subscriptions.schemas.assertions import broken_assertions
from subscriptions.schemas.compiling import validators_of
from subscriptions.schemas.looks import Look, looks_below
from subscriptions.schemas.pointers import Path, found_at, pointer_of

MOST_LOOKS: Final = 20_000
"""How many values are held against a part of the schema before the rest is left untold."""

MOST_LEVELS: Final = 64
MOST_CHARACTERS: Final = 300

CHOICES: Final[dict[str, Callable[[int], bool]]] = {"anyOf": lambda held: held > 0, "oneOf": lambda held: held == 1}
"""Of how many of their schemas a value may be."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong with a payload."""

    pointer: str
    """Where in the payload, as a JSON pointer; "" is the whole of it."""
    message: str
    """What is wrong; it repeats the names of members, but no values."""


def violations_in(document: dict[str, Any], value: Any) -> Iterator[Violation]:
    """Yield what in `value` breaks the valid schema `document`; something, if anything does."""
    return _Search(document).below(Look((), value, ()))


class _Search:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._parts = validators_of(document)
        self._told: set[tuple[Path, Path]] = set()
        self._looks = 0

    def below(self, look: Look) -> Iterator[Violation]:
        """Yield what is wrong at `look`, which does not hold."""
        self._told.add((look.schema, look.path))
        schema = self._schema_at(look.schema)
        told = False
        for deeper in looks_below(schema, look, self._holds) if len(look.path) < MOST_LEVELS else ():
            if not self._holds(deeper):
                told = True
                yield from self.below(deeper) if (deeper.schema, deeper.path) not in self._told else ()
        for message in (*broken_assertions(schema, look.value), *self._broken_choices(schema, look)):
            told = True
            yield _violation(look, message)
        if not told:
            yield _violation(look, f"this value breaks the schema at #{pointer_of(look.schema)}")

    def _schema_at(self, path: Path) -> dict[str, Any]:
        schema = found_at(self._document, path)
        if not isinstance(schema, dict):
            return {}
        if "$ref" in schema and "/draft-0" in self._document.get("$schema", ""):
            return {"$ref": schema["$ref"]}  # before 2019-09 its siblings do not count
        return schema

    def _holds(self, look: Look) -> bool:
        """Tell whether the value satisfies that part; once there were too many looks, everything does."""
        self._looks += 1
        part = self._parts.get("#" + pointer_of(look.schema)) if self._looks <= MOST_LOOKS else None
        return part is None or part.is_valid(look.value)

    def _broken_choices(self, schema: dict[str, Any], look: Look) -> Iterator[str]:
        for keyword, fits in CHOICES.items():
            choices = schema.get(keyword, [])
            held = sum(self._holds(look.at(keyword, position)) for position in range(len(choices)))
            if choices and not fits(held):
                yield f"this value satisfies {held} of the {len(choices)} schemas of {keyword!r}"
        if "not" in schema and self._holds(look.at("not")):
            yield "this value satisfies the schema of 'not'"
        if "contains" in schema and isinstance(look.value, list) and not self._contains(look):
            yield "no element of this value satisfies the schema of 'contains'"

    def _contains(self, look: Look) -> bool:
        return any(self._holds(look.into(position, "contains")) for position in range(len(look.value)))


def _violation(look: Look, message: str) -> Violation:
    shown = message if len(message) <= MOST_CHARACTERS else f"{message[:MOST_CHARACTERS]}…"
    return Violation(pointer_of(look.path), shown)
