"""What a delivery's status may be, which change of it is legal (contract 10.1, 10.2), and what it waits for."""

from typing import Final

from django.db.models.enums import TextChoices

MESSAGE_ID_PREFIX: Final = "msg_"
DELIVERY_ID_PREFIX: Final = "dlv_"
GROUP_ID_PREFIX: Final = "grp_"
ATTEMPT_ID_PREFIX: Final = "att_"
"""What stands before ids where people and endpoints see them, because the numbers look alike (contract 2.17)."""


WHY_HELD: Final = "its filter or script failed, or sending it ended the process. Release it, or cancel it"


class DeliveryStatus(TextChoices):
    """Where a delivery stands, with the words by which people read it."""

    PENDING = "PENDING", "Waiting"
    """Waiting for its first attempt, or for the next one; or in a mailbox, to be fetched."""

    IN_FLIGHT = "IN_FLIGHT", "In flight"
    """Its request has been started, or may have been; or it was fetched from a mailbox, and is not acknowledged yet."""

    HELD = "HELD", "Needs decision"
    """Its filter or script failed, or its request ended the process that sent it. An operator has to release it."""

    DELIVERED = "DELIVERED"
    """The endpoint answered 2xx, or the subscriber acknowledged it."""

    REJECTED = "REJECTED"
    """The endpoint answered 4xx; never sent again."""

    NOT_SUPPORTED = "3xxNOTSUPPORTED", "Redirected"
    """The endpoint answered 3xx; never sent again, the redirect is not followed."""

    REDUNDANT = "REDUNDANT", "Done by another"
    """Another endpoint of its QUEUE group took the message."""

    FAILED = "FAILED"
    """Its retries, or a mailbox's redeliveries, are used up."""

    EXPIRED = "EXPIRED"
    """Its time to live, or its time in a mailbox, ended first."""

    CANCELLED = "CANCELLED"
    """An operator or a subscriber ended it."""

    @property
    def hint(self) -> str:
        """Return the API's name for it, and what people may ask about its word."""
        return f"{self.value}: {WHY_HELD}" if self is DeliveryStatus.HELD else self.value


class WaitsFor(TextChoices):
    """What an unfinished delivery, or a QUEUE group, waits for; a finished one keeps what it waited for last."""

    TURN = "TURN"
    """Its turn in its line, or its group's turn. Stays while its request is in flight, so marking touches no index."""

    RETRY = "RETRY"
    """Its retry time, `due_at`."""

    START = "START"
    """Its `not_before` (contract 2.13); then a delivery takes its place by id. A group's is its `due_at`."""

    RELEASE = "RELEASE"
    """An operator who releases it: it is HELD (contract 3.6)."""

    RETURN = "RETURN"
    """The client that fetched it from a mailbox, until `fetched_until` or later (contract 9.1): it is in no line."""

    SUBSCRIPTION = "SUBSCRIPTION"
    """An active subscription: no subscription of its QUEUE group is active (contract 1.7)."""


UNFINISHED: Final = frozenset({DeliveryStatus.PENDING, DeliveryStatus.IN_FLIGHT, DeliveryStatus.HELD})
FINAL: Final = frozenset(DeliveryStatus) - UNFINISHED
DEAD: Final = FINAL - {DeliveryStatus.DELIVERED, DeliveryStatus.REDUNDANT}
"""It ended without being taken."""
NEUTRAL: Final = (DeliveryStatus.REDUNDANT, DeliveryStatus.CANCELLED)
"""Another endpoint took the message, or an operator cancelled the delivery: neither says anything of the endpoint."""

_ENDED_UNSENT: Final = frozenset({DeliveryStatus.CANCELLED, DeliveryStatus.EXPIRED, DeliveryStatus.REDUNDANT})

LEGAL_CHANGES: Final[dict[DeliveryStatus, frozenset[DeliveryStatus]]] = {
    DeliveryStatus.PENDING: _ENDED_UNSENT | {DeliveryStatus.IN_FLIGHT, DeliveryStatus.HELD},
    DeliveryStatus.IN_FLIGHT: frozenset(DeliveryStatus) - {DeliveryStatus.IN_FLIGHT},
    DeliveryStatus.HELD: _ENDED_UNSENT | {DeliveryStatus.PENDING},
    **{status: frozenset[DeliveryStatus]() for status in FINAL},
}
"""From each status, where a delivery may go next; what is final stays. A trigger made from this refuses the rest."""
