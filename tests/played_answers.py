"""What a played mailbox answers: its messages, and the troubles that a test tells it to have."""

import base64
from dataclasses import dataclass, field
from typing import Any

PUBLISHED_AT = "2026-11-22T01:02:03Z"
STALE = {"status": 409, "code": "stale_receipt"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """An answer instead of the right one; the call does nothing."""

    status: int
    document: object = None
    headers: dict[str, str] = field(default_factory=dict)


LOST = None
"""The call does what it should, and nobody hears of it."""


def message_document(number: int, body: bytes) -> dict[str, Any]:
    """Return a message as it is handed out, but for what differs each time."""
    try:
        text = {"body": body.decode()}
    except UnicodeDecodeError:
        text = {"body_base64": base64.b64encode(body).decode()}
    return {
        "id": f"dlv_{number}",
        "delivery_id": number,
        "message_id": number,
        "event_type": "Shop.Order.Paid",
        "subscription_id": 7,
        "published_at": PUBLISHED_AT,
        "redeliveries": 0,
        "possible_duplicate": False,
        "content_type": "application/json",
        "headers": {"X-Trace": "1"},
    } | text
