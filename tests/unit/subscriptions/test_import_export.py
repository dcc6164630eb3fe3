"""Files of event types: what is read, what is refused, and that what is written is read back."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.json import same_json
from subscriptions.import_export import FileFormat, UnreadableFile, entries_in, file_text, value_of, yaml_of

YAML = """
# what the shop tells
event_types:
  - name: Order.Paid
    kind: TOPIC
    sample: |
      {"id": "o-1"}
    schema:
      type: object
      required: [id]
      properties: {id: {enum: [yes, "1", 2026-11-21, 1.5, null, true]}}
"""


def test_yaml_means_what_json_would() -> None:
    (entry,), problems = entries_in(YAML.encode())
    assert problems == []
    assert entry.fields == {
        "name": "Order.Paid",
        "kind": "TOPIC",
        "sample": '{"id": "o-1"}\n',
        "schema": {
            "type": "object",
            "required": ["id"],
            "properties": {"id": {"enum": ["yes", "1", "2026-11-21", 1.5, None, True]}},
        },
    }


AT_ONCE_SECONDS = 20.0
"""Of CPU. A slow machine takes two for the longest; what is not refused in time takes minutes, or all memory."""
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an object with one member"),
        (b"event_types", "not an object with one member"),
        (b"[]", "not an object with one member"),
        (b"event_types: {}", "not an object with one member"),
        (b'{"event_types": [], "more": 1}', "not an object with one member"),
        (b'{"event_types": [}', "The file cannot be read: "),
        (b'{"event_types": [{"name": NaN}]}', "NaN is not a JSON value"),
        (b'{"event_types": [], "event_types": []}', "a key stands twice"),
        (b'{"event_types": [{"name": "A", "\\ud800": 1, "\\ud800": 2}]}', r"its keys are 'name', '\ud800'"),
        (b'{"' + b"k" * 5000 + b'": 1, "' + b"k" * 5000 + b'": 2}', "'" + "k" * 100 + "'."),
        (b'{"a":' * 5000, "nested too deep"),
        (b"event_types: []\nevent_types: []", "the key 'event_types' stands twice (line 1, column 1)"),
        (b"event_types: [\n", "(line 2, column 1)"),
        (b"1: []", "a key is no text"),
        (BOMB.encode(), "aliases such as *a are not read (line 2, column 8)"),
        (b"event_types: !!python/object/apply:os.system [ls]", "tags such as"),
        (b"event_types: !!set {a}", "tags such as"),
        (b"event_types: [" + b"[]," * 300_000 + b"]", "too many keys and values"),
        (b"".join(b"k%d: 1\n" % key for key in range(60_000)), "not an object with one member"),
        (b"- " * 200_000, "more than 100 levels"),
        (b"[" * 200_000, "more than 100 levels"),
        (b" " * (16 * 1024 * 1024 + 1), "at most 16777216 bytes"),
        (b"a: \x00", "cannot be read as YAML"),
        (b"a: \xff", "not UTF-8: byte 3"),
        (b'{"event_types": [' + b"{}," * 1000 + b"{}]}", "at most 1000 event types; this one has 1001"),
    ],
)
def test_an_invalid_file_is_refused_quickly(content: bytes, says: str) -> None:
    begun = time.process_time()
    with pytest.raises(UnreadableFile) as refused:
        entries_in(content)
    assert says in str(refused.value)
    assert time.process_time() - begun < AT_ONCE_SECONDS


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        ("[5, {}]", {"/event_types/0": "An entry is an object", "/event_types/1": "An entry is an object"}),
        ("[{name: A, colour: red}]", {"/event_types/0": "There is no field 'colour'"}),
        ("[{name: 5, sample: {}}]", {"/event_types/0/name": "Give a text", "/event_types/0/sample": "Give a text"}),
        (
            "[{name: A, a: 1, kind: 2}, {name: A}]",
            {"/event_types/0": "There is no", "/event_types/0/kind": "Give a text"},
        ),
        ('[{name: A, sample: "\\0"}]', {"/event_types/0/sample": "Give a text, without NUL"}),
        ("[{name: A}, {name: B}, {name: A}]", {"/event_types/2/name": "A stands in this file before."}),
    ],
)
def test_invalid_entries_are_reported_with_their_place(content: str, problems: dict[str, str]) -> None:
    _, reported = entries_in(f"event_types: {content}".encode())
    assert [problem.pointer for problem in reported] == list(problems)
    for problem in reported:
        assert problem.message.startswith(problems[problem.pointer])


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
tricky = st.sampled_from(
    ["yes", "no", "~", "null", "1e3", "0x1f", "1_000", "2026-11-21", "a: b", "- a", "|", "\n", " x", "x \n y\n"]
)


@given(json_values | tricky)
def test_any_value_written_as_yaml_is_read_back(value: Any) -> None:
    read = value_of(yaml_of(value))
    assert (read, str(read)) == (value, str(value))


@given(name=texts, sample=texts | tricky, schema=json_values, written_in=st.sampled_from(FileFormat))
def test_a_written_file_is_read_back(name: str, sample: str, schema: Any, written_in: FileFormat) -> None:
    fields = {"name": name, "kind": "TOPIC", "content_type": "a/b", "description": "", "sample": sample}
    (entry,), problems = entries_in(file_text([{**fields, "schema": schema}], written_in).encode())
    assert problems == []
    assert entry.fields == {**fields, "schema": schema}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": [1, 1.0]}, {"a": [1.0, 1]}, True),
        (1e23, 10**23, True),
        (True, 1, False),
        ([0], [False], False),
        ({"a": None}, {}, False),
        ([1], [1, 2], False),
        ("1", 1, False),
    ],
)
def test_values_are_the_same_as_in_json(one: Any, other: Any, same: bool) -> None:
    assert same_json(one, other) is same_json(other, one) is same
