"""A QUEUE group in hand: its endpoints, and in which order they are tried (behaviour 6.4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from delivery.webhook.parts import Content, Destination
from delivery.worker.buffer import InHand
from delivery.worker.crowds import Crowds


class Endpoint(NamedTuple):
    """One of a group's subscriptions that may be sent to."""

    delivery_id: int
    destination: Destination

    @property
    def subscription_id(self) -> int:
        """Whose it is."""
        return self.destination.subscription_id


def asked_first(endpoints: Sequence[Endpoint], first_id: int | None) -> Sequence[Endpoint]:
    """Return those of which one is asked first: who had the request at an unclean end, otherwise any."""
    return [one for one in endpoints if one.delivery_id == first_id] or endpoints


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

    def may_be_tried(self, crowds: Crowds) -> bool:
        """Whether one that is asked first has room for another that waits for it."""
        return any(not crowds.are_full(one.subscription_id) for one in asked_first(self.endpoints, self.first_id))

    def in_turn(self, shuffle: Callable[[list[Endpoint]], object], crowds: Crowds) -> list[Endpoint]:
        """Return the endpoints in the order in which they are tried: at random, crowded ones last."""
        endpoints = [*self.endpoints]
        shuffle(endpoints)
        of = len(endpoints)
        return sorted(
            endpoints, key=lambda one: (one.delivery_id != self.first_id, crowds.place(one.subscription_id, of))
        )

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
