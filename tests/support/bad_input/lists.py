"""What lists, mailboxes, callbacks, replays and runs refuse: addresses, methods, cursors, queries, receipts."""

from typing import Final

from tests.support.bad_input.shop import Row, text

QUERY: Final = (400, "invalid_query")
NOT_FOUND: Final = (404, "not_found")


IDS: Final = ("0", "-1", "a", "1.0", "%2B1", "%00", "1%0A", "%EF%BC%91", "%FF", "9" * 30, "9" * 5000, "<unknown>")
NAMES: Final = ("there-is-none", "..%2Fup", "%2E%2E", "%00", "a%0A", "%F0%9F%98%80", "%FF", "x" * 256, "x" * 5000, "-a")

INVALID: Final = (400, "invalid")
UNKNOWN_RECEIPT: Final = (404, "unknown_receipt")
MAILBOX: Final = "/api/v1/mailboxes/<mailbox>"
TOKEN: Final = "x" * 43


NO_MAXIMA: Final[tuple[object, ...]] = (0, -1, 101, 2**63, "5", 1.0, True, None, [])
NO_WAITS: Final[tuple[object, ...]] = (-1, -0.001, 20.001, 21, 1e300, "1", True, None, [])
NO_TRUTHS: Final[tuple[object, ...]] = (1, "true", None, [])

LISTS: Final = {
    **dict.fromkeys(("api-keys", "callbacks", "dead-letters", "deliveries", "messages", "publishers"), "management"),
    **dict.fromkeys(("replays", "retry-policies", "subscribers", "subscriptions", "summary-runs"), "management"),
    "event-types": "subscriber",
    "summaries/volume": "management",
}
"""What is listed a page at a time, and to whom here."""


def _listed(what: str, path: str, query: str, key: str = "management") -> Row:
    return Row(what, "GET", f"/api/v1/{path}?{query}", *QUERY, key=key)


def _got(what: str, path: str, refusal: tuple[int, str] = NOT_FOUND) -> Row:
    return Row(what, "GET", f"/api/{path}", *refusal)


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
        _listed(f"an unknown {name}", path, f"{name}=there-is-none")
        for path, name in {
            "deliveries": "status",
            "messages": "outcome",
            "dead-letters": "reason",
            "subscriptions": "status",
            "callbacks": "state",
            "replays": "kind",
            "summary-runs": "state",
        }.items()
    ),
    _listed("messages to nobody", "dead-letters", "reason=DEAD_LETTERED"),
    *(
        _listed(f"the range {query[:50]}", f"summaries/volume{suffix}", query)
        for suffix in ("", ".csv", ".parquet")
        for query in (
            "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
            "from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z",
            "from=2026-01-01",
            "from=2026-01-01T00:00:00",
            "to=0001-01-01T00:00:00%2B14:00",
            "to=9999-12-31T23:59:59-14:00",
            "to=a",
            "subscriber=shop",
        )
    ),
    Row("a dry run of sorts", "POST", "/api/v1/event-type-file?dry_run=perhaps", *QUERY, body=b"[]"),
    Row("two dry runs", "POST", "/api/v1/event-type-file?dry_run=true&dry_run=false", *QUERY, body=b"[]"),
]


ADDRESSES: Final = [
    *(
        _got(f"{one[:20]} for an id", f"v1/{path.format(one)}")
        for path in (
            *("api-keys/{}", "deliveries/{}", "messages/{}", "messages/{}/explanation", "replays/{}"),
            *("subscriptions/{}", "summary-runs/{}"),
        )
        for one in IDS
    ),
    *(
        _got(f"{one[:20]} for a name", f"v1/{path.format(one)}")
        for path in (
            *("event-types/{}", "publishers/{}", "subscribers/{}", "retry-policies/{}", "subscribers/{}/line"),
            *("mailboxes/{}/status", "summaries/{}", "summaries/{}.csv"),
        )
        for one in NAMES
    ),
    *(
        _got("no address of ours", path)
        for path in ("v1/nothing", "v2/events", "v1/event-types/", "v1//events", "v1/..")
    ),
]

METHODS: Final = [
    Row(f"{method} {path}", method, f"/api/v1/{path}", 405, "method_not_allowed", key="management")
    for path, methods in {
        "event-types": ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "LINK"),
        "event-types/<topic>": ("PUT", "POST", "OPTIONS"),
        "events": ("GET", "PUT", "DELETE", "OPTIONS"),
        "events/<topic>": ("GET", "PUT", "PATCH", "DELETE"),
        "messages": ("POST", "DELETE"),
        "messages/<message>": ("PATCH", "DELETE"),
        "deliveries/<delivery>/release": ("GET", "DELETE"),
        "mailboxes/<mailbox>/next": ("GET", "PUT"),
        "mailboxes/<mailbox>/status": ("POST",),
        "subscriptions/<subscription>/activate": ("GET", "PATCH"),
        "api-keys/<key of neighbour>": ("PATCH", "DELETE"),
        "replays/<replay>": ("DELETE",),
        "event-type-file": ("PUT", "DELETE"),
        "summaries": ("POST",),
    }.items()
    for method in methods
]

LIST_ROWS: Final = [*CURSORS, *QUERIES, *ADDRESSES, *METHODS]


def _asked(what: str, call: str, refusal: tuple[int, str] = INVALID, /, **said: object) -> Row:
    return Row(what, "POST", f"{MAILBOX}/{call}", *refusal, body=text(said), key="subscriber")


FETCHES: Final = [
    *(_asked(f"max {most!r}", "next", max_messages=most) for most in NO_MAXIMA),
    *(_asked(f"wait {wait!r}", "next", wait_seconds=wait) for wait in NO_WAITS),
]

RECEIPTS: Final = [
    row
    for call in ("ack", "nack", "extend")
    for row in (
        _asked("neither one nor several", call),
        _asked("both one and several", call, receipt="a", receipts=["a"]),
        _asked("no receipts", call, receipts=[]),
        _asked("1,001 receipts", call, receipts=["a"] * 1001),
        _asked("a text for several", call, receipts="a"),
        _asked("numbers", call, receipts=[1]),
        _asked("null among them", call, receipts=["a", None]),
        *(
            _asked(f"the receipt {receipt[:10]!r}", call, UNKNOWN_RECEIPT, receipt=receipt)
            for receipt in ("", "a", "é", "\n", "-1", "1.2.3", "x" * 5000, "\U0001f600")
        ),
    )
] + [
    *(
        _asked(f"{seconds!r} seconds", "extend", receipt="a", seconds=seconds)
        for seconds in (0, -1, 43_201, 1.5, "5", True)
    ),
    *(_asked(f"not_attempted: {said!r}", "nack", receipt="a", not_attempted=said) for said in NO_TRUTHS),
]

CALLBACKS: Final = [
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
    *(
        Row(f"{method} to a token", method, f"/api/v1/callbacks/{TOKEN}", 405, "method_not_allowed", key="")
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS")
    ),
]


def _replayed(what: str, /, **asked: object) -> Row:
    return Row(what, "POST", "/api/v1/replays", *INVALID, body=text(asked), key="subscriber")


def _summarized(what: str, start: object, end: object, refusal: tuple[int, str]) -> Row:
    return Row(what, "POST", "/api/v1/summary-runs", *refusal, body=text({"from": start, "to": end}))


REPLAYS: Final = [
    _replayed("of nobody"),
    _replayed("of both", subscriber="<mailbox>", subscription=1),
    _replayed("of somebody unknown", subscriber="there-is-none"),
    _replayed("of a subscription unknown", subscription=10**17),
    _replayed("of a subscription beyond all", subscription=2**63),
    _replayed("of what is not finished", subscriber="<mailbox>", statuses=["PENDING"]),
    _replayed("of no status", subscriber="<mailbox>", statuses=[]),
    _replayed("of an unknown event type", subscriber="<mailbox>", event_type="There.Is.None"),
    _replayed("at no rate", subscriber="<mailbox>", max_per_second=0),
    _replayed("backwards", subscriber="<mailbox>", **{"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}),
    _replayed(
        "of an instant", subscriber="<mailbox>", **{"from": "2026-01-02T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    ),
    _replayed("from a day", subscriber="<mailbox>", **{"from": "2026-01-02"}),
    _replayed("from a time without zone", subscriber="<mailbox>", **{"from": "2026-01-02T00:00:00"}),
    _replayed("from before all times", subscriber="<mailbox>", **{"from": "0001-01-01T00:00:00+14:00"}),
]

RUNS: Final = [
    _summarized("backwards", "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", (422, "invalid_range")),
    _summarized("of an instant", "2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z", (422, "invalid_range")),
    _summarized("in the future", "2999-01-01T00:00:00Z", "2999-01-02T00:00:00Z", (422, "invalid_range")),
    _summarized("without a zone", "2026-01-01T00:00:00", "2026-01-02T00:00:00", INVALID),
    _summarized("of numbers", 1767225600, 1767312000, INVALID),
    _summarized("beyond all times", "9999-12-31T23:59:59-14:00", "2026-01-02T00:00:00Z", INVALID),
]

MAILBOX_ROWS: Final = [*FETCHES, *RECEIPTS, *CALLBACKS, *REPLAYS, *RUNS]
