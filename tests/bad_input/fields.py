"""What every field of every JSON body refuses: the OpenAPI document says which there are, and of which type."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.bad_input.bodies import INVALID, NO_JSON, OPERATIONS, Refusal, Takes
from tests.bad_input.rows import JSON, Row, nested, text

SURROGATE: Final = b'"\\ud800"'
NUL: Final = b'"a\\u0000b"'

ANYWHERE: Final[Mapping[str, tuple[bytes, Refusal]]] = {
    "a lone surrogate": (SURROGATE, NO_JSON),
    "2,000 levels": (nested(2000), NO_JSON),
    "900 levels": (nested(900), INVALID),
    "NUL": (NUL, INVALID),
    "NUL in an object": (b'{"a": ' + NUL + b"}", INVALID),
    "NUL in an array": (b"[" + NUL + b"]", INVALID),
}
"""What no field takes, whatever its type."""

NO_NUMBER: Final = {'"5"': b'"5"', "true": b"true", "[5]": b"[5]", "{}": b"{}"}
OF_ANOTHER_TYPE: Final[Mapping[str, Mapping[str, bytes]]] = {
    "string": {"5": b"5", "1.5": b"1.5", "true": b"true", "an array": b'["a"]', "an object": b'{"a": "b"}'},
    "integer": {**NO_NUMBER, "5.0": b"5.0", "1.5": b"1.5", "1e2": b"1e2", "64 bits": b"18446744073709551616"},
    "number": NO_NUMBER,
    "boolean": {"1": b"1", "0": b"0", '"true"': b'"true"', '"yes"': b'"yes"', "[]": b"[]", "{}": b"{}"},
    "array": {"a text": b'"a"', "5": b"5", "{}": b"{}", '{"0": "a"}': b'{"0": "a"}', "[true]": b"[true]"},
    "object": {"a text": b'"a"', "5": b"5", "[]": b"[]", "true": b"true"},
}
"""What a field of a type does not take for it: nothing is coerced."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an operation's body."""

    method: str
    path: str
    """Below `/api/v1/`, as the document writes it."""
    name: str
    types: frozenset[str]

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.name}"

    def rows(self) -> Iterator[Row]:
        """Return all that it refuses."""
        for what, (value, refusal) in ANYWHERE.items():
            yield self._row(what, value, refusal)
        others = [OF_ANOTHER_TYPE[one] for one in sorted(self.types)]
        for what in set.intersection(*map(set, others)):
            yield self._row(what, others[0][what], INVALID)

    def _row(self, what: str, value: bytes, refusal: Refusal) -> Row:
        path = f"/api/v1/{OPERATIONS[self.method, self.path][1]}"
        return Row(what, self.method, path, *refusal, body=b"{" + text(self.name) + b": " + value + b"}")


def fields_in(document: Mapping[str, Any]) -> Iterator[Field]:
    """Return every field of every body that is made of fields; those of a batch are in `publishing`."""
    for (method, path), (takes, _) in OPERATIONS.items():
        if takes in {Takes.FIELDS, Takes.OPTIONS}:
            operation = document["paths"][f"/api/v1/{path}"][method.lower()]
            yield from _fields_of(operation["requestBody"]["content"][JSON]["schema"], document, method, path)


def _fields_of(schema: Mapping[str, Any], document: Mapping[str, Any], method: str, path: str) -> Iterator[Field]:
    for name, one in _resolved(schema, document)["properties"].items():
        yield Field(method, path, name, frozenset(_types_of(one, document)) - {"null"})


def _types_of(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """Return the JSON types of which a value may be."""
    given = _resolved(schema, document)
    declared = given.get("type", ())
    yield from [declared] if isinstance(declared, str) else declared
    for part in (*given.get("oneOf", ()), *given.get("anyOf", ()), *given.get("allOf", ())):
        yield from _types_of(part, document)


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema
