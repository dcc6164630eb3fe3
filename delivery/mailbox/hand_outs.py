"""Whose mailbox it is, and what it hands out."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from delivery.mailbox.mailbox import Receipt
from delivery.webhook.parts import Content


class Box(NamedTuple):
    """A subscriber's mailbox: all its PULL subscriptions together."""

    subscriber_id: int
    is_ordered: bool
    """Whether at most one of its messages is in flight (behaviour 9.7)."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A delivery that is handed out: in flight until it is acknowledged, returned or timed out."""

    delivery_id: int
    fetch: int
    """Which hand-out of it this is, from 1 on."""
    subscription_id: int
    until: datetime
    seconds: float
    """How long that is from when it was handed out: whoever gets it may have another clock."""
    content: Content
    """The message in the form that its subscription wants (behaviour 2.12)."""
    is_uncertain: bool
    """Whether the outcome of an earlier request is unknown: it was pushed before (behaviour 4.11)."""

    @property
    def receipt(self) -> Receipt:
        """What names this hand-out."""
        return Receipt(self.delivery_id, self.fetch)

    @property
    def redeliveries(self) -> int:
        """How often it had been handed out before."""
        return self.fetch - 1

    @property
    def possible_duplicate(self) -> bool:
        """Whether its subscriber may have it already."""
        return self.is_uncertain or self.redeliveries > 0
