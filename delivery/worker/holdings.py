"""What a line under way has in hand, and how much it reads."""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Final

from delivery.worker.buffer import BodyBudget, Hand, InHand
from delivery.worker.ledgers import Ledger
from delivery.worker.steps import Hold

SMALLEST_PAGE: Final = 16
SHORTEST_PAGE: Final = 2
"""Of a line that waited for its rate: it sends one, and waits with the next."""
SOON_SECONDS: Final = 2.0
"""What may be sent so soon is waited for: nobody would take a line that has been let go in time for its slot."""

UNORDERED_SECONDS: Final = 1.0
"""How long a line waits in which no order counts where all that is left waits for its rate: something else may come."""
APART_SECONDS: Final = 5.0
"""The same of a retry line, in which nothing else comes so suddenly."""
REST_SHARE: Final = 0.01
"""Of the pause between two tries: so long a retry line rests, that what is due meanwhile is sent in one turn."""


@dataclass(slots=True, eq=False)
class Holding(Ledger):
    """A claimed line and its page."""

    hand: Hand[Any] = field(init=False, default_factory=Hand)
    """Of deliveries, or of groups where the line is a QUEUE sender's."""
    page_size: int = field(init=False)
    left_out: dict[int, float] = field(init=False, default_factory=dict)
    """Subscriptions for whose rate nobody waits, since others would wait with it, and until when (monotonic)."""
    tried: set[tuple[int, int]] = field(init=False, default_factory=set)
    """Subscriptions on trial of which one has been taken in this turn, and under which configuration."""
    cut_short: list[int] = field(init=False, default_factory=list)
    """Groups in the midst of whose cycle something was no longer as it had been read."""
    has_read: bool = field(init=False, default=False)
    """Whether a page has been read in this turn."""
    shortest_pause: float = field(init=False, default=math.inf)
    """Of those that what it has sent in this turn waits for, in seconds."""

    def __post_init__(self) -> None:
        Ledger.__post_init__(self)  # no `super()`: slots make a class of its own
        waited = self.head_id is not None and not self.failures  # for its rate: not much is sent in this turn
        least = SHORTEST_PAGE if waited else max(SMALLEST_PAGE, 2 * self.claim.strands)
        self.page_size = min(least, self.claim.capacity)

    def receive(self, hand: Hand[Any]) -> None:
        """Take a new page in hand; a head that is not in it may not be sent any more and holds nothing up."""
        self.hand, self.cut_short, self.has_read = hand, [], True
        if hand.is_starved:
            self.page_size = self.claim.capacity  # perhaps only the first of what waits cannot be had
        if self.head_id is not None and not self.hold and not hand.head and not hand.is_starved:
            self.head_id, self.failures = None, 0

    @property
    def is_through(self) -> bool:
        """Whether no look for more is worth while: in a retry line only time brings more, which the sweep watches."""
        return self.is_apart and self.has_read and not self.hand.is_low

    def may_try(self, delivery: InHand) -> bool:
        """Whether it may go beside what its line has under way: a trial is one request (behaviour 5.6)."""
        to = delivery.destination
        return self.claim.strands == 1 or (to.subscription_id, to.stamp) not in self.tried

    def tries(self, delivery: InHand) -> None:
        """Note that a delivery goes next."""
        to = delivery.destination
        if to.half_open:
            self.tried.add((to.subscription_id, to.stamp))

    def leave_out(self, delivery: InHand, until: float) -> None:
        """Note that nothing of its subscription is read until then: nothing waits for it, and it is not tried."""
        to = delivery.destination
        self.left_out[to.subscription_id] = until
        self.tried.discard((to.subscription_id, to.stamp))
        if delivery.id == self.head_id:
            self.head_id, self.failures = None, 0

    def still_left_out(self, now: float) -> list[int]:
        """Return the subscriptions whose time has not come; forget the others."""
        self.left_out = {one: until for one, until in self.left_out.items() if until > now}
        return [*self.left_out]

    def hold_at_rest(self) -> Hold | None:
        """Return for how long it waits if it is let go now, None where it does not.

        A little where all that is left waits long for its rate, or for its next try.
        """
        if self.hold or len(self.hand) or self.hand.is_low:
            return self.hold
        most = APART_SECONDS if self.is_apart else UNORDERED_SECONDS
        if self.left_out:
            wait = min(self.left_out.values()) - time.monotonic()
            return Hold(min(wait, most), "", 0) if wait > SOON_SECONDS else None
        if self.is_apart and self.shortest_pause < math.inf:
            return Hold(min(self.shortest_pause * REST_SHARE, most), "", 0)
        return None

    def give_hand_back(self, budget: BodyBudget) -> None:
        """Let go of what is in hand, but not of what is under way; it is read again when its turn comes."""
        budget.give_back(self.hand.bytes)
        self.hand = Hand(more=len(self.hand) > 0 or self.hand.is_low)
