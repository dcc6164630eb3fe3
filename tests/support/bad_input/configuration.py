"""What the configuration refuses: endpoints, filters, scripts, headers, names, versions, what does not go together."""

from typing import Final

from tests.support.bad_input.shop import Row, nested, text

INVALID: Final = (400, "invalid")
MISMATCH: Final = (412, "version_mismatch")
OWN: Final = "/api/v1/subscriptions/<subscription>"
LONG: Final = "https://shop.example/"


def _created(what: str, collection: str, /, **fields: object) -> Row:
    return Row(what, "POST", f"/api/v1/{collection}", *INVALID, body=text(fields))


def _subscribed(what: str, /, **fields: object) -> Row:
    """Return a new subscription that is refused for these fields."""
    wanted = {"subscriber": "<mailbox>", "event_type": "<topic>", "endpoint": "<sample>", **fields}
    return _created(what, "subscriptions", **{name: value for name, value in wanted.items() if value is not None})


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
BROKEN_HOSTS: Final = (
    *("a..b", ".a", "a_b!", "a<b>", "a%00", "%31%30.0.0.1", "*", "a,b", "a;b", "1.2.3.4.5", "999.1.1.1", "256.0.0.1"),
    *("[fe80::1%25eth0]", "x" * 64 + ".example", ".".join(["x" * 60] * 5), "a.example:", '"a"', "a|b", "a^b", "{a}"),
)

PATH: Final = "$$->'Body'->>'a'"
BROKEN_FILTERS: Final = {
    "no filter": "x",
    "no comparison": "$$->'Body'",
    "half a comparison": f"{PATH} = ",
    "something after the end": f"{PATH} = 'b' ;",
    "a comment": f"{PATH} = 'b' -- c",
    "curly quotes": f"{PATH} = \u2018b\u2019",
    "double quotes": f'{PATH} = "b"',
    "NUL": f"{PATH} = 'a\0b'",
    "an open bracket": f"({PATH} = 'b'",
    "100 levels": "(" * 100 + f"{PATH} = 'b'" + ")" * 100,
    "100 times not": "NOT " * 100 + f"{PATH} = 'b'",
    "5 KiB": f"{PATH} = '" + "x" * 5120 + "'",
    "more than 200 nodes": " OR ".join(["$$->>'a' = 'b'"] * 150),
    "a constant that is no JSON": "$$->'Body'->'a' = 'b'",
    "an index too large": "$$->'Body'->99999999999999999999 = '1'",
}

NO_VALUES: Final[tuple[object, ...]] = (5, True, None, [], {}, "a\nb", "a\r\nX-B: b", "\0", "é", "x" * 8192)
BROKEN_HEADERS: Final = (
    *([], "X-A: a", 5),
    *({name: "a"} for name in ("", " ", "a b", "a:", "X-A\n", "\0", "é", "x" * 129)),
    *({name: "a"} for name in ("Host", "content-length", "Transfer-Encoding", "Connection", "Cookie", "webhook-id")),
    *({name: "a"} for name in ("Broker-TTL", "CallbackURL", "Keep-Alive", "TE", "Trailer", "Upgrade", "Expect")),
    *({"X-A": value} for value in NO_VALUES),
    *({f"X-{n}": "a" for n in range(51)}, {"X-A": "a", "x-a": "b"}),
)

BROKEN_SCRIPTS: Final = {
    "an open bracket": "(",
    "no JavaScript": "def f(): pass",
    "NUL": "1\0",
    "more than 64 KiB": "x" * 65537,
}

SUBSCRIPTIONS: Final = [
    *(_subscribed(f"the host {host[:40]}", endpoint=f"http://{host}/hook") for host in (*PRIVATE, *BROKEN_HOSTS)),
    *(_subscribed(f"the monitor at {host}", monitor_url=f"http://{host}/up") for host in PRIVATE[:3]),
    *(_subscribed(f"the endpoint {url[:40]!r}", endpoint=url) for url in BROKEN_ENDPOINTS),
    *(_subscribed(f"a filter: {what}", filter=source) for what, source in BROKEN_FILTERS.items()),
    *(_subscribed(f"a script: {what}", script=source) for what, source in BROKEN_SCRIPTS.items()),
    *(_subscribed(f"the headers {str(headers)[:40]}", headers=headers) for headers in BROKEN_HEADERS),
    *(
        _subscribed(f"the header filter {value[:20]!r}", header_filter_string=value)
        for value in ("a\nb", "\0", "é", "x" * 4097)
    ),
    *(
        _subscribed(f"the pattern {pattern[:20]!r}", event_type=None, event_pattern=pattern)
        for pattern in ("A*", "*.*", "A.*.B", ".*", "*\n", "é.*", "x" * 300 + ".*", "A.%")
    ),
    *(
        _subscribed(f"the monitor {url!r}", monitor_url=url)
        for url in ("GET:http://shop.example/", "/up", "http://a b/")
    ),
    _subscribed("neither event type nor pattern", event_type=None),
    _subscribed("both event type and pattern", event_pattern="Shop.*"),
    _subscribed("an unknown event type", event_type="There.Is.None"),
    _subscribed("a pattern for an event type", event_type="Bad.*"),
    _subscribed("an unknown subscriber", subscriber="there-is-none"),
    _subscribed("an unknown policy", retry_policy="there-is-none"),
    _subscribed("an empty policy", retry_policy=""),
    _subscribed("a policy for a queue", event_type="<queue>", retry_policy="<policy>"),
    _subscribed("a script for a queue", event_type="<queue>", script="1"),
    _subscribed("a script's endpoint for a topic", endpoint="webr://script"),
    _subscribed("an unknown mode", delivery_mode="pull"),
    _subscribed("an unknown output", output="XML"),
    _subscribed("an unknown status", status="PAUSED"),
    _subscribed("no rate", rate_limit=0),
    _subscribed("too high a rate", rate_limit=1e308),
    _subscribed("a place before the first", position=-1),
    _subscribed("a place beyond all", position=2**31),
    Row("its number", "PATCH", OWN, *INVALID, body=b'{"id": 7}'),
    Row("another subscriber", "PATCH", OWN, *INVALID, body=b'{"subscriber": "<neighbour>"}'),
    Row("a status", "PATCH", OWN, *INVALID, body=b'{"status": "INACTIVE"}'),
]

NAMES: Final = ("", " ", "../up", "a/b", "-a", ".a", "a b", "a\n", "a\0", "%00", "é", "\U0001f600", "x" * 256)
DEEP_SCHEMA: Final = b'{"name": "Bad.Schema", "schema": {"enum": ' + nested(300) + b"}}"
OTHERS: Final = [
    *(
        _created(f"the name {name[:20]!r}", collection, name=name)
        for collection in ("event-types", "publishers", "subscribers", "retry-policies")
        for name in NAMES
    ),
    _created("a name of the broker's own", "event-types", name="Broker.A"),
    _created("an unknown kind", "event-types", name="Bad.Kind", kind="topic"),
    *(
        _created(f"the content type {value[:20]!r}", "event-types", name="Bad.Content", content_type=value)
        for value in ("", "json", "a/b\n", "a/\0", "é/é", "x/" + "x" * 255)
    ),
    _created("a sample that is no JSON", "event-types", name="Bad.Sample", sample="{"),
    _created("a schema that is none", "event-types", name="Bad.Schema", schema={"type": "text"}),
    _created("a schema from elsewhere", "event-types", name="Bad.Schema", schema={"$ref": "http://shop.example/"}),
    Row("a schema of 300 levels", "POST", "/api/v1/event-types", *INVALID, body=DEEP_SCHEMA),
    _created("event types that are none", "publishers", name="bad-shop", event_types=["There.Is.None"]),
    _created("nobody at a time", "subscribers", name="bad-shop", processing="CONCURRENT", concurrency=0),
    _created("several at a time, in order", "subscribers", name="bad-shop", concurrency=2),
    _created("nothing in hand", "subscribers", name="bad-shop", max_queued_to_send=0),
    _created("no time to acknowledge", "subscribers", name="bad-shop", ack_seconds=0),
    _created("a pause that shrinks", "retry-policies", name="bad-policy", factor=0.5),
    _created("an endless schedule", "retry-policies", name="bad-policy", schedule=[1] * 1000),
    _created("a negative pause", "retry-policies", name="bad-policy", schedule=[-1]),
    _created("a key of nobody", "api-keys", kind="PUBLISHER"),
    _created("a key of two", "api-keys", kind="PUBLISHER", publisher="<publisher>", subscriber="<mailbox>"),
    _created("a management key of somebody", "api-keys", kind="MANAGEMENT", publisher="<publisher>"),
    _created("a key that has expired", "api-keys", kind="MANAGEMENT", expires_at="2020-01-01T00:00:00Z"),
    _created("a key whose expiry has no zone", "api-keys", kind="MANAGEMENT", expires_at="2990-01-01T00:00:00"),
    Row("a name that is taken", "POST", "/api/v1/publishers", 409, "name_taken", body=b'{"name": "<publisher>"}'),
    Row("a preset", "PATCH", "/api/v1/retry-policies/TeamForge", 409, "preset", body=b'{"description": "a"}'),
    Row("what is in use", "DELETE", "/api/v1/subscribers/<mailbox>", 409, "still_in_use"),
]

VERSIONED: Final = (
    *(
        ("PATCH", f"/api/v1/{one}", b'{"description": "a"}')
        for one in ("event-types/<topic>", "publishers/<publisher>")
    ),
    *(("PATCH", f"/api/v1/{one}", b"{}") for one in ("subscriptions/<subscription>", "retry-policies/<policy>")),
    ("DELETE", "/api/v1/publishers/<publisher>", b""),
    ("POST", "/api/v1/subscribers/<mailbox>/inactivate", b""),
    ("POST", "/api/v1/subscriptions/<subscription>/rotate-secret", b""),
)
VERSIONS: Final = [
    Row(f"If-Match: {tag[:20]}", method, path, *MISMATCH, body=body, headers={"If-Match": tag})
    for method, path, body in VERSIONED
    for tag in ('"0"', '"99"', 'W/"1"', '"a"', "1", '"', '"' + "9" * 40 + '"', " ")
]

BROKEN_MESSAGES: Final[dict[str, dict[str, object]]] = {
    "a body that is no JSON": {"body": "{"},
    "no base64": {"body_base64": "!"},
    "two bodies": {"body": "1", "body_base64": "MQ=="},
    "a message and a body": {"body": "1", "message_id": 1},
    "a header that cannot be": {"body": "1", "headers": {"a b": "c"}},
    "NUL for a header": {"body": "1", "headers": {"\0": "c"}},
    "a header's value that cannot be": {"body": "1", "headers": {"X-A": "a\nb"}},
    "a content type that cannot be": {"body": "1", "content_type": "text/plain\nX-A: b"},
    "a filter string that cannot be": {"body": "1", "filter_string": "é"},
}
TRIALS: Final = [
    *(_created(f"a message: {what}", "filters/test", **said) for what, said in BROKEN_MESSAGES.items()),
    *(_created(f"a message: {what}", "scripts/test", script="1", **said) for what, said in BROKEN_MESSAGES.items()),
    *(
        _created(f"a filter: {what}", "filters/test", body="1", filter=source)
        for what, source in BROKEN_FILTERS.items()
    ),
    Row("an unknown message", "POST", "/api/v1/filters/test", 404, "not_found", body=b'{"message_id": <unknown>}'),
]

CONFIGURATION_ROWS: Final = [*SUBSCRIPTIONS, *OTHERS, *VERSIONS, *TRIALS]
