"""A line under way and its strands: what their generators and their driver share of them."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Never

from delivery.dispatch.claim import DEADLINE_SECONDS, LEASE_SECONDS, MARGIN_SECONDS
from delivery.webhook.parts import Destination
from delivery.worker.buffer import BodyBudget, InHand, any_may
from delivery.worker.crowds import Crowds
from delivery.worker.holdings import SMALLEST_PAGE, SOON_SECONDS, Holding
from delivery.worker.pacing_ import Paces
from delivery.worker.pages import Wanted
from delivery.worker.runs import Run
from delivery.worker.steps import Reply, Step
from delivery.worker.under_way import UnderWay

PAGE_MARGIN: Final = 1.25
"""A line reads a little more than it will send before its turn ends, at its pace so far: nothing is read in vain."""
HANGS_SECONDS: Final = 0.25
"""After so long without an answer a strand hangs, and the others of its line do not wait for it."""
PATIENT_SECONDS: Final = 1.0
"""After so long without an answer a line gives back what it has in hand: one that hangs must not starve others."""

Story = Generator[Step, Reply, Never]
"""It never ends: whoever lets the line go drops it."""


@dataclass(slots=True, eq=False)
class DrivenLine(Holding):
    """A claimed line in the hands of a driver; its generators and its driver share it, in one thread."""

    run: Run
    renewed_at: float
    """Monotonic time, taken before the statement that renewed the lease."""
    crowds: Crowds = field(default_factory=Crowds)
    paces: Paces = field(default_factory=Paces)
    """Of all lines of the process."""
    strands: list["Strand"] = field(default_factory=list)
    """One where the order counts."""
    resting: list["Strand"] = field(default_factory=list)
    taken_at: float = field(default_factory=time.monotonic)
    sent: int = 0
    """Requests in this turn."""
    stopping: bool = False
    is_outdated: bool = False
    """Whether it has to be claimed anew: its subscriber is sent otherwise now (behaviour 4.13)."""

    def must_stop(self) -> bool:
        """Whether the turn's time is up; where one of several strands hangs, or waits, the others go on meanwhile."""
        if self.stopping or self.hold or self.is_outdated:
            return True
        now = time.monotonic()
        return now >= self.run.until and not self.hangs(now) and not self._paces(now)

    def hangs(self, now: float) -> bool:
        """Whether a strand waits in vain."""
        return any(one.has_waited(now, HANGS_SECONDS) for one in self.strands)

    def _paces(self, now: float) -> bool:
        """Whether a strand waits for a rate since before the turn's time was up."""
        return now < self.run.until + SOON_SECONDS and any(one.paced_for is not None for one in self.strands)

    def is_paced(self, destination: Destination) -> bool:
        """Whether a strand waits already until its subscription may be sent."""
        return any(one.paced_for == destination.subscription_id for one in self.strands)

    def is_stuck(self, now: float) -> bool:
        """Whether all of them do, and for so long that others should have what is in hand."""
        return all(one.has_waited(now, PATIENT_SECONDS) for one in self.strands)

    @property
    def is_waiting(self) -> bool:
        """Whether a strand waits for an answer or a script."""
        return any(one.waiting_since is not None for one in self.strands)

    def has_time_for(self, seconds: float) -> bool:
        """Whether a strand waits so long for a rate: till after the turn if that is soon, and it keeps no other."""
        now = time.monotonic()
        if now < self.run.until or len(self.strands) == 1:
            return seconds <= max(SOON_SECONDS, self.run.until - now)
        return False

    def fits_the_lease(self, now: float) -> bool:
        """Whether a request whose deadline counts from now has ended before anybody else can take the line."""
        return now - self.renewed_at + DEADLINE_SECONDS + MARGIN_SECONDS < LEASE_SECONDS

    def wanted(self) -> Wanted:
        """Return what is read for the line next."""
        now = time.monotonic()
        busy = [one for strand in self.strands for one in strand.taken_ids]
        return Wanted(
            self.id,
            self.claim.epoch,
            self.head_id,
            self.page_size,
            self.aside_next,
            busy,
            self.still_left_out(now),
            self.claim.strands > 1,
            self.cut_short,
            self.crowds.hanging(now),
        )

    def give_all_back(self, budget: BodyBudget) -> None:
        """Let go of everything."""
        self.give_hand_back(budget)
        for strand in self.strands:
            strand.give_back(budget)

    def size_page(self) -> None:
        """Choose how much is read next."""
        now = time.monotonic()
        pace = self.sent / (now - self.taken_at)
        left = pace * max(0.0, self.run.until - now)
        least = max(SMALLEST_PAGE, 2 * len(self.strands))
        self.page_size = min(max(least, int(left * PAGE_MARGIN)), self.claim.capacity)


@dataclass(slots=True, eq=False)
class Strand(UnderWay):
    """What a line does at a time: a generator, and the one request that it has under way."""

    line: DrivenLine
    generator: Story | None = None

    def advance(self, reply: Reply) -> Step:
        """Let the generator go on; return what it wants next."""
        assert self.generator is not None  # noqa: S101 - set by whoever made the line
        self.waiting_since = None
        return self.generator.send(reply)

    def take(self, may_go: Callable[[Any], bool] = any_may) -> Any:
        """Take what goes next of what may from the line's hand, None where there is nothing."""
        taken = self.line.hand.take(aside_next=self.line.aside_next, may_go=may_go)
        if taken:
            self.held += taken.size
            self.taken_ids.append(taken.id)
        return taken

    def start(self, delivery: InHand, sequence: int, *, at: datetime) -> None:
        """Note that `delivery` goes out now, under its number."""
        self.may_be_marked = False
        self.line.sent += 1
        if self.line.gives_numbers:
            self.line.last_sequence = max(self.line.last_sequence, sequence)
        self.under_way, self.sequence = delivery, sequence
        self.started_at, self.waiting_since = at, time.monotonic()
