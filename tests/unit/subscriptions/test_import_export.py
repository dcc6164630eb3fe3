"""Files of event types: what is refused, and with which reason."""

import json
from typing import Any

import pytest

from broker_project.core.json import same_json
from subscriptions.import_export import UnreadableFile, entries_in


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read as JSON"),
        (b"event_types: []", "cannot be read as JSON"),
        (b"[]", "not an object with one member"),
        (b'{"event_types": {}}', "not an object with one member"),
        (b'{"event_types": [], "more": 1}', "not an object with one member"),
        (b'{"event_types": [{"name": NaN}]}', "cannot be read as JSON"),
        (b'{"event_types": [], "event_types": []}', "the key 'event_types' occurs twice"),
        (b'{"a":' * 5000, "cannot be read as JSON"),
        (b" " * (16 * 1024 * 1024 + 1), "at most 16777216 bytes"),
        (b'{"a": "\xff"}', "cannot be read as JSON"),
        (b'{"event_types": [' + b"{}," * 1000 + b"{}]}", "at most 1000 event types; this one has 1001"),
    ],
)
def test_an_invalid_file_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(UnreadableFile) as refused:
        entries_in(content)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("entries", "problems"),
    [
        ([5, {}], {"/event_types/0": "An entry is an object", "/event_types/1": "An entry is an object"}),
        ([{"name": "A", "colour": "red"}], {"/event_types/0": "There is no field 'colour'"}),
        ([{"name": 5, "sample": {}}], {"/event_types/0/name": "Give a text", "/event_types/0/sample": "Give a text"}),
        (
            [{"name": "A", "a": 1, "kind": 2}, {"name": "A"}],
            {"/event_types/0": "There is no", "/event_types/0/kind": "Give a text"},
        ),
        ([{"name": "A", "sample": "\0"}], {"/event_types/0/sample": "Give a text, without NUL"}),
        ([{"name": name} for name in "ABA"], {"/event_types/2/name": "A occurs in this file before."}),
    ],
)
def test_invalid_entries_are_reported_with_their_place(entries: list[object], problems: dict[str, str]) -> None:
    _, reported = entries_in(b"\xef\xbb\xbf" + json.dumps({"event_types": entries}).encode())
    assert [problem.pointer for problem in reported] == list(problems)
    for problem in reported:
        assert problem.message.startswith(problems[problem.pointer])


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
