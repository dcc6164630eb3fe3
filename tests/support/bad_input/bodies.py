"""What every operation refuses: bodies that are not JSON, and fields of the wrong type."""

import gzip
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tests.support.api import api_document
from tests.support.bad_input.shop import JSON, Row, nested, text

Refusal = tuple[int, str]
"""Status and code."""

MEBIBYTE: Final = 1024 * 1024
NO_JSON: Final = (400, "malformed_body")
INVALID: Final = (400, "invalid")
OTHER_TYPE: Final = (415, "unsupported_media_type")
ENCODED: Final = (415, "encoded_body")
TOO_LARGE: Final = (413, "body_too_large")
UNREADABLE: Final = (400, "unreadable_file")


_NOT_JSON: Final = (
    *("blanks", "truncated", "something after the end", "NaN", "Infinity", "1e400", "5,000 digits", "a key twice"),
    *("invalid UTF-8", "UTF-16", "a byte order mark", "1,100 levels", "50,000 levels"),
    *("a lone surrogate", "a lone surrogate as a key"),
)
_OTHER_JSON: Final = ("NUL as a key", "an array", "a text", "a number", "null", "an unknown field")
_OTHER_TYPES: Final = (
    *("no content type", "another content type", "a form", "a multipart form", "a broken content type"),
)


_NO_PAYLOAD: Final = (
    *("no body", "blanks", "truncated", "something after the end", "NaN", "Infinity"),
    *("invalid UTF-8", "UTF-16", "a byte order mark", "1,100 levels", "50,000 levels"),
)
_TEXTS: Final = ("another content type", "a form", "a multipart form", "a broken content type")


TOKEN: Final = "x" * 43

SURROGATE: Final = b'"\\ud800"'
NUL: Final = b'"a\\u0000b"'


NO_NUMBER: Final = {'"5"': b'"5"', "true": b"true", "[5]": b"[5]", "{}": b"{}"}


@dataclass(frozen=True, slots=True)
class Input:
    """A body, and what its sender says of it."""

    body: bytes
    content_type: str = JSON
    encoding: str = ""


INPUTS: Final = {
    "no body": Input(b"", ""),
    "blanks": Input(b" \n"),
    "truncated": Input(b'{"name": "a'),
    "something after the end": Input(b'{"name": "a"} x'),
    "NaN": Input(b'{"name": NaN}'),
    "Infinity": Input(b'{"name": -Infinity}'),
    "1e400": Input(b'{"name": 1e400}'),
    "5,000 digits": Input(b'{"name": ' + b"9" * 5000 + b"}"),
    "a key twice": Input(b'{"name": "a", "name": "b"}'),
    "invalid UTF-8": Input(b'{"name": "\xff"}'),
    "UTF-16": Input('{"name": "a"}'.encode("utf-16")),
    "a byte order mark": Input(b'\xef\xbb\xbf{"name": "a"}'),
    "1,100 levels": Input(b'{"a":' * 1_100 + b"1" + b"}" * 1_100),
    "50,000 levels": Input(b'{"name": ' + nested(50_000) + b"}"),
    "a lone surrogate": Input(b'{"name": "\\ud800"}'),
    "a lone surrogate as a key": Input(b'{"\\ud800": 1}'),
    "NUL as a key": Input(b'{"\\u0000": 1}'),
    "an array": Input(b"[]"),
    "a text": Input(b'"name"'),
    "a number": Input(b"5"),
    "null": Input(b"null"),
    "an unknown field": Input(b'{"there_is_no_such_field": 1}'),
    "compressed": Input(gzip.compress(b"{}"), encoding="gzip"),
    "no content type": Input(b"{}", ""),
    "another content type": Input(b"{}", "text/plain"),
    "a form": Input(b"name=a", "application/x-www-form-urlencoded"),
    "a multipart form": Input(b"--x--\r\n", "multipart/form-data; boundary=x"),
    "a broken content type": Input(b"{}", "nonsense"),
    "more than a mebibyte": Input(b'{"name": "' + b"x" * MEBIBYTE + b'"}'),
}


class Takes(Enum):
    """What an operation takes in its body."""

    FIELDS = "JSON, some of it required"
    OPTIONS = "JSON, none of it required, or nothing"
    PAYLOAD = "what is published"
    BATCH = "several events"
    FILE = "event types"
    REPLY = "anything, for whom the address says"


_JSON: Final[Mapping[str, Refusal]] = {
    **dict.fromkeys(_NOT_JSON, NO_JSON),
    **dict.fromkeys(_OTHER_JSON, INVALID),
    **dict.fromkeys(_OTHER_TYPES, OTHER_TYPE),
    "compressed": ENCODED,
    "more than a mebibyte": TOO_LARGE,
}


REFUSED: Final[Mapping[Takes, Mapping[str, Refusal]]] = {
    Takes.FIELDS: {"no body": INVALID, **_JSON},
    Takes.OPTIONS: _JSON,
    # Any JSON is somebody's payload: 1e400, 5,000 digits, keys that stand twice, lone surrogates, any type.
    Takes.PAYLOAD: {
        **dict.fromkeys(_NO_PAYLOAD, (400, "malformed_payload")),
        **dict.fromkeys(_TEXTS, (415, "unsuitable_content_type")),
        "compressed": ENCODED,
        "more than a mebibyte": TOO_LARGE,
    },
    Takes.BATCH: {
        **dict.fromkeys((*_NO_PAYLOAD, *_NOT_JSON, *_OTHER_JSON, "no content type"), NO_JSON),
        **dict.fromkeys(_TEXTS, (415, "unsuitable_content_type")),
        "compressed": ENCODED,
        "more than a mebibyte": NO_JSON,  # a batch has up to five, but this is no batch
    },
    Takes.FILE: {
        **dict.fromkeys((*_NO_PAYLOAD, *_NOT_JSON, *_OTHER_JSON, *_OTHER_TYPES), UNREADABLE),
        "compressed": ENCODED,
        "more than a mebibyte": TOO_LARGE,
    },
    Takes.REPLY: {
        **dict.fromkeys((*_NO_PAYLOAD, *_NOT_JSON, *_OTHER_JSON, *_OTHER_TYPES), (404, "unknown_callback")),
        "compressed": ENCODED,
        "more than a mebibyte": TOO_LARGE,
    },
}


_TAKEN: Final[Mapping[Takes, str]] = {
    Takes.FIELDS: """
        POST api-keys, POST event-types, POST filters/test, POST mailboxes/{name}/ack, POST mailboxes/{name}/extend,
        POST mailboxes/{name}/nack, POST publishers, POST replays, POST retry-policies, POST scripts/test,
        POST subscribers, POST subscriptions, POST subscriptions/{id}/test-filter, POST subscriptions/{id}/test-script,
        POST summary-runs
    """,
    Takes.PAYLOAD: "POST events/{event_type}, POST events/{event_type}/dry-run",
    Takes.BATCH: "POST events",
    Takes.FILE: "POST event-type-file",
    Takes.REPLY: "POST callbacks/{token}",
}
_EXISTING: Final = {
    "api-keys": "<key of neighbour>",
    "callbacks": TOKEN,
    "event-types": "<topic>",
    "events": "<topic>",
    "mailboxes": "<mailbox>",
    "retry-policies": "<policy>",
    "subscribers": "<mailbox>",
    **{f"{name}s": f"<{name}>" for name in ("message", "publisher", "replay", "subscription")},
    "deliveries": "<delivery>",
    "summary-runs": "<run>",
}
"""What stands for a name or a number in the addresses of a collection."""


def _example(method: str, path: str) -> str:
    existing = _EXISTING.get(path.partition("/")[0], "")
    return re.sub(r"\{\w+\}", "<plain>" if (method, path) == ("DELETE", "event-types/{name}") else existing, path)


DOCUMENT: Final = api_document()
_SPECIAL: Final = {one.strip(): takes for takes, operations in _TAKEN.items() for one in operations.split(",")}
OPERATIONS: Final[Mapping[tuple[str, str], tuple[Takes, str]]] = {
    (method, path): (_SPECIAL.get(f"{method} {path}", Takes.OPTIONS), _example(method, path))
    for path, method in (
        (address.removeprefix("/api/v1/"), method.upper())
        for address, operations in DOCUMENT["paths"].items()
        for method in operations
        if method != "get"
    )
}
"""What each operation that changes or tries something takes, and where it is asked here, below `/api/v1/`."""


def rows_of(operation: tuple[str, str]) -> list[Row]:
    """Return all that an operation refuses for its body alone."""
    takes, path = OPERATIONS[operation]
    return [_row(operation[0], path, what, refusal) for what, refusal in REFUSED[takes].items()]


def _row(method: str, path: str, what: str, refusal: Refusal) -> Row:
    given = INPUTS[what]
    headers: dict[str, str | bytes] = {"Content-Type": given.content_type, "Content-Encoding": given.encoding}
    return Row(what, method, f"/api/v1/{path}", *refusal, body=given.body, headers=headers)


ANYWHERE: Final[Mapping[str, tuple[bytes, Refusal]]] = {
    "a lone surrogate": (SURROGATE, NO_JSON),
    "50,000 levels": (nested(50_000), NO_JSON),
    "1,000 levels": (nested(1_000), NO_JSON),
    "900 levels": (nested(900), INVALID),
    "NUL": (NUL, INVALID),
    "NUL in an object": (b'{"a": ' + NUL + b"}", INVALID),
    "NUL in an array": (b"[" + NUL + b"]", INVALID),
}
"""What no field takes, of any type."""


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


def fields() -> Iterator[Field]:
    """Return every field of every body that is made of fields; those of a batch are in `rows.BATCHES`."""
    for (method, path), (takes, _) in OPERATIONS.items():
        operation = DOCUMENT["paths"][f"/api/v1/{path}"][method.lower()]
        if takes in {Takes.FIELDS, Takes.OPTIONS} and "requestBody" in operation:
            schema = operation["requestBody"]["content"][JSON]["schema"]
            for name, one in _resolved(schema)["properties"].items():
                yield Field(method, path, name, frozenset(_types_of(one)) - {"null"})


def _types_of(schema: Mapping[str, Any]) -> Iterator[str]:
    """Return the JSON types of which a value may be."""
    given = _resolved(schema)
    declared = given.get("type", ())
    yield from [declared] if isinstance(declared, str) else declared
    for part in (*given.get("oneOf", ()), *given.get("anyOf", ()), *given.get("allOf", ())):
        yield from _types_of(part)


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema
