"""Messages as the mailbox's client holds them, made up."""

from datetime import UTC, datetime

from broker_client import Message
from broker_client.clock import now


def message(number: int = 1, *, seconds: float = 30.0) -> Message:
    return Message(
        receipt=f"receipt-{number}",
        id=f"dlv_{number}",
        delivery_id=number,
        message_id=number,
        event_type="Shop.Order.Paid",
        subscription_id=7,
        published_at=datetime(2026, 11, 22, tzinfo=UTC),
        in_flight_until=datetime(2026, 11, 22, tzinfo=UTC),
        held_until=now() + seconds,
        redeliveries=0,
        possible_duplicate=False,
        content_type="",
        headers={},
        body=b"",
    )
