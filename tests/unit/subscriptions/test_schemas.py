"""What JSON Schemas say of payloads, and that no payload and no schema makes that take long."""

import json
import re
import socket
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.schemas import BrokenSchema, Schema, compiled

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["id", "lines"],
    "properties": {
        "id": {"type": "string", "pattern": "^o-"},
        "total": {"type": "number", "multipleOf": 0.01, "maximum": 1e6},
        "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/line"}},
    },
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "required": ["sku"], "properties": {"n": {"type": "integer", "minimum": 1}}}},
}
GOOD = '{"id": "o-1", "total": 19.99, "lines": [{"sku": "A", "n": 2}]}'


def violations_of(schema: dict[str, Any], payload: Any) -> list[tuple[str, str]]:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return [(violation.pointer, violation.message) for violation in compiled(schema).violations(text)]


@pytest.mark.behaviour("2.5")
def test_a_payload_that_satisfies_its_schema_has_no_violations() -> None:
    assert violations_of(ORDER, GOOD) == []


@pytest.mark.behaviour("2.5")
def test_every_violation_is_listed_with_its_place() -> None:
    broken = {"id": "x", "total": 0.001, "lines": [{"n": 0}, 5], "a": 1, "b": 2}
    assert violations_of(ORDER, broken) == [
        ("/id", 'this value does not match "^o-"'),
        ("/lines/0/n", "this value is less than the minimum of 1"),
        ("/lines/0", "'sku' is missing"),
        ("/lines/1", 'this value is not of type "object"'),
        ("/total", "this value is not a multiple of 0.01"),
        ("", "it has members that are not in the schema: 'a', 'b'"),
    ]


DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
CONDITION = {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}


@pytest.mark.parametrize(
    ("schema", "payload", "violations"),
    [
        ({"enum": [1, 2]}, 3, [": this value is not one of 1 or 2"]),
        ({"enum": [0.5, 2, "a", None]}, 3, [": this value is not one of 0.5, 2 or 2 other candidates"]),
        ({"const": {"a": 1}}, {"a": 2}, [': {"a":1} was expected']),
        ({"properties": {"a/~": {"maxLength": 1}}}, {"a/~": "xy"}, ["/a~1~0: this value is longer than 1 character"]),
        ({"anyOf": [{"type": "null"}, {"minimum": 5}]}, 3, [": this value satisfies 0 of the 2 schemas of 'anyOf'"]),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, [": this value satisfies 2 of the 2 schemas of 'oneOf'"]),
        (
            {"allOf": [{"minimum": 5}, {"multipleOf": 2}]},
            3,
            [": this value is less than the minimum of 5", ": this value is not a multiple of 2"],
        ),
        ({"not": {"type": "array"}}, [], [": this value satisfies the schema of 'not'"]),
        ({"contains": {"const": 1}}, [2], [": no element of this value satisfies the schema of 'contains'"]),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, ["/ab: this value is longer than 1 character"]),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}, ['/a: this value is not of type "string"']),
        ({"patternProperties": {"^x": False}}, {"xy": 1}, [": this value breaks the schema at #"]),
        ({"unevaluatedProperties": False}, {"x": 1}, [": this value breaks the schema at #"]),
        (
            {"prefixItems": [{"type": "string"}], "items": False},
            [1, 2],
            ['/0: this value is not of type "string"', "/1: this value breaks the schema at #/items"],
        ),
        ({"uniqueItems": True}, [1, 1.0], [": this value has non-unique elements"]),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, [": 'b' is missing"]),
        (CONDITION, {"a": 1}, [": 'b' is missing"]),
        (CONDITION, {}, [": 'c' is missing"]),
        ({"format": "date-time"}, "2026-13-01T00:00:00Z", [': this value is not a "date-time"']),
        ({"format": "colour"}, "no colour", []),
        ({"items": {"$ref": "#"}, "type": "array"}, [[], [1]], ['/1/0: this value is not of type "array"']),
        ({**DRAFT_4, "minimum": 5, "exclusiveMinimum": True}, 5, [": this value breaks the schema at #"]),
        ({**DRAFT_7, "definitions": {"a": {}}, "$ref": "#/definitions/a", "minimum": 5}, 1, []),
        ({**DRAFT_7, "items": [{"type": "string"}]}, [1], ['/0: this value is not of type "string"']),
    ],
)
@pytest.mark.behaviour("2.5")
def test_each_kind_of_violation(schema: dict[str, Any], payload: Any, violations: list[str]) -> None:
    assert [f"{pointer}: {message}" for pointer, message in violations_of(schema, json.dumps(payload))] == violations


@pytest.mark.parametrize(
    ("schema", "payload", "fine"),
    [
        ({"maximum": 2**53}, "9007199254740993", False),
        ({"multipleOf": 0.01}, "0.07", True),
        ({"maximum": 0.3}, "0.30000000000000000001", False),
        ({"type": "integer"}, "1.0", True),
        ({"maximum": 10}, "1e400", False),
        ({"minimum": 10}, "1e400", True),
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1, "a": "last"}', False),
        ({}, "1e99999999999999999999", False),
        ({}, "1" * 1001, False),
        ({}, "1e1001", False),
        ({}, "-1.5e-1001", False),
        ({"maximum": 0}, "-1e-1000", True),
        ({"uniqueItems": True}, "[1e500, 10e499]", False),
        ({"uniqueItems": True}, '[0, -0.0, "1"]', False),
        ({"uniqueItems": True}, '[{"a": [0.10], "b": 1}, {"b": 1.0, "a": [1e-1]}]', False),
        ({"uniqueItems": True}, '[1, true, "1", [1], 1e-500, 2e-500, 9007199254740992, 9007199254740993]', True),
        ({"enum": [0.3, [1.5, "a"]]}, "0.30", True),
        ({"enum": [0.3, [1.5, "a"]]}, '[15e-1, "a"]', True),
        ({"enum": [0.3, 1.0]}, "1", True),
        ({"enum": [0.3, 1e-300]}, "0.30000000000000000001", False),
        ({"type": "string"}, '"\\ud800"', False),
        ({"properties": {"a": {"type": "string"}}}, '{"a": "\\uDC00\\ud83d"}', False),
        ({"propertyNames": {"maxLength": 1}}, '{"\\ud83d\\ude00": 1}', True),
        ({"type": "string"}, '"\\u0000"', True),
    ],
)
@pytest.mark.behaviour("2.5")
def test_numbers_are_compared_exactly_or_refused(schema: dict[str, Any], payload: str, fine: bool) -> None:
    assert (violations_of(schema, payload) == []) is fine


def test_no_value_is_repeated_and_long_names_are_cut() -> None:
    card = "4111-1111-1111-1111"
    schema = {"properties": {"card": {"maxLength": 3, "enum": ["x"], "pattern": "x"}}, "additionalProperties": False}
    messages = [message for _, message in violations_of(schema, {"card": card, "n" * 1000: 1})]
    assert (len(messages), max(map(len, messages))) == (4, 301)
    assert not any(card in message for message in messages)


@pytest.mark.parametrize(
    ("schema", "pointer", "says"),
    [
        ([], "", "A schema is a JSON object"),
        (True, "", "A schema is a JSON object"),
        ("object", "", "A schema is a JSON object"),
        ({"type": "strnig"}, "/type", "'strnig' is no type; give one of array, boolean, integer"),
        ({"properties": {"a/b": {"type": 3}}}, "/properties/a~1b/type", "'3' is no type; give one of "),
        ({**DRAFT_7, "dependencies": {"a": 5}}, "/dependencies/a", "'5' cannot stand here."),
        ({"properties": 5}, "/properties", 'not of type "object"'),
        ({"properties": {"a": 5}}, "/properties/a", 'not of types "boolean", "object"'),
        ({"required": "id"}, "/required", 'not of type "array"'),
        ({"$schema": "http://127.0.0.1:9/own"}, "", "Unknown meta-schema"),
        ({"$ref": "#/$defs/none"}, "", "there is nothing there"),
        ({"$ref": "#/allOf/01", "allOf": [{}, {}]}, "", "there is nothing there"),
        ({"$ref": "#anchor"}, "/$ref", "its own parts only"),
        ({"items": {"$ref": "other.json"}}, "/items/$ref", "its own parts only"),
        ({"$ref": 5}, "/$ref", 'not of type "string"'),
        ({"properties": {"a": {"$id": "http://x/"}}}, "/properties/a", "Only the whole schema may have an id"),
        ({"$ref": "#"}, "", "refers back to itself for the same value"),
        ({"allOf": [{"if": {"$ref": "#"}}]}, "", "refers back to itself for the same value"),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}, "/$defs/a", "refers back"),
        ({"$dynamicRef": "#x"}, "/$dynamicRef", "use $ref"),
        ({"pattern": "(?=a)"}, "/pattern", "'(?=a)' is no pattern"),
        ({"pattern": "(a)\\1"}, "/pattern", "is no pattern"),
        ({"pattern": "^(a{1,1000}){1,1000}$"}, "/pattern", "is no pattern"),
        ({"description": "x" * 65536}, "", "at most 65536 bytes"),
        ({"const": "\0"}, "", "NUL"),
        ({"const": "\ud800"}, "", "lone surrogates"),
        ({"maximum": float("inf")}, "", "numbers that JSON does not have"),
    ],
)
@pytest.mark.behaviour("1.1")
def test_an_invalid_schema_is_refused_with_the_place(schema: object, pointer: str, says: str) -> None:
    with pytest.raises(BrokenSchema) as refused:
        compiled(schema)
    assert refused.value.pointer == pointer
    assert says in str(refused.value)


def nested(levels: int, last: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"not": nested(levels - 1, last)} if levels else last or {}


def test_a_schema_has_a_limited_depth() -> None:
    assert compiled(nested(63))
    with pytest.raises(BrokenSchema, match="at most 64 levels"):
        compiled(nested(64))


def doubling(definitions: int, last: dict[str, Any]) -> dict[str, Any]:
    """Return a short schema that stands for 2^definitions schemas."""
    chain = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(definitions)}
    return {"$defs": {**chain, f"d{definitions}": last}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize("last", [{"type": "string"}, {"properties": {"x": {"$ref": "#"}}}])
def test_a_short_schema_that_stands_for_a_million_is_refused(last: dict[str, Any]) -> None:
    assert compiled(doubling(8, last))
    with pytest.raises(BrokenSchema, match="more than 10000 schemas"):
        compiled(doubling(20, last))
    with pytest.raises(BrokenSchema, match="more than 150 levels"):
        compiled(doubling(200, last))


def hidden(word: str, target: str, definitions: int = 24) -> dict[str, Any]:
    """Return a schema whose doubling parts stand where no keyword says that schemas stand."""
    chain = {f"a{n}": {"allOf": [{word: target.format(n + 1)}] * 2} for n in range(definitions)}
    return {"$ref": "#/x/a0", "x": {**chain, f"a{definitions}": {"type": "string"}}}


def unevaluated(levels: int) -> dict[str, Any]:
    return {"unevaluatedProperties": False, "allOf": [unevaluated(levels - 1)]} if levels else {"type": "object"}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (hidden("$ref", "#/x/a{}"), "more than 10000 schemas"),
        (hidden("$dynamicRef", "#/x/a{}"), "use $ref"),
        (hidden("$recursiveRef", "#"), "use $ref"),
        (hidden("$ref", "urn:own#/x/a{}") | {"$id": "urn:own"}, "its own parts only"),
        (hidden("$ref", "#/x/%61{}"), "more than 10000 schemas"),
        ({"$ref": "#/x/b/c", "x": {"b": {"$id": "urn:b", "c": {"$ref": "#/d"}}}, "d": {}}, "may have an id"),
        (unevaluated(24), "more than 10000 schemas"),
    ],
)
def test_a_hidden_expansion_to_millions_of_schemas_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(BrokenSchema, match=re.escape(says)):
        compiled(schema)


def test_a_reference_is_percent_encoded() -> None:
    assert violations_of({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "string"}}}, 1) == [
        ("", 'this value is not of type "string"')
    ]


def deepening(definitions: int, levels: int) -> dict[str, Any]:
    """Return definitions with this many levels each, of which each refers to the next."""
    chain = {f"d{n}": nested(levels, {"$ref": f"#/$defs/d{n + 1}"}) for n in range(definitions)}
    return {**chain, f"d{definitions}": {}}


def test_a_schema_has_a_limited_depth_with_its_references_too() -> None:
    assert compiled({"$defs": deepening(2, 58), "$ref": "#/$defs/d0"})
    whole = deepening(40, 24)
    for first in (["d0"], sorted(whole, key=lambda name: -int(name[1:]))):
        with pytest.raises(BrokenSchema, match="more than 150 levels"):
            compiled({"$defs": whole, "anyOf": [{"$ref": f"#/$defs/{name}"} for name in first]})


@pytest.mark.parametrize("reference", ["{}/schema.json", "file:///etc/passwd", "schema.json", "urn:x:y"])
def test_nothing_is_ever_fetched(reference: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        address = "http://{}:{}".format(*listening.getsockname())
        for keyword in ("$ref", "$schema"):
            with pytest.raises(BrokenSchema):
                compiled({keyword: reference.format(address)})
        with pytest.raises(TimeoutError):
            listening.accept()


SOON_SECONDS = 20.0
"""Of CPU, on a slow machine too; what is exponential takes hours."""


def branch(of: int) -> dict[str, Any]:
    return {"properties": {"x": {"$ref": "#"}, "k": {"const": of}}}


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"anyOf": [branch(1), branch(2)]}, '{"x":' * 800 + '{"k": 3}' + "}" * 800),
        ({"allOf": [branch(1), branch(2)]}, '{"x":' * 800 + '{"k": 3}' + "}" * 800),
        ({"items": {"$ref": "#"}, "type": "array"}, "[" * 800 + "1" + "]" * 800),
        ({"items": {"type": "string"}}, json.dumps([1] * 300_000)),
        ({"items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}, json.dumps([1] * 300_000)),
        ({"items": {"type": "integer"}}, json.dumps([1] * 300_000 + ["x"])),
        ({"allOf": [{"type": "string"}] * 1000}, json.dumps([1] * 300_000)),
        ({"pattern": "^(a+)+$"}, json.dumps("a" * 100_000 + "b")),
        ({"maximum": 10}, "1e999999999"),
        ({"items": {"maximum": 10.5}}, f"[{','.join(['1e-9999'] * 20_000)}]"),
        ({"uniqueItems": True}, f"[{','.join(f'{number}e-500' for number in range(2_000))}, 1, 1]"),
        ({"items": {"enum": [n + 0.5 for n in range(5_000)]}}, json.dumps([4999.5] * 5_000 + [1])),
        (doubling(8, {"type": "string"}), "1"),
    ],
)
@pytest.mark.behaviour("2.5")
def test_hostile_payloads_are_checked_quickly(schema: dict[str, Any], payload: str) -> None:
    begun = time.process_time()
    violations = violations_of(schema, payload)
    assert time.process_time() - begun < SOON_SECONDS
    assert 1 <= len(violations) <= 101


def test_a_long_list_of_violations_is_cut_and_says_so() -> None:
    listed = violations_of({"items": {"type": "string"}}, [1] * 200)
    assert (len(listed), listed[99][0], listed[100]) == (101, "/99", ("", "There is more than these 100."))
    assert len(violations_of({"items": {"type": "string"}}, [1] * 100)) == 100


def test_a_schema_is_compiled_once_however_its_keys_stand() -> None:
    assert compiled({"type": "object", "title": "once"}) is compiled({"title": "once", "type": "object"})


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "bc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
assertions = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", "string", "integer", "null"]),
        "minimum": st.integers(-2, 2),
        "maxLength": st.integers(0, 2),
        "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
        "enum": st.lists(values, min_size=1, max_size=3),
        "uniqueItems": st.booleans(),
        "maxItems": st.integers(0, 2),
    },
)


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    below = inner | st.just({"$ref": "#"})
    named = st.dictionaries(st.sampled_from("abc"), below, max_size=3)
    lists = dict.fromkeys(("allOf", "anyOf", "oneOf"), several)
    whole = {**lists, **dict.fromkeys(("not", "if", "then", "else"), inner)}
    parts = {"properties": named, "items": below, "prefixItems": several, "contains": inner, "propertyNames": inner}
    closing = {"additionalProperties": inner, "unevaluatedProperties": inner, "patternProperties": named}
    return st.fixed_dictionaries({}, optional={**whole, **parts, **closing})


@given(schema=st.recursive(st.booleans() | assertions, combined, max_leaves=6), value=values)
def test_there_are_violations_exactly_where_the_schema_does_not_hold(schema: Any, value: Any) -> None:
    if isinstance(schema, bool):
        schema = {"allOf": [schema]}
    found = compiled(schema).violations(json.dumps(value))
    assert bool(found) is not jsonschema_rs.validator_for(schema).is_valid(value)
    assert isinstance(compiled(schema), Schema)
