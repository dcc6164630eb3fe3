"""What mailboxes, callbacks, replays and runs refuse."""

from typing import Final

from tests.bad_input.rows import Row, text

INVALID: Final = (400, "invalid")
UNKNOWN_RECEIPT: Final = (404, "unknown_receipt")
MAILBOX: Final = "/api/v1/mailboxes/<mailbox>"
TOKEN: Final = "x" * 43


def _asked(what: str, call: str, refusal: tuple[int, str] = INVALID, /, **said: object) -> Row:
    return Row(what, "POST", f"{MAILBOX}/{call}", *refusal, body=text(said), key="subscriber")


NO_MAXIMA: Final[tuple[object, ...]] = (0, -1, 101, 2**63, "5", 1.0, True, None, [])
NO_WAITS: Final[tuple[object, ...]] = (-1, -0.001, 20.001, 21, 1e300, "1", True, None, [])
NO_TRUTHS: Final[tuple[object, ...]] = (1, "true", None, [])

FETCHES: Final = [
    *(_asked(f"max {most!r}", "next", max=most) for most in NO_MAXIMA),
    *(_asked(f"wait {wait!r}", "next", wait=wait) for wait in NO_WAITS),
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
    _replayed("at no pace", subscriber="<mailbox>", pace=0),
    _replayed("backwards", subscriber="<mailbox>", **{"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}),
    _replayed(
        "of an instant", subscriber="<mailbox>", **{"from": "2026-01-02T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    ),
    _replayed("from a day", subscriber="<mailbox>", **{"from": "2026-01-02"}),
    _replayed("from a time without zone", subscriber="<mailbox>", **{"from": "2026-01-02T00:00:00"}),
    _replayed("from before all times", subscriber="<mailbox>", **{"from": "0001-01-01T00:00:00+14:00"}),
]

RUNS: Final = [
    _summarized("backwards", "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", (422, "not_a_range")),
    _summarized("of an instant", "2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z", (422, "not_a_range")),
    _summarized("in the future", "2999-01-01T00:00:00Z", "2999-01-02T00:00:00Z", (422, "not_a_range")),
    _summarized("without a zone", "2026-01-01T00:00:00", "2026-01-02T00:00:00", INVALID),
    _summarized("of numbers", 1767225600, 1767312000, INVALID),
    _summarized("beyond all times", "9999-12-31T23:59:59-14:00", "2026-01-02T00:00:00Z", INVALID),
]

ROWS: Final = [*FETCHES, *RECEIPTS, *CALLBACKS, *REPLAYS, *RUNS]
