"""A QUEUE group in hand: its endpoints, and in which order they are tried (behaviour 6.4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from delivery.hands import InHand
from delivery.webhooks import Content, Destination


class Endpoint(NamedTuple):
    """One of a group's subscriptions that may be sent to."""

    delivery_id: int
    destination: Destination


@dataclass(frozen=True, slots=True)
class GroupInHand:
    """A message that one of a group of endpoints is to take (behaviour 6.4)."""

    id: int
    content: Content
    endpoints: Sequence[Endpoint]
    """Those that may be tried: neither ended, HELD nor inactive."""
    first_id: int | None
    """The delivery that goes first: its request was under way at an unclean end."""
    attempts: int
    """How many requests it has had, over all its endpoints."""
    uncertain: bool
    """Whether the outcome of any of them is unknown."""
    cycles: int
    """How often all its endpoints were tried in vain."""
    size: int
    is_aside: bool
    callback_url: str = ""

    def in_turn(self, shuffle: Callable[[list[Endpoint]], object]) -> list[Endpoint]:
        """Return the endpoints in the order in which they are tried."""
        endpoints = [*self.endpoints]
        shuffle(endpoints)
        return sorted(endpoints, key=lambda one: one.delivery_id != self.first_id)

    def delivery(self, endpoint: Endpoint, *, tried: int, uncertain: bool) -> InHand:
        """Return the delivery to an endpoint, after `tried` others in this cycle."""
        return InHand(
            endpoint.delivery_id,
            self.content,
            endpoint.destination,
            self.attempts + tried,
            None,
            uncertain,
            self.size,
            is_aside=self.is_aside,
            times_set_aside=self.cycles,
            group_id=self.id,
            callback_url=self.callback_url,
        )
