"""Which bodies count as JSON."""

import pytest
from rest_framework.exceptions import ParseError

from broker_project.core.api.parsing import strict_json


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": [1, 2.5, null, true, "\xc3\xa4"]}', {"a": [1, 2.5, None, True, "ä"]}),
        (b' \n"text" ', "text"),
        (b'"\\u0000"', "\0"),
        (b'"\\ud83d\\ude00"', "😀"),
        (b"12345678901234567890123", 12345678901234567890123),
        (b"[" * 100 + b"]" * 100, None),
    ],
)
def test_json_is_read(body: bytes, value: object) -> None:
    read = strict_json(body)
    assert value is None or read == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b'{"a": ',
        b'{"a": 1}x',
        b'{"a": 1} {"b": 2}',
        b"{'a': 1}",
        b'{"a": 1,}',
        b"NaN",
        b"[Infinity]",
        b"[-Infinity]",
        b"1e400",
        b"9" * 5000,
        b'"\\ud800"',
        b'"\xff\xfe"',
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        b"[" * 2000 + b"]" * 2000,
        b"[" * 1000 + b"]" * 1000 + b"]",
        b'{"a":' * 1020 + b"1" + b"}" * 1020,
        b'{"name": "a", "name": "b"}',
        b'{"outer": [{"x": 1, "x": 1}]}',
    ],
)
def test_what_is_not_strictly_json_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError):
        strict_json(body)


def test_the_refusal_of_a_duplicate_key_names_it() -> None:
    with pytest.raises(ParseError, match="the key 'name' stands twice in an object"):
        strict_json(b'{"name": "a", "name": "b"}')
