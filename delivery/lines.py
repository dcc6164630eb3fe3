"""A line under way: its generator, and what the generator and its driver share of it."""

import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from requests import PreparedRequest

from delivery.claiming import DEADLINE_SECONDS, LEASE_SECONDS, MARGIN_SECONDS, Claim
from delivery.hands import BodyBudget, Hand, InHand
from delivery.pages import Wanted
from delivery.runs import Run
from delivery.settlements import LineState, Mark
from delivery.steps import Hold, Reply, Rest, Step
from delivery.webhooks import Numbers, webhook_request

SMALLEST_PAGE: Final = 16
PAGE_MARGIN: Final = 1.25
"""A line reads a little more than it will send before its turn ends, at its pace so far: nothing is read in vain."""


@dataclass(slots=True, eq=False)
class DrivenLine:
    """A claimed line in the hands of a driver; its generator and its driver share it, in one thread."""

    claim: Claim
    run: Run
    renewed_at: float
    """Monotonic time, taken before the statement that renewed the lease."""
    hand: Hand = field(default_factory=Hand)
    generator: Generator[Step, Reply, Rest] | None = None
    held: int = 0
    """Bytes of bodies taken from the process's budget: in hand, about to be sent, under way."""
    taken_at: float = field(default_factory=time.monotonic)
    sent: int = 0
    """Requests in this turn."""
    under_way: InHand | None = None
    started_at: datetime | None = None
    started_mono: float = 0.0
    sequence: int = 0
    """The number of what is under way."""
    page_size: int = SMALLEST_PAGE
    last_sequence: int = 0
    head_id: int | None = None
    failures: int = 0
    aside_next: bool = False
    stopping: bool = False
    may_be_marked: bool = False
    """Whether what it sends next may be marked already, by a settle that has not been heard of."""

    def __post_init__(self) -> None:
        self.last_sequence = self.claim.last_sequence
        self.head_id = self.claim.head_id
        self.failures = self.claim.failures
        self.aside_next = self.claim.aside_next
        self.page_size = min(SMALLEST_PAGE, self.claim.capacity)

    @property
    def id(self) -> int:
        """The line's id."""
        return self.claim.line_id

    def advance(self, reply: Reply) -> Step:
        """Let the generator go on; return what it wants next."""
        assert self.generator is not None  # noqa: S101 - set by whoever made the line
        try:
            return self.generator.send(reply)
        except StopIteration as returned:
            rest: Rest = returned.value
            return rest

    def must_stop(self) -> bool:
        """Whether the turn's time is up."""
        return self.stopping or time.monotonic() >= self.run.until

    def fits_the_lease(self) -> bool:
        """Whether a request started now has ended before anybody else can take the line."""
        return time.monotonic() - self.renewed_at + DEADLINE_SECONDS + MARGIN_SECONDS < LEASE_SECONDS

    def wanted(self) -> Wanted:
        """Return what is read for the line next."""
        return Wanted(self.id, self.head_id, self.page_size, self.aside_next)

    def receive(self, hand: Hand, budget: BodyBudget) -> None:
        """Take a new page in hand; a head that is not in it may not be sent any more and holds nothing up."""
        budget.give_back(self.held)
        self.hand, self.held = hand, hand.bytes
        if self.head_id is not None and not hand.head and not hand.is_starved:
            self.head_id, self.failures = None, 0

    def start(self, delivery: InHand, sequence: int, *, at: datetime) -> None:
        """Note that `delivery` goes out now, under its number."""
        self.may_be_marked = False
        self.sent += 1
        self.last_sequence = max(self.last_sequence, sequence)
        self.under_way, self.sequence = delivery, sequence
        self.started_at, self.started_mono = at, time.monotonic()

    def prepare(self, delivery: InHand) -> None:
        """Note that the script of `delivery` runs now, before it is sent."""
        self.under_way, self.started_mono = delivery, time.monotonic()

    def has_room(self, size: int, budget: BodyBudget) -> bool:
        """Take from `budget` what a body of `size` bytes needs beyond the one it is made from; False: it has not."""
        delivery = self.under_way
        assert delivery  # noqa: S101 - its script has run
        more = max(0, size - delivery.size)
        if more and not budget.take(more):
            return False
        self.held += more
        self.under_way = replace(delivery, size=delivery.size + more)
        return True

    def request(self) -> PreparedRequest:
        """Return the request of what was started."""
        delivery = self.under_way
        assert delivery  # noqa: S101 - it was started
        assert self.started_at  # noqa: S101
        numbers = Numbers(delivery.id, self.sequence, delivery.attempts + 1, delivery.uncertain)
        timestamp = int(self.started_at.timestamp())
        return webhook_request(delivery.content, delivery.destination, numbers, timestamp=timestamp)

    def settled(self, budget: BodyBudget, step: Step) -> None:
        """Note that what had ended is recorded: its body is not needed any more."""
        if step.ended and self.under_way:
            budget.give_back(self.under_way.size)
            self.held -= self.under_way.size
            self.under_way = None

    def give_hand_back(self, budget: BodyBudget) -> None:
        """Let go of what is in hand, but not of what is under way; it is read again when its turn comes."""
        size = self.hand.bytes
        budget.give_back(size)
        self.held -= size
        self.hand = Hand()

    def give_all_back(self, budget: BodyBudget) -> None:
        """Let go of everything."""
        budget.give_back(self.held)
        self.hand, self.held, self.under_way = Hand(), 0, None

    def passed(self, delivery: InHand) -> None:
        """Note that `delivery` no longer holds the line, and whose turn it is next."""
        if delivery.id == self.head_id:
            self.head_id = None
        else:
            self.aside_next = not delivery.is_aside
        self.failures = 0

    def size_page(self) -> None:
        """Choose how much is read next."""
        now = time.monotonic()
        pace = self.sent / (now - self.taken_at)
        left = pace * max(0.0, self.run.until - now)
        self.page_size = min(max(SMALLEST_PAGE, int(left * PAGE_MARGIN)), self.claim.capacity)

    def mark(self, delivery: InHand) -> Mark:
        """Return what marks `delivery` as under way, with the line's next number."""
        return Mark(self.id, delivery.id, delivery.destination.stamp, self.last_sequence + 1)

    def state(self, *, let_go: bool, hold: Hold | None = None) -> LineState:
        """Return what is written on the line's row."""
        return LineState(
            line_id=self.id,
            let_go=let_go,
            last_sequence=self.last_sequence,
            head_id=self.head_id,
            failures=self.failures,
            aside_next=self.aside_next,
            pause=hold.pause if hold else None,
            reason=hold.reason if hold else "",
            stamp=hold.stamp if hold else 0,
        )
