"""What is refused where nothing is changed: addresses, methods, cursors, queries, ranges."""

from typing import Final

from tests.bad_input.rows import Row

QUERY: Final = (400, "invalid_query")
NOT_FOUND: Final = (404, "not_found")
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
            "event-type-file": "format",
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

IDS: Final = ("0", "-1", "a", "1.0", "%2B1", "%00", "1%0A", "%EF%BC%91", "%FF", "9" * 30, "9" * 5000, "<unknown>")
NAMES: Final = ("there-is-none", "..%2Fup", "%2E%2E", "%00", "a%0A", "%F0%9F%98%80", "%FF", "x" * 256, "x" * 5000, "-a")
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

ROWS: Final = [*CURSORS, *QUERIES, *ADDRESSES, *METHODS]
