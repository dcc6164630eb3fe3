"""What a line under way has in hand, and how much it reads."""

from dataclasses import dataclass, field
from typing import Any, Final

from delivery.lines.hands import BodyBudget, Hand
from delivery.lines.ledgers import Ledger

SMALLEST_PAGE: Final = 16


@dataclass(slots=True, eq=False)
class Holding(Ledger):
    """A claimed line and its page."""

    hand: Hand[Any] = field(init=False, default_factory=Hand)
    """Of deliveries, or of groups where the line is a QUEUE sender's."""
    page_size: int = field(init=False)
    left_out: list[int] = field(init=False, default_factory=list)
    """Subscriptions that wait for their rate longer than this turn, where the others do not wait for them."""
    cut_short: list[int] = field(init=False, default_factory=list)
    """Groups in the midst of whose cycle something was no longer as it had been read."""

    def __post_init__(self) -> None:
        Ledger.__post_init__(self)  # no `super()`: slots make a class of its own
        self.page_size = min(max(SMALLEST_PAGE, 2 * self.claim.strands), self.claim.capacity)

    def receive(self, hand: Hand[Any]) -> None:
        """Take a new page in hand; a head that is not in it may not be sent any more and holds nothing up."""
        self.hand, self.cut_short = hand, []
        if hand.is_starved:
            self.page_size = self.claim.capacity  # perhaps only the first of what waits cannot be had
        if self.head_id is not None and not self.hold and not hand.head and not hand.is_starved:
            self.head_id, self.failures = None, 0

    def give_hand_back(self, budget: BodyBudget) -> None:
        """Let go of what is in hand, but not of what is under way; it is read again when its turn comes."""
        budget.give_back(self.hand.bytes)
        self.hand = Hand()
