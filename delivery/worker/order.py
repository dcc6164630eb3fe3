"""What keeps a line in order: the deliveries that it holds, and the sequence numbers that it gives."""

from dataclasses import dataclass, field, replace
from typing import Final

from broker_project.core import boot_clock
from delivery.dispatch.claim import ActiveHold, Claim
from delivery.webhook.request import Outgoing

AFTER: Final = "\x01"
"""Appended to an ordering key, it sorts before everything that comes after that key."""


class Holds(dict[int, ActiveHold]):
    """By delivery: what of a line must not be overtaken within its key (contract 4.7, 4.8, 4.12)."""

    def __init__(self, claim: Claim) -> None:
        super().__init__({hold.delivery_id: hold for hold in claim.holds})
        self._line_id = claim.line_id
        self.changed: dict[int, ActiveHold] = {}
        """Those that have to be written, or deleted, with the next settle."""

    def add(self, delivery: Outgoing, pause: float, reason: str) -> None:
        """Hold a delivery, which is tried again after a pause; without a reason it has not failed."""
        self[delivery.id] = self.changed[delivery.id] = ActiveHold(
            self._line_id,
            delivery.id,
            delivery.ordering_key,
            self.failures_of(delivery.id) + bool(reason),
            pause,
            boot_clock.since_boot() + pause,
            reason,
            delivery.destination.config_version,
        )

    def end_pause(self, delivery_id: int) -> None:
        """Let the delivery be tried again now."""
        self[delivery_id] = replace(self[delivery_id], until=boot_clock.since_boot())

    def end(self, delivery_id: int) -> None:
        """Let others overtake the delivery."""
        if hold := self.pop(delivery_id, None):
            self.changed[delivery_id] = replace(hold, pause=None)

    def failures_of(self, delivery_id: int) -> int:
        """Return how often in a row a delivery has failed, and was held for it."""
        hold = self.get(delivery_id)
        return hold.failures if hold else 0

    def resting(self, now: float) -> list[ActiveHold]:
        """Return those that are not due."""
        return [hold for hold in self.values() if hold.until > now]

    def due(self, now: float) -> list[int]:
        """Return the deliveries that are due, oldest first."""
        return sorted(hold.delivery_id for hold in self.values() if hold.until <= now)

    def first_of_keys(self) -> dict[str, int]:
        """Return by ordering key which of its deliveries is sent first."""
        first: dict[str, int] = {}
        for hold in self.values():
            first[hold.ordering_key] = min(hold.delivery_id, first.get(hold.ordering_key, hold.delivery_id))
        return first


@dataclass(slots=True)
class Numbers:
    """The sequence numbers that a line gives (contract 4.10)."""

    last: int
    is_ordered: bool
    """Whether the line's next delivery has the next one; otherwise each has the one that it was given (4.13, 4.18)."""
    given: dict[int, int] = field(default_factory=dict)
    """By delivery: the numbers of what is being marked, where others are marked beside it."""
    last_marked: int = 0
    """The last of them when they were marked: nothing has a later one."""

    def next(self, delivery: Outgoing) -> int | None:
        """Return the number that a delivery gets unless it has one."""
        return self.last + 1 if self.is_ordered else self.given.get(delivery.id)

    def give(self, delivery: Outgoing) -> None:
        """Give a delivery a number, if others may be marked beside it and it has none."""
        if delivery.sequence is None and delivery.id not in self.given:
            self.last += 1
            self.given[delivery.id] = self.last
        self.last_marked = self.last

    def sent(self, delivery: Outgoing, sequence: int) -> None:
        """Note that a delivery was sent under its number."""
        self.given.pop(delivery.id, None)
        if self.is_ordered:
            self.last = max(self.last, sequence)

    def refused(self, delivery: Outgoing) -> None:
        """Note that a delivery may not be sent: its number is given again if none is later."""
        number = self.given.pop(delivery.id, None)
        if number and number == self.last_marked:
            self.last -= 1
