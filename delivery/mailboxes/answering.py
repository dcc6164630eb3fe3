"""What clients say of what they have fetched: acknowledged, given back, prolonged; by receipt (behaviour 9.2, 9.4)."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NamedTuple

from delivery.mailboxes.receipts import Receipt
from delivery.rules.statuses import DeliveryStatus

MOST_RECEIPTS: Final = 1_000
"""In one call."""


class ReceiptCode(StrEnum):
    """What became of a receipt, or stands in its way."""

    ACKNOWLEDGED = "acknowledged"
    """Its delivery is DELIVERED by it."""

    RETURNED = "returned"
    """Its delivery is available again by it."""

    EXTENDED = "extended"
    """Its delivery is in flight for longer."""

    FAILED = "failed"
    """It was given back, and its redeliveries were used up (behaviour 9.7)."""

    CANCELLED = "cancelled"
    """It was given back, and somebody had asked to cancel it."""

    STALE = "stale_receipt"
    """Its delivery has been handed out again, or is being pushed."""

    ENDED = "ended"
    """Its delivery has ended otherwise."""

    UNKNOWN = "unknown_receipt"
    """It names no delivery that is kept."""


class Result(NamedTuple):
    """What one receipt of a call is answered; the same again if it is repeated."""

    status: HTTPStatus
    """200, 404 or 409."""
    code: ReceiptCode
    delivery_status: DeliveryStatus | None = None
    """Where its delivery stands; None: it is unknown."""
    until: datetime | None = None
    """Until when it is in flight, where it was prolonged."""


def acknowledge(subscriber_id: int, receipts: Sequence[Receipt]) -> dict[Receipt, Result]:
    """End as DELIVERED what the receipts name, `MOST_RECEIPTS` at most."""
    raise NotImplementedError


def give_back(subscriber_id: int, receipts: Sequence[Receipt]) -> dict[Receipt, Result]:
    """Make available at once what the receipts name; or end it, if its redeliveries are used up or it is cancelled."""
    raise NotImplementedError


def extend(subscriber_id: int, receipts: Sequence[Receipt], *, seconds: int) -> dict[Receipt, Result]:
    """Keep in flight what the receipts name for so many seconds from now on, if that is longer."""
    raise NotImplementedError
