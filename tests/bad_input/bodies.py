"""What every operation refuses, whatever it does: bodies that are no JSON, not the JSON it takes, or none at all.

`OPERATIONS` is kept by hand, so that a new operation says here what kind of body it takes.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.bad_input.rows import JSON, Row, nested

Refusal = tuple[int, str]
"""Status and code."""

MEBIBYTE: Final = 1024 * 1024
NO_JSON: Final = (400, "malformed_body")
INVALID: Final = (400, "invalid")
OTHER_TYPE: Final = (415, "unsupported_media_type")
ENCODED: Final = (415, "encoded_body")
TOO_LARGE: Final = (413, "body_too_large")
UNREADABLE: Final = (400, "unreadable_file")


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
    "2,000 levels": Input(b'{"name": ' + nested(2000) + b"}"),
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
    "a content type that is none": Input(b"{}", "nonsense"),
    "more than a mebibyte": Input(b'{"name": "' + b"x" * MEBIBYTE + b'"}'),
}


class Takes(Enum):
    """What an operation takes in its body."""

    FIELDS = "JSON, some of it required"
    OPTIONS = "JSON, none of it required"
    NOTHING = "no body, or {}"
    PAYLOAD = "what is published"
    BATCH = "several events"
    FILE = "event types"
    REPLY = "anything, for whom the address says"


_NOT_JSON: Final = (
    *("blanks", "truncated", "something after the end", "NaN", "Infinity", "1e400", "5,000 digits", "a key twice"),
    *("invalid UTF-8", "UTF-16", "a byte order mark", "2,000 levels"),
    *("a lone surrogate", "a lone surrogate as a key"),
)
_OTHER_JSON: Final = ("NUL as a key", "an array", "a text", "a number", "null", "an unknown field")
_OTHER_TYPES: Final = (
    *("no content type", "another content type", "a form", "a multipart form", "a content type that is none"),
)
_JSON: Final[Mapping[str, Refusal]] = {
    **dict.fromkeys(_NOT_JSON, NO_JSON),
    **dict.fromkeys(_OTHER_JSON, INVALID),
    **dict.fromkeys(_OTHER_TYPES, OTHER_TYPE),
    "compressed": ENCODED,
    "more than a mebibyte": TOO_LARGE,
}
_NO_PAYLOAD: Final = (
    *("no body", "blanks", "truncated", "something after the end", "NaN", "Infinity"),
    *("invalid UTF-8", "UTF-16", "a byte order mark", "2,000 levels"),
)
_TEXTS: Final = ("another content type", "a form", "a multipart form", "a content type that is none")

REFUSED: Final[Mapping[Takes, Mapping[str, Refusal]]] = {
    Takes.FIELDS: {"no body": INVALID, **_JSON},
    Takes.OPTIONS: _JSON,
    Takes.NOTHING: _JSON,
    # Any JSON is somebody's payload: 1e400, 5,000 digits, keys that stand twice, lone surrogates, whatever the type.
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
        "more than a mebibyte": NO_JSON,  # a batch has up to five, but this is none
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

TOKEN: Final = "x" * 43
OPERATIONS: Final[Mapping[tuple[str, str], tuple[Takes, str]]] = {
    ("POST", "api-keys"): (Takes.FIELDS, "api-keys"),
    ("POST", "api-keys/{id}/revoke"): (Takes.NOTHING, "api-keys/<key of neighbour>/revoke"),
    ("POST", "api-keys/{id}/rotate"): (Takes.OPTIONS, "api-keys/<key of neighbour>/rotate"),
    ("POST", "callbacks/{token}"): (Takes.REPLY, f"callbacks/{TOKEN}"),
    ("POST", "deliveries/{id}/release"): (Takes.NOTHING, "deliveries/<delivery>/release"),
    ("POST", "deliveries/{id}/resubmit"): (Takes.OPTIONS, "deliveries/<delivery>/resubmit"),
    ("POST", "event-type-file"): (Takes.FILE, "event-type-file"),
    ("POST", "event-types"): (Takes.FIELDS, "event-types"),
    ("PATCH", "event-types/{name}"): (Takes.OPTIONS, "event-types/<topic>"),
    ("DELETE", "event-types/{name}"): (Takes.NOTHING, "event-types/<plain>"),
    ("POST", "events"): (Takes.BATCH, "events"),
    ("POST", "events/{event_type}"): (Takes.PAYLOAD, "events/<topic>"),
    ("POST", "filters/test"): (Takes.FIELDS, "filters/test"),
    ("POST", "mailboxes/{name}/ack"): (Takes.FIELDS, "mailboxes/<mailbox>/ack"),
    ("POST", "mailboxes/{name}/extend"): (Takes.FIELDS, "mailboxes/<mailbox>/extend"),
    ("POST", "mailboxes/{name}/nack"): (Takes.FIELDS, "mailboxes/<mailbox>/nack"),
    ("POST", "mailboxes/{name}/next"): (Takes.OPTIONS, "mailboxes/<mailbox>/next"),
    ("POST", "mailboxes/{name}/purge"): (Takes.NOTHING, "mailboxes/<mailbox>/purge"),
    ("POST", "messages/{id}/resubmit"): (Takes.NOTHING, "messages/<message>/resubmit"),
    ("POST", "publishers"): (Takes.FIELDS, "publishers"),
    ("PATCH", "publishers/{name}"): (Takes.OPTIONS, "publishers/<publisher>"),
    ("DELETE", "publishers/{name}"): (Takes.NOTHING, "publishers/<publisher>"),
    ("POST", "replays"): (Takes.FIELDS, "replays"),
    ("POST", "replays/{id}/cancel"): (Takes.NOTHING, "replays/<replay>/cancel"),
    ("POST", "retry-policies"): (Takes.FIELDS, "retry-policies"),
    ("PATCH", "retry-policies/{name}"): (Takes.OPTIONS, "retry-policies/<policy>"),
    ("DELETE", "retry-policies/{name}"): (Takes.NOTHING, "retry-policies/<policy>"),
    ("POST", "scripts/test"): (Takes.FIELDS, "scripts/test"),
    ("POST", "subscribers"): (Takes.FIELDS, "subscribers"),
    ("PATCH", "subscribers/{name}"): (Takes.OPTIONS, "subscribers/<mailbox>"),
    ("DELETE", "subscribers/{name}"): (Takes.NOTHING, "subscribers/<mailbox>"),
    ("POST", "subscribers/{name}/activate"): (Takes.NOTHING, "subscribers/<mailbox>/activate"),
    ("POST", "subscribers/{name}/inactivate"): (Takes.NOTHING, "subscribers/<mailbox>/inactivate"),
    ("POST", "subscribers/{name}/pause"): (Takes.OPTIONS, "subscribers/<mailbox>/pause"),
    ("POST", "subscribers/{name}/resume"): (Takes.NOTHING, "subscribers/<mailbox>/resume"),
    ("POST", "subscriptions"): (Takes.FIELDS, "subscriptions"),
    ("PATCH", "subscriptions/{id}"): (Takes.OPTIONS, "subscriptions/<subscription>"),
    ("DELETE", "subscriptions/{id}"): (Takes.NOTHING, "subscriptions/<subscription>"),
    ("POST", "subscriptions/{id}/activate"): (Takes.NOTHING, "subscriptions/<subscription>/activate"),
    ("POST", "subscriptions/{id}/backfill"): (Takes.OPTIONS, "subscriptions/<subscription>/backfill"),
    ("POST", "subscriptions/{id}/cancel-deliveries"): (
        Takes.NOTHING,
        "subscriptions/<subscription>/cancel-deliveries",
    ),
    ("POST", "subscriptions/{id}/end-overlap"): (Takes.NOTHING, "subscriptions/<subscription>/end-overlap"),
    ("POST", "subscriptions/{id}/inactivate"): (Takes.NOTHING, "subscriptions/<subscription>/inactivate"),
    ("POST", "subscriptions/{id}/pause"): (Takes.OPTIONS, "subscriptions/<subscription>/pause"),
    ("POST", "subscriptions/{id}/resume"): (Takes.NOTHING, "subscriptions/<subscription>/resume"),
    ("POST", "subscriptions/{id}/rotate-secret"): (Takes.NOTHING, "subscriptions/<subscription>/rotate-secret"),
    ("POST", "subscriptions/{id}/send-test-event"): (Takes.NOTHING, "subscriptions/<subscription>/send-test-event"),
    ("POST", "subscriptions/{id}/test-filter"): (Takes.FIELDS, "subscriptions/<subscription>/test-filter"),
    ("POST", "subscriptions/{id}/test-script"): (Takes.FIELDS, "subscriptions/<subscription>/test-script"),
    ("POST", "summary-runs"): (Takes.FIELDS, "summary-runs"),
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
