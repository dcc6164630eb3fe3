"""Whether a payload satisfies a schema; if not, what is wrong with it, and where."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

import jsonschema_rs

from subscriptions.schemas.exact_json import (
    MAX_DIGITS,
    Path,
    UnreadableJson,
    exact_json,
    found_at,
    path_of,
    pointer_of,
)
from subscriptions.schemas.limits import BrokenSchema, check_limits, reference_in, text_of

Validator = jsonschema_rs.Validator

MAX_VIOLATIONS: Final = 100
KEPT: Final = 256
"""Compiled schemas kept in a process."""
MAX_LOOKS: Final = 20_000
"""How often a value is checked against a part of the schema before the search ends."""
MAX_LEVELS: Final = 64
MAX_CHARACTERS: Final = 300
SHOWN_NAMES: Final = 5
TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
CHOICES: Final[dict[str, Callable[[int], bool]]] = {"anyOf": lambda held: held > 0, "oneOf": lambda held: held == 1}
"""How many of their schemas a value may satisfy."""
ASSERTIONS: Final = frozenset(
    [
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
    ]
)
"""Keywords about the value as a whole, independent of others."""
MASK: Final = "this value"
"""Stands for values in messages."""
FRACTION: Final = "\ud800"
"""A name that no member has, since `exact_json` refuses it."""
_EXACT: Final = Context(prec=MAX_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)


class UniqueItems:
    """The keyword `uniqueItems`, in linear time, for arrays that `exact_json` has read.

    That of `jsonschema_rs` compares all numbers with each other that one double stands for: some thousand long or very
    small ones would take minutes.
    """

    def __init__(self, _schema: dict[str, Any], is_wanted: Any, _path: list[str | int]) -> None:
        self._is_wanted = is_wanted is True

    def validate(self, value: Any) -> None:
        """Raise `ValueError` if two elements of an array are equal, or nested too deep to find out."""
        if not (self._is_wanted and isinstance(value, list) and len(value) > 1):
            return
        try:
            texts = {*map(_canonical, value)}
        except RecursionError:
            raise ValueError("the elements of this value are nested too deep to be compared") from None
        if len(texts) < len(value):
            raise ValueError("this value has non-unique elements")


class Enum:
    """The keyword `enum` where an option is a fraction: `jsonschema_rs` parses fractions anew for each comparison."""

    def __init__(self, _schema: dict[str, Any], options: list[Any], _path: list[str | int]) -> None:
        self._texts = {*map(_canonical, exact_json(json.dumps(options)))}
        try:
            jsonschema_rs.validator_for({"enum": options}, mask=MASK).validate("\0")  # which no schema has
        except jsonschema_rs.ValidationError as broken:
            self._message = broken.message

    def validate(self, value: Any) -> None:
        """Raise `ValueError` unless the value is one of them."""
        try:
            text = _canonical(value)
        except RecursionError:
            text = ""
        if text not in self._texts:
            raise ValueError(self._message)


def _plain(number: Decimal) -> int | dict[str, str]:
    """Return what equal numbers have in common, as JSON that nothing else has."""
    if number == number.to_integral_value():
        return int(number)
    return {FRACTION: str(number.normalize(_EXACT))}


_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain).encode
"""Returns the same text for equal values."""
_OPTIONS: Final[dict[str, Any]] = {
    "offline": True,
    "pattern_options": jsonschema_rs.RegexOptions(),
    "validate_formats": True,
    "mask": MASK,
}
"""`RegexOptions` is the engine without look-around and back references, linear in the text's length."""


def _options_for(schema: dict[str, Any]) -> dict[str, Any]:
    return {**_OPTIONS, "keywords": {"uniqueItems": UniqueItems, **({"enum": Enum} if _has_fractions(schema) else {})}}


def _has_fractions(value: Any, *, is_in_enum: bool = False) -> bool:
    """Return whether there is a fraction in an `enum`."""
    if isinstance(value, dict):
        return any(_has_fractions(one, is_in_enum=is_in_enum or name == "enum") for name, one in value.items())
    if isinstance(value, list):
        return any(_has_fractions(one, is_in_enum=is_in_enum) for one in value)
    return is_in_enum and isinstance(value, float)


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong with a payload."""

    pointer: str
    """Where in the payload, as a JSON pointer; "" is the whole of it."""
    message: str
    """What is wrong; it repeats the names of members, but no values."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A valid JSON Schema within its limits."""

    document: dict[str, Any]
    validator: Validator

    def violations(self, payload: str | bytes) -> list[Violation]:
        """Return what is wrong with a JSON text, nothing if it satisfies the schema; at most 101 entries."""
        try:
            value = exact_json(payload)
            if self.validator.is_valid(value):
                return []
        except UnreadableJson as broken:
            return [Violation("", f"It cannot be held against the schema: {broken}.")]
        listed = [*islice(_Search(self.document).below(Look((), value, ())), MAX_VIOLATIONS + 1)]
        if len(listed) > MAX_VIOLATIONS:
            listed[-1] = Violation("", f"There is more than these {MAX_VIOLATIONS}.")
        return listed


def compiled(schema: object) -> Schema:
    """Return the schema, ready for use; raise `BrokenSchema` if it is invalid or could take too long."""
    return _compiled(text_of(schema))


@lru_cache(maxsize=KEPT)
def _compiled(text: str) -> Schema:
    document = json.loads(text)
    check_limits(document)
    return Schema(document, _validator_of(document))


def _validator_of(schema: dict[str, Any]) -> Validator:
    """Return the validator of `schema`, of draft 2020-12 unless `$schema` names another; raise `BrokenSchema`."""
    try:
        return jsonschema_rs.validator_for(schema, **_options_for(schema))
    except jsonschema_rs.ValidationError as broken:
        given = f"{str(broken.instance)[:100]!r}"
        match broken.kind:
            case jsonschema_rs.ValidationErrorKind.Format("regex"):
                text = f"{given} is no pattern; look-around and back references are not supported."
            case jsonschema_rs.ValidationErrorKind.AnyOf() if [*broken.instance_path][-1:] == ["type"]:
                text = f"{given} is no type; give one of {', '.join(TYPES)}, or a list of them."
            case jsonschema_rs.ValidationErrorKind.AnyOf():
                text = f"{given} cannot stand here."
            case _:
                text = f"{broken.message[:300]}."
        raise BrokenSchema(text, tuple(broken.instance_path)) from None
    except ValueError as broken:
        raise BrokenSchema(f"{broken}.") from None


class Look(NamedTuple):
    """A value and the part of the schema that it is checked against."""

    schema: Path
    value: Any
    path: Path
    """The value's place in the payload."""

    def at(self, *steps: str | int) -> "Look":
        """Return the same value with a part of this part of the schema."""
        return self._replace(schema=self.schema + steps)

    def into(self, step: str | int, *steps: str | int) -> "Look":
        """Return a member or element with a part of this part of the schema."""
        return Look(self.schema + steps, self.value[step], (*self.path, step))


class _Search:
    """A depth-first search for violations that ends after `MAX_LOOKS` checks."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._parts = jsonschema_rs.validator_map_for(document, **_options_for(document))
        """A validator for each part, by its pointer as a URI fragment."""
        self._visited: set[tuple[Path, Path]] = set()
        self._looks = 0

    def below(self, look: Look) -> Iterator[Violation]:
        """Yield what is wrong at `look`, which is known not to hold: at least one violation."""
        self._visited.add((look.schema, look.path))
        schema = found_at(self._document, look.schema)
        if not isinstance(schema, dict):
            schema = {}
        elif "$ref" in schema and "/draft-0" in self._document.get("$schema", ""):
            schema = {"$ref": schema["$ref"]}  # before 2019-09 the other keywords do not count
        is_explained = False
        for deeper in self._looks_below(schema, look) if len(look.path) < MAX_LEVELS else ():
            if not self._holds(deeper):
                is_explained = True
                yield from self.below(deeper) if (deeper.schema, deeper.path) not in self._visited else ()
        messages = [*_broken_assertions(schema, look.value), *self._broken_choices(schema, look)]
        if not messages and not is_explained:
            messages = [f"this value breaks the schema at #{pointer_of(look.schema)}"]
        for text in messages:
            shown = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
            yield Violation(pointer_of(look.path), shown)

    def _holds(self, look: Look) -> bool:
        """Return whether the value satisfies that part; after too many looks, True."""
        self._looks += 1
        part = self._parts.get("#" + pointer_of(look.schema)) if self._looks <= MAX_LOOKS else None
        return part is None or part.is_valid(look.value)

    def _looks_below(self, schema: dict[str, Any], look: Look) -> Iterator[Look]:
        """Yield the looks that `schema`, the part at `look`, asks for, except `anyOf`, `oneOf`, `not`, `contains`."""
        if (reference := reference_in(schema)) is not None:
            yield look._replace(schema=path_of(reference))
        yield from (look.at("allOf", position) for position in range(len(schema.get("allOf", []))))
        if "if" in schema:
            branch = "then" if self._holds(look.at("if")) else "else"
            yield from [look.at(branch)] if branch in schema else ()
        if isinstance(look.value, dict):
            yield from _members(schema, look)
        if isinstance(look.value, list):
            yield from _elements(schema, look)

    def _broken_choices(self, schema: dict[str, Any], look: Look) -> Iterator[str]:
        for keyword, fits in CHOICES.items():
            choices = schema.get(keyword, [])
            held = sum(self._holds(look.at(keyword, position)) for position in range(len(choices)))
            if choices and not fits(held):
                yield f"this value satisfies {held} of the {len(choices)} schemas of {keyword!r}"
        if "not" in schema and self._holds(look.at("not")):
            yield "this value satisfies the schema of 'not'"
        if "contains" in schema and isinstance(look.value, list):
            looks = (look.into(position, "contains") for position in range(len(look.value)))
            if not any(map(self._holds, looks)):
                yield "no element of this value satisfies the schema of 'contains'"


def _members(schema: dict[str, Any], look: Look) -> Iterator[Look]:
    declared = schema.get("properties", {})
    yield from (look.into(name, "properties", name) for name in declared if name in look.value)
    if isinstance(schema.get("additionalProperties"), dict) and "patternProperties" not in schema:
        yield from (look.into(name, "additionalProperties") for name in look.value if name not in declared)
    if "propertyNames" in schema:
        yield from (Look((*look.schema, "propertyNames"), name, (*look.path, name)) for name in look.value)
    yield from (look.at("dependentSchemas", name) for name in schema.get("dependentSchemas", {}) if name in look.value)


def _elements(schema: dict[str, Any], look: Look) -> Iterator[Look]:
    items = schema.get("items", {})
    first, keyword = (items, "items") if isinstance(items, list) else (schema.get("prefixItems", []), "prefixItems")
    count = min(len(first), len(look.value))
    yield from (look.into(position, keyword, position) for position in range(count))
    if items is False or (isinstance(items, dict) and items):
        yield from (look.into(position, "items") for position in range(count, len(look.value)))


def _broken_assertions(schema: dict[str, Any], value: Any) -> Iterator[str]:
    """Yield what is wrong with `value` by the assertions of a part of the schema.

    They are checked one at a time, because an error of `jsonschema_rs` holds a copy of the value; of `type` with an
    empty value.
    """
    for keyword in sorted(schema.keys() & ASSERTIONS):
        if keyword == "uniqueItems" or not isinstance(schema[keyword], bool):  # a boolean exclusiveMinimum: draft 4
            checked = type(value)() if keyword == "type" and isinstance(value, dict | list) else value
            try:
                _validator_of({keyword: schema[keyword]}).validate(checked)
            except jsonschema_rs.ValidationError as broken:
                yield broken.message
    if isinstance(value, dict):
        yield from _wrong_members(schema, value)


def _wrong_members(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", [])
    for name in required if isinstance(required, list) else ():
        if name not in value:
            yield f"{name!r} is missing"
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        names = sorted(value.keys() - schema.get("properties", {}).keys())
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        if names:
            yield f"it has members that are not in the schema: {', '.join(map(repr, names[:SHOWN_NAMES]))}{more}"
