"""What a client is answered about a receipt, by what is known of its delivery (contract 9.2, 9.4)."""

from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NamedTuple

from delivery.statuses import DeliveryStatus

CANCELLED, DELIVERED, FAILED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.FAILED
IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


class ReceiptCode(StrEnum):
    """What became of a receipt, or stands in its way."""

    ACKNOWLEDGED = "acknowledged"
    """Its delivery is DELIVERED by it."""

    RETURNED = "returned"
    """Its delivery is available again by it."""

    EXTENDED = "extended"
    """Its delivery is in flight for longer."""

    FAILED = "failed"
    """It was given back, and its redeliveries were used up (contract 9.7)."""

    CANCELLED = "cancelled"
    """It was given back, and somebody had asked to cancel it."""

    STALE = "stale_receipt"
    """Its delivery has been handed out again, or is being pushed."""

    TIMED_OUT = "timed_out"
    """Its delivery is in flight no more, and the mailbox is ordered: something newer may be."""

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
    seconds: float | None = None
    """How long that is from then on."""


UNKNOWN: Final = Result(HTTPStatus.NOT_FOUND, ReceiptCode.UNKNOWN)
GIVEN_BACK: Final = {PENDING: ReceiptCode.RETURNED, FAILED: ReceiptCode.FAILED, CANCELLED: ReceiptCode.CANCELLED}
"""What a receipt is answered that was given back, by what has become of its delivery."""


class Open(NamedTuple):
    """What is known of a receipt whose delivery was unfinished."""

    delivery_id: int
    fetch: int
    newest: int
    """The number of its delivery's newest hand-out."""
    counts: bool
    """Whether it has just done what was asked."""
    status: DeliveryStatus
    """Where the delivery stands now."""
    until: datetime | None = None
    """Until when it is, or was, in flight, where it was to be prolonged."""
    seconds: float | None = None
    """How long it is in flight from now on, where it was prolonged."""
    woken_line: int | None = None
    """The line that may send it now."""


class Filed(NamedTuple):
    """What is known of a receipt whose delivery is finished."""

    delivery_id: int
    fetch: int
    newest: int
    status: DeliveryStatus
    was_out: bool
    """Whether it ended while it was handed out."""

    @property
    def ended_by_it(self) -> DeliveryStatus | None:
        """How its delivery ended by this very hand-out; None: otherwise."""
        return self.status if self.was_out and self.newest == self.fetch else None


def acknowledged(found: Open | Filed | None) -> Result:
    """Return what is answered to `ack`."""
    match found:
        case Open(counts=True) | Filed(ended_by_it=DeliveryStatus.DELIVERED):
            return Result(HTTPStatus.OK, ReceiptCode.ACKNOWLEDGED, DELIVERED)
    return _refused(found)


def given_back(found: Open | Filed | None) -> Result:
    """Return what is answered to `nack`: what has been returned already is still returned."""
    match found:
        case Open(counts=True):
            return Result(HTTPStatus.OK, GIVEN_BACK[found.status], found.status)
        case Open() if found.newest == found.fetch and found.status != IN_FLIGHT:
            return Result(HTTPStatus.OK, ReceiptCode.RETURNED, found.status)
        case Filed(ended_by_it=DeliveryStatus.FAILED | DeliveryStatus.CANCELLED):
            return Result(HTTPStatus.OK, GIVEN_BACK[found.status], found.status)
    return _refused(found)


def extended(found: Open | Filed | None) -> Result:
    """Return what is answered to `extend`."""
    match found:
        case Open(counts=True):
            return Result(HTTPStatus.OK, ReceiptCode.EXTENDED, found.status, found.until, found.seconds)
    return _refused(found)


def _refused(found: Open | Filed | None) -> Result:
    if not found:
        return UNKNOWN
    obstacle = _obstacle(found)
    return Result(HTTPStatus.CONFLICT, obstacle, PENDING if obstacle == ReceiptCode.TIMED_OUT else found.status)


def _obstacle(found: Open | Filed) -> ReceiptCode:
    match found:
        case Filed(ended_by_it=DeliveryStatus.DELIVERED):
            return ReceiptCode.ACKNOWLEDGED
        case Filed():
            return ReceiptCode.ENDED
        case Open() if found.newest != found.fetch:
            return ReceiptCode.STALE
        case Open() if found.status != IN_FLIGHT:
            return ReceiptCode.RETURNED
        case Open():
            return ReceiptCode.TIMED_OUT if found.until else ReceiptCode.STALE
