"""What a strand has under way: the one request, and the bodies that it holds for it."""

import time
from dataclasses import dataclass, field
from datetime import datetime

from requests import PreparedRequest

from delivery.webhook.parts import Numbers
from delivery.webhook.request import webhook_request
from delivery.worker.buffer import BodyBudget, InHand
from delivery.worker.steps import Send, Step, Transform, Wait


@dataclass(slots=True, eq=False, kw_only=True)
class UnderWay:
    """The request or the script of one delivery, from when it is taken until what came of it is recorded."""

    under_way: InHand | None = None
    waiting_since: float | None = None
    """Monotonic time since when its request or its script is under way."""
    paced_for: int | None = None
    """The subscription whose rate it waits for."""
    started_at: datetime | None = None
    sequence: int = 0
    """The number of what is under way."""
    taken_ids: list[int] = field(default_factory=list)
    """The deliveries, or QUEUE groups, that it has taken, until what came of them is recorded."""
    held: int = 0
    """Bytes of bodies taken from the process's budget: about to be sent, under way."""
    may_be_marked: bool = False
    """Whether what it sends next may be marked already, by a settle that has not been heard of."""

    def has_waited(self, now: float, seconds: float) -> bool:
        """Whether its request or script has been under way for so long."""
        return self.waiting_since is not None and now >= self.waiting_since + seconds

    def prepare(self, delivery: InHand) -> None:
        """Note that the script of `delivery` runs now, before it is sent."""
        self.under_way, self.waiting_since = delivery, time.monotonic()

    def has_room(self, size: int, budget: BodyBudget) -> bool:
        """Take from `budget` what a body of `size` bytes needs beyond the one it is made from; False: it has not."""
        assert self.under_way  # noqa: S101 - its script has run
        more = max(0, size - self.under_way.size)
        if more and not budget.take(more):
            return False
        self.held += more
        return True

    def request(self) -> PreparedRequest:
        """Return the request of what was started."""
        delivery = self.under_way
        assert delivery  # noqa: S101 - it was started
        assert self.started_at  # noqa: S101
        numbers = Numbers(
            delivery.id,
            self.sequence or None,  # what is in no order has no number
            delivery.attempts + 1,
            delivery.uncertain,
            delivery.group_id,
            delivery.callback_url,
        )
        timestamp = int(self.started_at.timestamp())
        return webhook_request(delivery.content, delivery.destination, numbers, timestamp=timestamp)

    def settled(self, budget: BodyBudget, step: Step) -> None:
        """Note that what had ended is recorded: what the strand has taken is needed only if `step` goes on with it."""
        going_on = step.delivery if isinstance(step, Send | Transform | Wait) else None
        if going_on is None:
            self.give_back(budget)
        elif step.ended:
            budget.give_back(self.held - going_on.size)
            self.held, self.under_way = going_on.size, None
            self.taken_ids = [going_on.group_id or going_on.id]

    def give_back(self, budget: BodyBudget) -> None:
        """Let go of what it has taken."""
        budget.give_back(self.held)
        self.held, self.under_way, self.taken_ids = 0, None, []
