"""Requests that are refused for more than the shape of their body: names, headers, queries, cursors, versions.

What a field refuses is shown where its rule is tested. Here stand the values that look different on the wire, and
those that must not be stored by any way in: the admin's forms are tested with them, too.
"""

from collections.abc import Mapping
from typing import Any, Final

from tests.support.bad_input.bodies import INVALID, TOKEN
from tests.support.bad_input.shop import JSON, Row, nested, text

STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
EVENTS: Final = "/api/v1/events"
METADATA: Final = (400, "invalid_metadata")
CLOUD_EVENT: Final = (400, "invalid_cloud_event")
NO_BATCH: Final = (400, "malformed_body")
QUERY: Final = (400, "invalid_query")
ITEMS: Final = (422, "invalid_items")
UNKNOWN: Final = (404, "unknown_event_type")
NOT_FOUND: Final = (404, "not_found")
LONG: Final = "https://shop.example/"


def _created(what: str, collection: str, /, **fields: object) -> Row:
    return Row(what, "POST", f"/api/v1/{collection}", *INVALID, body=text(fields))


def _subscribed(what: str, /, **fields: object) -> Row:
    """Return a new subscription that is refused for these fields."""
    wanted = {"subscriber": "<mailbox>", "event_type": "<topic>", "endpoint": "<sample>", **fields}
    return _created(what, "subscriptions", **wanted)


BROKEN_ENDPOINTS: Final = (
    *("", " ", "/hook", "hook", "//shop.example/hook", "http:", "http://", "https:///hook", "http://:80/", "http://?a"),
    *("ftp://shop.example/", "javascript:alert(1)", "file:///etc/passwd", "data:,a", "gopher://shop.example/"),
    *("Post:http://shop.example/", "TRACE:http://shop.example/", "POST:POST:http://shop.example/", "PATCH:"),
    *("http://[::1", "http://[shop]/", "http://[1.2.3.4]/", "http://::1/"),
    *("http://me@shop.example/", "http://me:secret@shop.example/", "http://@shop.example/", "http://a@b@c/"),
    *("http://shop.example\\@127.0.0.1/", "http://shop.example\\hook", "\\\\shop.example\\hook"),
    *("http://shop.example/a b", "http://shop.example/\n", "http://shop.example/\r\nX: y", "http://shop.example/\t"),
    *("http://shop.example/\x00", "http://shop.example/\x7f", "http://shop.example/é", "http://\uff53hop.example/"),
    *("http://shop.example:0/", "http://shop.example:99999/", "http://shop.example:-1/", "http://shop.example:+80/"),
    *("http://shop.example:8_0/", "http://shop.example:\uff18\uff10/", "http://shop.example:http/"),
    *("http://shop.example/#part", LONG + "x" * (2049 - len(LONG)), "webr://a\\b", "webr://a b"),
)

PRIVATE: Final = (
    *("10.0.0.1", "10.1", "0x0a000001", "167772161", "012.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1"),
    *("169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1"),
    *("[::]", "[fd00::1]", "[fe80::1]", "[::ffff:10.0.0.1]", "[64:ff9b::10.0.0.1]", "[2002:a00:1::]", "[ff02::1]"),
)
"""Hosts that nothing is sent to, and how they disguise themselves; those of the machine itself are allowed here."""

PATH: Final = "$$->'Body'->>'a'"
BROKEN_FILTERS: Final = {
    "no filter": "x",
    "curly quotes": f"{PATH} = \u2018b\u2019",
    "NUL": f"{PATH} = 'a\0b'",
    "5 KiB": f"{PATH} = '" + "x" * 5120 + "'",
    "a constant that is no JSON": "$$->'Body'->'a' = 'b'",
}

BROKEN_SCRIPTS: Final = {
    "an open bracket": "(",
    "no JavaScript": "def f(): pass",
    "NUL": "1\0",
    "more than 64 KiB": "x" * 65537,
}

SUBSCRIPTIONS: Final = [
    *(_subscribed(f"the host {host}", endpoint=f"http://{host}/hook") for host in PRIVATE),
    *(_subscribed(f"the monitor at {host}", monitor_url=f"http://{host}/up") for host in PRIVATE[:3]),
    *(_subscribed(f"the endpoint {url[:40]!r}", endpoint=url) for url in BROKEN_ENDPOINTS),
    *(_subscribed(f"a filter: {what}", filter=source) for what, source in BROKEN_FILTERS.items()),
    *(_subscribed(f"a script: {what}", script=source) for what, source in BROKEN_SCRIPTS.items()),
]

NAMES: Final = ("", " ", "../up", "a/b", "-a", ".a", "a b", "a\n", "a\0", "%00", "é", "\U0001f600", "x" * 256)
DEEP_SCHEMA: Final = b'{"name": "Bad.Schema", "schema": {"enum": ' + nested(300) + b"}}"
OTHERS: Final = [
    *(
        _created(f"the name {name[:20]!r}", collection, name=name)
        for collection in ("event-types", "publishers", "subscribers", "retry-policies")
        for name in NAMES
    ),
    Row("a schema of 300 levels", "POST", "/api/v1/event-types", *INVALID, body=DEEP_SCHEMA),
    _created("a schema from elsewhere", "event-types", name="Bad.Schema", schema={"$ref": "http://shop.example/"}),
    Row("a name that is taken", "POST", "/api/v1/publishers", 409, "name_taken", body=b'{"name": "<publisher>"}'),
    Row("a preset", "PATCH", "/api/v1/retry-policies/TeamForge", 409, "preset", body=b'{"description": "a"}'),
    Row("a subscriber in use", "DELETE", "/api/v1/subscribers/<mailbox>", 409, "still_in_use"),
]

VERSIONED: Final = (
    ("PATCH", "/api/v1/publishers/<publisher>", b'{"description": "a"}'),
    ("DELETE", "/api/v1/publishers/<publisher>", b""),
    ("POST", "/api/v1/subscriptions/<subscription>/rotate-secret", b""),
)
VERSIONS: Final = [
    Row(f"If-Match: {tag[:20]}", method, path, 412, "version_mismatch", body=body, headers={"If-Match": tag})
    for method, path, body in VERSIONED
    for tag in ('"0"', '"99"', 'W/"1"', '"a"', "1", '"', '"' + "9" * 40 + '"', " ")
]


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


def _batch(what: str, refusal: tuple[int, str], body: bytes, **headers: str) -> Row:
    named: dict[str, str | bytes] = {name.replace("_", "-"): value for name, value in headers.items()}
    return Row(what, "POST", EVENTS, *refusal, body=body, headers=named, key="publisher")


def _items(*items: Mapping[str, object] | bytes) -> bytes:
    whole = [one if isinstance(one, bytes) else text(one) for one in items]
    return b'{"events": [' + b", ".join(whole) + b"]}"


PUBLISHED: Final = [
    *(
        _event(f"to the event type {name[:20]}", UNKNOWN, to=name)
        for name in (
            *("There.Is.None", "..", "%00", "<topic>%00", "<topic>%0A", "%F0%9F%98%80", "%FF", "%ED%A0%80", "%zz"),
            *("x" * 256, "x" * 5000, "bad.topic"),
        )
    ),
    _event("to a path", NOT_FOUND, to="..%2F<topic>"),
    _event("to the broker's own", (403, "event_type_not_allowed"), to="Broker.Line.Paused"),
    *(
        _event(f"{name} {value[:20]!r}", METADATA, **dict[str, Any]({name: value}))
        for name, values in {
            "Idempotency_Key": (" ", "x" * 256, "a b", "a\tb"),
            "Broker_TTL": (" ", "0", "31d", "5 m", "P1D"),
            "Broker_Not_Before": (" ", "now", "2026-12-24T18:00:00", "9999-01-01T00:00:00Z"),
            "Broker_Destination": (" ", "a b", "../up", "a,b", "x" * 256, "-a"),
        }.items()
        for value in values
    ),
    *(
        _event(f"{name} that is not ASCII", (400, "unreadable_header"), **dict[str, Any]({name: "\u00e9"}))
        for name in (
            "Idempotency_Key",
            "FILTER_STRING",
            "Broker_TTL",
            "Broker_Destination",
            "CallbackURL",
            "ce_id",
            "X_A",
        )
    ),
    _event("an empty filter string", METADATA, FILTER_STRING=b" "),
    _event("a filter string of 4,097 characters", METADATA, FILTER_STRING="x" * 4097),
    _event("a content type of 256 characters", (400, "unreadable_header"), Content_Type=JSON + ";" + "x" * 256),
    _event("two durabilities", METADATA, Broker_Durability="volatile, guaranteed"),
    _event("headers of 33 KiB", METADATA, **dict[str, Any]({f"X-{n}": "a" * 8000 for n in range(5)})),
    _event("a header of 8 KiB", METADATA, X_Long="a" * 8193),
    _event("nobody's key", (401, "unauthenticated"), key=""),
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
    _batch("more than five mebibytes", (413, "body_too_large"), b'"' + b"x" * 5 * 1024 * 1024 + b'"'),
    _batch("a body of 50,000 levels", NO_BATCH, _items(_with("body", nested(50_000)))),
    _batch("a body that is NaN", NO_BATCH, _items(_with("body", b"NaN"))),
    _batch("one bad item among good ones", ITEMS, _items(ITEM, {**ITEM, "event": "There.Is.None"}, ITEM)),
    _batch("a body too large", ITEMS, _items({**ITEM, "body": "x" * 1024 * 1024})),
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

ATTRIBUTES: Final = {"specversion": "1.0", "id": "1", "source": "shop", "type": "<topic>"}
CLOUD_EVENTS: Final = [
    *(
        _batch(f"a structured event: {body[:20]!r}", CLOUD_EVENT, body, Content_Type=STRUCTURED)
        for body in (
            *(b"", b"{", b"{} x", b"[]", b"null", b'"a"', b"\xff", b"\xef\xbb\xbf{}", b'{"id": "1", "id": "2"}'),
            *(b'{"\\ud800": 1}', b'{"id": "\\ud800"}', b'{"a": NaN}', b'{"a": ' + nested(50_000) + b"}"),
        )
    ),
    *(
        _batch(f"a batch of events: {body[:20]!r}", CLOUD_EVENT, body, Content_Type=BATCHED)
        for body in (b"", b"{}", b"[", b"[1]", b"[null]", b"[[]]", b"[{}] x", b"[" + nested(50_000) + b"]")
    ),
    *(
        Row(
            f"a binary event: {name} is {value}",
            *("POST", EVENTS, *CLOUD_EVENT),
            body=b"1",
            headers={f"ce-{one}": text for one, text in (ATTRIBUTES | {name: value}).items()},
        )
        for name, value in {"id": "%FF", "source": "%ED%A0%80", "subject": "a%00b", "my-tenant": "a"}.items()
    ),
]

LISTS: Final = {
    **dict.fromkeys(("api-keys", "callbacks", "dead-letters", "deliveries", "messages", "publishers"), "management"),
    **dict.fromkeys(("replays", "retry-policies", "subscribers", "subscriptions", "summary-runs"), "management"),
    "event-types": "subscriber",
    "summaries/volume": "management",
}
"""Paths of paged lists, each with the key that the rows use."""


def _listed(what: str, path: str, query: str, key: str = "management") -> Row:
    return Row(what, "GET", f"/api/v1/{path}?{query}", *QUERY, key=key)


CURSORS: Final = [
    _listed(f"the cursor {cursor[:20]!r}", path, f"cursor={cursor}", key)
    for path, key in LISTS.items()
    for cursor in ("", "-1", "0", "a", "%00", "%FF", "x" * 1025, "WzFd:abc", "<cursor of event types>x")
] + [
    _listed("a cursor of another list", path, "cursor=<cursor of event types>")
    for path in LISTS
    if path != "event-types"
]

QUERIES: Final = [
    *(
        _listed(f"limit={limit[:20]}", path, f"limit={limit}")
        for path in LISTS
        for limit in ("", "0", "-1", "201", "1.0", "1e1", "%2B1", "%201", "a", "%EF%BC%95", "9" * 5000, "1&limit=2")
    ),
    *(_listed("an unknown parameter", path, "there_is_no=such") for path in LISTS),
    *(
        _listed(f"{name}={value[:20]}", "deliveries", f"{name}={value}")
        for name in ("subscription", "message", "group")
        for value in ("", "0", "-1", "a", "1.0", "%201", "9223372036854775808", "9" * 5000, "1&" + name + "=2")
    ),
    *(
        _listed(f"{name} that has NUL in it", path, f"{name}=a%00b")
        for path, names in {
            "subscriptions": ("subscriber", "event_type", "event_pattern"),
            "deliveries": ("subscriber",),
            "dead-letters": ("subscriber", "event_type"),
            "messages": ("event_type",),
            "summaries/volume": ("event_type", "kind"),
        }.items()
        for name in names
    ),
    *(
        _listed(f"the range {query}", "summaries/volume", query)
        for query in (
            *("from=2026-01-01", "to=0001-01-01T00:00:00%2B14:00", "to=9999-12-31T23:59:59-14:00", "to=a"),
            *("to=0001-01-01T00:00:00Z", "from=9999-12-01T00:00:00Z&to=9999-12-31T01:00:00Z"),
        )
    ),
    Row("a dry run of sorts", "POST", "/api/v1/event-type-file?dry_run=perhaps", *QUERY, body=b"[]"),
    Row("two dry runs", "POST", "/api/v1/event-type-file?dry_run=true&dry_run=false", *QUERY, body=b"[]"),
]

IDS: Final = ("0", "-1", "a", "1.0", "%2B1", "%00", "1%0A", "%EF%BC%91", "%FF", "9" * 30, "9" * 5000, "<unknown>")
NAMES_IN_PATHS: Final = (
    *("there-is-none", "..%2Fup", "%2E%2E", "%00", "a%0A", "%F0%9F%98%80", "%FF", "x" * 256, "x" * 5000, "-a"),
)
ADDRESSES: Final = [
    *(
        Row(f"{one[:20]}", "GET", f"/api/v1/{path.format(one)}", *NOT_FOUND)
        for paths, values in {
            ("api-keys/{}", "deliveries/{}", "messages/{}", "messages/{}/explanation", "replays/{}"): IDS,
            ("subscriptions/{}", "summary-runs/{}"): IDS,
            ("event-types/{}", "publishers/{}", "subscribers/{}", "retry-policies/{}"): NAMES_IN_PATHS,
            ("subscribers/{}/line", "subscribers/{}/statistics", "mailboxes/{}/status"): NAMES_IN_PATHS,
            ("summaries/{}", "summaries/{}.csv"): NAMES_IN_PATHS,
        }.items()
        for path in paths
        for one in values
    ),
    *(
        Row("no address of ours", "GET", f"/api/{path}", *NOT_FOUND)
        for path in ("v1/nothing", "v2/events", "v1/event-types/", "v1//events", "v1/..")
    ),
    *(
        Row(
            f"the token {token[:20]!r}",
            "POST",
            f"/api/v1/callbacks/{token}",
            404,
            "unknown_callback",
            body=b"{}",
            key="",
        )
        for token in ("a", TOKEN, TOKEN[:-1], "%00", "%F0%9F%98%80", "%FF", "x" * 5000, "0", "7", "9" * 30, ".")
    ),
]

METHODS: Final = [
    Row(method, method, f"/api/v1/{path}", 405, "method_not_allowed", key="management")
    for path, methods in {
        "event-types": ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "LINK"),
        "events/<topic>": ("GET", "PUT", "PATCH", "DELETE"),
        "messages/<message>": ("PATCH", "DELETE"),
        "deliveries/<delivery>/release": ("GET", "DELETE"),
        "mailboxes/<mailbox>/next": ("GET", "PUT"),
        "mailboxes/<mailbox>/status": ("POST",),
        f"callbacks/{TOKEN}": ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"),
    }.items()
    for method in methods
]

ROWS: Final = [
    *(*SUBSCRIPTIONS, *OTHERS, *VERSIONS, *PUBLISHED, *BATCHES, *CLOUD_EVENTS),
    *(*CURSORS, *QUERIES, *ADDRESSES, *METHODS),
]
