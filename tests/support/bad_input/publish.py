"""What publishing refuses: names, headers, what does not go together, batches, CloudEvents in every mode."""

from collections.abc import Mapping
from typing import Any, Final

from tests.support.bad_input.shop import JSON, Row, nested, text

STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
METADATA: Final = (400, "invalid_metadata")
CALLBACK: Final = (400, "unsuitable_callback")
CLOUD_EVENT: Final = (400, "invalid_cloud_event")
ITEMS: Final = (422, "invalid_items")
NO_BATCH: Final = (400, "malformed_body")
EVENTS: Final = "/api/v1/events"


def _event(
    what: str,
    refusal: tuple[int, str],
    /,
    *,
    to: str = "<topic>",
    body: bytes = b"{}",
    key: str = "publisher",
    **headers: Any,
) -> Row:
    """Return one event that is refused; headers are named with `_` for `-`, but for `FILTER_STRING`."""
    named: dict[str, str | bytes] = {
        name if name == "FILTER_STRING" else name.replace("_", "-"): value for name, value in headers.items()
    }
    return Row(what, "POST", f"{EVENTS}/{to}", *refusal, body=body, headers=named, key=key)


def _same(value: str, *names: str) -> dict[str, Any]:
    """Return headers that all have the same value."""
    return dict.fromkeys(names, value)


def _batch(what: str, refusal: tuple[int, str], body: bytes, **headers: str) -> Row:
    named: dict[str, str | bytes] = {name.replace("_", "-"): value for name, value in headers.items()}
    return Row(what, "POST", EVENTS, *refusal, body=body, headers=named, key="publisher")


def _items(*items: Mapping[str, object] | bytes) -> bytes:
    whole = [one if isinstance(one, bytes) else text(one) for one in items]
    return b'{"events": [' + b", ".join(whole) + b"]}"


UNKNOWN: Final = (404, "unknown_event_type")
NAMES: Final = [
    _event("an unknown event type", UNKNOWN, to="There.Is.None"),
    _event("dots", UNKNOWN, to=".."),
    _event("a path", (404, "not_found"), to="..%2F<topic>"),
    _event("NUL", UNKNOWN, to="%00"),
    _event("a name with NUL behind it", UNKNOWN, to="<topic>%00"),
    _event("a line end", UNKNOWN, to="<topic>%0A"),
    _event("an emoji", UNKNOWN, to="%F0%9F%98%80"),
    _event("no UTF-8", UNKNOWN, to="%FF"),
    _event("a surrogate", UNKNOWN, to="%ED%A0%80"),
    _event("a broken escape", UNKNOWN, to="%zz"),
    _event("256 characters", UNKNOWN, to="x" * 256),
    _event("5,000 characters", UNKNOWN, to="x" * 5000),
    _event("another case", UNKNOWN, to="bad.topic"),
    _event("the broker's own", (403, "event_type_not_allowed"), to="Broker.Line.Paused"),
]

HEADERS: Final = [
    _event("an empty key", METADATA, Idempotency_Key=b" "),
    _event("a key of 256 characters", METADATA, Idempotency_Key="x" * 256),
    _event("a key with a blank", METADATA, Idempotency_Key="a b"),
    _event("a key with a tab", METADATA, Idempotency_Key="a\tb"),
    _event("an empty filter string", METADATA, FILTER_STRING=b" "),
    _event("a filter string of 4,097 characters", METADATA, FILTER_STRING="x" * 4097),
    _event("a content type of 256 characters", METADATA, Content_Type=JSON + ";" + "x" * 256),
    _event("an unknown durability", METADATA, Broker_Durability="eventual"),
    _event("another case of volatile", METADATA, Broker_Durability="Volatile"),
    _event("two durabilities", METADATA, Broker_Durability="volatile, guaranteed"),
    *(
        _event(f"a time to live of {ttl!r}", METADATA, Broker_TTL=ttl)
        for ttl in (" ", "0", "-1", "1.5", "1e3", "31d", "5 m", "5M", "9" * 20, "P1D", "abc")
    ),
    *(
        _event(f"not before {time!r}", METADATA, Broker_Not_Before=time)
        for time in (
            *(" ", "now", "2026-12-24", "2026-12-24T18:00:00", "2026-13-01T00:00:00Z", "9999-01-01T00:00:00Z"),
            *("0001-01-01T00:00:00+14:00", "1798135200", "Thu, 32 Dec 2026 18:00:00 GMT"),
        )
    ),
    *(
        _event(f"to {name[:20]!r}", METADATA, Broker_Destination=name)
        for name in (" ", "a b", "../up", "a,b", "x" * 256, "-a")
    ),
    *(
        _event(f"{name} that is not ASCII", (400, "unreadable_header"), **_same("\u00e9", name))
        for name in (
            *("Idempotency_Key", "FILTER_STRING", "Broker_TTL", "Broker_Destination", "CallbackURL", "ce_id", "X_A"),
        )
    ),
    _event("headers of 33 KiB", METADATA, **_same("a" * 8000, *(f"X-{n}" for n in range(5)))),
    _event("a header of 8 KiB", METADATA, X_Long="a" * 8193),
]

CALLBACKS: Final = [
    *(
        _event(f"the CallbackURL {url[:40]!r}", CALLBACK, to="<queue>", CallbackURL=url)
        for url in (
            *(b" ", "/done", "//shop.example/done", "https:///done", "ftp://shop.example/done", "webr://x"),
            *("PUT:https://shop.example/done", "https://shop.example/a b", "https://shop.example/#done"),
            *("https://me:secret@shop.example/done", "https://me@shop.example/done", "https://@shop.example/done"),
            *("https://shop.example\\@127.0.0.1/", "https://shop.example:0/", "https://shop.example:99999/"),
            *("https://shop.example/" + "x" * 2028, "http://10.0.0.1/done", "http://0x0a.1/done"),
            *("http://[::ffff:10.0.0.1]/done", "http://169.254.169.254/latest"),
        )
    ),
    _event("a CallbackURL for a TOPIC event", METADATA, CallbackURL="https://shop.example/done"),
    _event("a CallbackURL for a SYNC event", METADATA, to="<sync>", CallbackURL="https://shop.example/done"),
]

TOGETHER: Final = [
    _event("a destination for a QUEUE event", METADATA, to="<queue>", Broker_Destination="<mailbox>"),
    _event("a destination for a SYNC event", METADATA, to="<sync>", Broker_Destination="<mailbox>"),
    _event("a key for a SYNC event", METADATA, to="<sync>", Idempotency_Key="once"),
    _event("a time to live for a SYNC event", METADATA, to="<sync>", Broker_TTL="5m"),
    _event("a delayed SYNC event", METADATA, to="<sync>", Broker_Not_Before="Thu, 24 Dec 2020 18:00:00 GMT"),
    _event("a volatile SYNC event", METADATA, to="<sync>", Broker_Durability="volatile"),
    _event("a volatile QUEUE event", METADATA, to="<queue>", Broker_Durability="volatile"),
    _event("a volatile event with a key", METADATA, Broker_Durability="volatile", Idempotency_Key="once"),
    _event(
        "a volatile delayed event",
        METADATA,
        Broker_Durability="volatile",
        Broker_Not_Before="Thu, 24 Dec 2020 18:00:00 GMT",
    ),
    _event(
        "a volatile event of more than 64 KiB", METADATA, Broker_Durability="volatile", body=b'"' + b"x" * 65536 + b'"'
    ),
    _event("a volatile event for a mailbox", (400, "volatile_pulled"), Broker_Durability="volatile"),
    _event("another content type than declared", (415, "unsuitable_content_type"), to="<plain>"),
    _event("what breaks the schema", (422, "schema_violated"), to="<strict>"),
    _event("a subscriber's key", (403, "forbidden"), key="subscriber"),
    _event("nobody's key", (401, "unauthenticated"), key=""),
    _event("a key that nobody has", (401, "unauthenticated"), key="", Authorization="Bearer brk_" + "x" * 43),
    _event("another scheme", (401, "unauthenticated"), key="", Authorization="Basic YTpi"),
    _event("a key without an end", (401, "unauthenticated"), key="", Authorization="Bearer " + "x" * 5000),
]

ITEM: Final = {"event": "<topic>", "body": 1}
NO_TEXT: Final = {"5": b"5", "true": b"true", "null": b"null", "an array": b"[]", "an object": b"{}"}
NO_METADATA: Final = {**NO_TEXT, "NUL": b'"a\\u0000b"', "a lone surrogate": b'"\\ud800"', "a line end": b'"a\\nb"'}
TEXTS: Final = (
    *("event", "content_type", "filter_string", "idempotency_key", "callback_url", "destination", "ttl", "not_before"),
)


def _with(field: str, value: bytes) -> bytes:
    """Return an item in which one field is another."""
    others = {name: value for name, value in ITEM.items() if name != field}
    return text(others)[:-1] + b"," + text(field) + b": " + value + b"}"


BATCHES: Final = [
    _batch("no item", NO_BATCH, _items()),
    _batch("1,001 items", NO_BATCH, _items(*[ITEM] * 1001)),
    _batch("more than five mebibytes", (413, "body_too_large"), b'"' + b"x" * 5 * 1024 * 1024 + b'"'),
    _batch("items that are no objects", NO_BATCH, _items(b"1", b"null", b"[]")),
    _batch("an object for the items", NO_BATCH, b'{"events": {}}'),
    _batch("another member", NO_BATCH, b'{"events": [], "event": 1}'),
    _batch("its member twice", NO_BATCH, b'{"events": [], "events": []}'),
    _batch("a field twice", NO_BATCH, _items(b'{"event": "<topic>", "body": 1, "body": 2}')),
    _batch("a body of 2,000 levels", NO_BATCH, _items(_with("body", nested(2000)))),
    _batch("a body that is NaN", NO_BATCH, _items(_with("body", b"NaN"))),
    _batch("one bad item among good ones", ITEMS, _items(ITEM, {**ITEM, "event": "There.Is.None"}, ITEM)),
    _batch("an unknown field", ITEMS, _items({**ITEM, "kind": "TOPIC"})),
    _batch("no event type", ITEMS, _items({"body": 1})),
    _batch("no body", ITEMS, _items({"event": "<topic>"})),
    _batch("two bodies", ITEMS, _items({**ITEM, "body_base64": "MQ=="})),
    _batch("a body that is no base64", ITEMS, _items({"event": "<topic>", "body_base64": "!"})),
    _batch("a body too large", ITEMS, _items({**ITEM, "body": "x" * 1024 * 1024})),
    _batch("a SYNC event", ITEMS, _items({**ITEM, "event": "<sync>"})),
    _batch(
        "the same key for two others",
        (422, "idempotency_key_reused"),
        _items({**ITEM, "idempotency_key": "twice"}, {**ITEM, "body": 2, "idempotency_key": "twice"}),
    ),
    _batch("a header for all of them", METADATA, _items(ITEM), Idempotency_Key="once"),
    _batch("a volatile batch", METADATA, _items(ITEM), Broker_Durability="volatile"),
    _batch("text", (415, "unsuitable_content_type"), _items(ITEM), Content_Type="text/plain"),
    *(
        _batch(f"{field}: {what}", ITEMS, _items(_with(field, value)))
        for field in TEXTS
        for what, value in NO_METADATA.items()
    ),
    *(
        _batch(f"headers: {what}", ITEMS, _items(_with("headers", value)))
        for what, value in NO_TEXT.items()
        if value != b"{}"
    ),
    *(
        _batch(f"a header's value: {what}", ITEMS, _items(_with("headers", b'{"X-A": ' + value + b"}")))
        for what, value in NO_METADATA.items()
    ),
    *(
        _batch(f"a header's name: {name!r}", ITEMS, _items({**ITEM, "headers": {name: "a"}}))
        for name in ("", "a b", "a:", "a\n", "\0", "é", "x" * 257)
    ),
]

EVENT: Final[Mapping[str, Any]] = {"specversion": "1.0", "id": "1", "source": "shop", "type": "<topic>", "data": 1}
BROKEN_EVENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "no id": {"id": None},
    "an empty id": {"id": ""},
    "no source": {"source": None},
    "no type": {"type": None},
    "no version": {"specversion": None},
    "another version": {"specversion": "0.3"},
    "a version that is a number": {"specversion": 1.0},
    "NUL in its id": {"id": "a\0b"},
    "a line end in its source": {"source": "a\nb"},
    "an empty subject": {"subject": ""},
    "a time that is none": {"time": "yesterday"},
    "a time that cannot be": {"time": "2026-13-01T00:00:00Z"},
    "a name in capitals": {"Tenant": "a"},
    "a name with a hyphen": {"my-tenant": "a"},
    "an object for an attribute": {"tenant": {}},
    "an array for an attribute": {"tenant": []},
    "a fraction for an attribute": {"tenant": 1.5},
    "64 bits for an attribute": {"tenant": 2**40},
    "two payloads": {"data_base64": "MQ=="},
    "no base64": {"data": None, "data_base64": "!"},
    "a number for base64": {"data": None, "data_base64": 5},
    "no text for text": {"datacontenttype": "text/plain"},
}


def _changed(changes: Mapping[str, Any]) -> bytes:
    return text({name: value for name, value in {**EVENT, **changes}.items() if value is not None})


def _attributes(**changes: str | bytes) -> dict[str, str | bytes]:
    """Return the headers of an event in binary mode."""
    attributes = {"specversion": "1.0", "id": "1", "source": "shop", "type": "<topic>", **changes}
    return {f"ce-{name}": value for name, value in attributes.items() if value}


CLOUD_EVENTS: Final = [
    *(
        row
        for what, changes in BROKEN_EVENTS.items()
        for row in (
            _batch(f"a structured event: {what}", CLOUD_EVENT, _changed(changes), Content_Type=STRUCTURED),
            _event(f"a structured event: {what}", CLOUD_EVENT, body=_changed(changes), Content_Type=STRUCTURED),
            _batch(f"in a batch: {what}", ITEMS, b"[" + _changed(changes) + b"]", Content_Type=BATCHED),
        )
    ),
    *(
        _batch(f"a structured event: {body[:20]!r}", CLOUD_EVENT, body, Content_Type=STRUCTURED)
        for body in (
            *(b"", b"{", b"{} x", b"[]", b"null", b'"a"', b"\xff", b"\xef\xbb\xbf{}", b'{"id": "1", "id": "2"}'),
            *(b'{"\\ud800": 1}', b'{"id": "\\ud800"}', b'{"a": NaN}', b'{"a": ' + nested(2000) + b"}"),
        )
    ),
    *(
        _batch(f"a batch of events: {body[:20]!r}", CLOUD_EVENT, body, Content_Type=BATCHED)
        for body in (b"", b"{}", b"[", b"[1]", b"[null]", b"[[]]", b"[{}] x", b"[" + nested(2000) + b"]")
    ),
    _batch("1,001 events", CLOUD_EVENT, b"[" + b",".join([text(EVENT)] * 1001) + b"]", Content_Type=BATCHED),
    _batch("a key for all of them", METADATA, b"[" + text(EVENT) + b"]", Content_Type=BATCHED, Idempotency_Key="a"),
    _batch("another format", (415, "unsuitable_content_type"), b"<a/>", Content_Type="application/cloudevents+xml"),
    _batch(
        "an unknown type", (404, "unknown_event_type"), _changed({"type": "There.Is.None"}), Content_Type=STRUCTURED
    ),
    _event("another type than its address", CLOUD_EVENT, to="<plain>", body=text(EVENT), Content_Type=STRUCTURED),
    *(
        Row(f"a binary event: {what}", "POST", EVENTS, *CLOUD_EVENT, body=b"1", headers=_attributes(**changes))
        for what, changes in {
            "no id": {"id": ""},
            "another version": {"specversion": "0.3"},
            "no UTF-8": {"id": "%FF"},
            "a surrogate": {"source": "%ED%A0%80"},
            "NUL": {"id": "a%00b"},
            "a line end": {"source": "a%0Ab"},
            "a time that is none": {"time": "yesterday"},
            "a name with a hyphen": {"my-tenant": "a"},
        }.items()
    ),
]

PUBLISH_ROWS: Final = [*NAMES, *HEADERS, *CALLBACKS, *TOGETHER, *BATCHES, *CLOUD_EVENTS]
