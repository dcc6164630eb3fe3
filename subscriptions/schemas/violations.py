"""Find what in a payload breaks its schema, and where."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jsonschema_rs

from subscriptions.schemas.exact_json import Path, found_at, path_of, pointer_of
from subscriptions.schemas.limits import BrokenSchema, reference_in

Validator = jsonschema_rs.Validator

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")

SHOWN_NAMES: Final = 5

MAX_LOOKS: Final = 20_000
"""How many values are held against a part of the schema before the rest is left untold."""

MAX_LEVELS: Final = 64
MAX_CHARACTERS: Final = 300

CHOICES: Final[dict[str, Callable[[int], bool]]] = {"anyOf": lambda held: held > 0, "oneOf": lambda held: held == 1}
"""Of how many of their schemas a value may be."""

_OPTIONS: Final[dict[str, Any]] = {
    "offline": True,
    "pattern_options": jsonschema_rs.RegexOptions(),
    "validate_formats": True,
    "mask": "this value",
}
"""`RegexOptions` is the engine without look-around and back references, linear in the text's length."""


def validator_of(schema: dict[str, Any]) -> Validator:
    """Return what tells whether a value satisfies `schema`; of draft 2020-12 unless `$schema` says another.

    Raises:
        BrokenSchema: it is not valid by its draft.

    """
    try:
        return jsonschema_rs.validator_for(schema, **_OPTIONS)
    except jsonschema_rs.ValidationError as broken:
        raise BrokenSchema(_said(broken), tuple(broken.instance_path)) from None
    except ValueError as broken:
        raise BrokenSchema(f"{broken}.") from None


def validators_of(schema: dict[str, Any]) -> jsonschema_rs.ValidatorMap:
    """Return a validator for each part of a schema that is valid, by its pointer as a URI fragment."""
    return jsonschema_rs.validator_map_for(schema, **_OPTIONS)


def _said(broken: jsonschema_rs.ValidationError) -> str:
    match broken.kind:
        case jsonschema_rs.ValidationErrorKind.Format("regex"):
            return f"{str(broken.instance)[:100]!r} is no pattern; look-around and back references are not served."
        case jsonschema_rs.ValidationErrorKind.AnyOf() if [*broken.instance_path][-1:] == ["type"]:
            return f"{str(broken.instance)[:100]!r} is no type; give one of {', '.join(TYPES)}, or a list of them."
        case jsonschema_rs.ValidationErrorKind.AnyOf():
            return f"{str(broken.instance)[:100]!r} is nothing that may stand here."
    return f"{broken.message[:300]}."


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
        for deeper in looks_below(schema, look, self._holds) if len(look.path) < MAX_LEVELS else ():
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
        part = self._parts.get("#" + pointer_of(look.schema)) if self._looks <= MAX_LOOKS else None
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
    shown = message if len(message) <= MAX_CHARACTERS else f"{message[:MAX_CHARACTERS]}…"
    return Violation(pointer_of(look.path), shown)
