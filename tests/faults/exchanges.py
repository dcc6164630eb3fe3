"""What an endpoint wrote down of one line's requests, and what that says about copies, order and numbers."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from broker_project.stack.demo.arrivals import inverted, sets_aside
from broker_project.stack.demo.records import Published

SETTLE_SECONDS = 1.0
"""A request counts as under way from so long before it was read until so long after it was answered.

It takes a moment to reach an endpoint, and an answer takes one to be stored, more so on a busy machine.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """When something was broken, on the monotonic clock."""

    begun: float
    ended: float


@dataclass(slots=True)
class Exchange:
    """One request as an endpoint got it, and what the endpoint made of it."""

    number: int
    """Of the event in its body."""
    webhook_id: str
    sequence: int
    flagged: bool
    """Whether it said that it may be a duplicate."""
    altered: bool
    """Whether its body is not what was published."""
    at: float
    status: int | None = None
    """None: not answered."""
    answered_at: float | None = None
    hung_up: bool = False
    """Whether who asked was gone before the answer."""

    @property
    def may_have_been_taken(self) -> bool:
        """Whether another request for the same event is one copy more: it was not refused."""
        return self.status is None or self.status // 100 == 2

    def was_under_way(self, fault: Fault) -> bool:
        """Say whether it may have been begun and not yet settled during the fault."""
        until = float("inf") if self.answered_at is None else self.answered_at + SETTLE_SECONDS
        return self.at - SETTLE_SECONDS <= fault.ended and fault.begun <= until


@dataclass(frozen=True, slots=True)
class Copy:
    """A request for an event that earlier requests of the line may have delivered already."""

    request: Exchange
    earlier: tuple[Exchange, ...]

    def repeats_what_was_under_way(self, fault: Fault) -> bool:
        """Say whether the fault explains it: it came after, and repeats what was under way then."""
        return self.request.at > fault.begun and any(one.was_under_way(fault) for one in self.earlier)


def extra_copies(line: Sequence[Exchange]) -> Iterator[Copy]:
    """Yield the requests for events that an earlier request may have delivered already."""
    taken: dict[int, tuple[Exchange, ...]] = {}
    for one in line:
        if one.number in taken:
            yield Copy(one, taken[one.number])
        if one.may_have_been_taken:
            taken[one.number] = (*taken.get(one.number, ()), one)


def most_of_a_fault(copies: Collection[Copy], faults: Collection[Fault]) -> int:
    """Return how many copies the fault explains that explains the most."""
    return max((sum(copy.repeats_what_was_under_way(fault) for copy in copies) for fault in faults), default=0)


def unexplained(copies: Collection[Copy], faults: Collection[Fault]) -> int:
    """Count the copies of requests that were under way at no fault."""
    return sum(not any(copy.repeats_what_was_under_way(fault) for fault in faults) for copy in copies)


def overlapping(line: Sequence[Exchange]) -> int:
    """Count the requests that came before the one before was answered, though who had sent that was still there."""
    return sum(
        before.answered_at is not None and not before.hung_up and after.at < before.answered_at
        for before, after in pairwise(line)
    )


def first_sent(line: Sequence[Exchange]) -> list[Exchange]:
    """Return the first request for each event."""
    first: dict[int, Exchange] = {}
    for one in line:
        first.setdefault(one.number, one)
    return [*first.values()]


def out_of_order(line: Sequence[Exchange], events: Mapping[int, Published]) -> int:
    """Count the inversions among the first requests, and among the accepted ones of events never set aside."""
    aside = {one.number for one in line if one.status is not None and sets_aside(one.status)}
    straight = first_sent([one for one in line if one.status == 200 and one.number not in aside])
    orders = (first_sent(line), straight)
    return sum(inverted(events[one.number] for one in order if one.number in events) for order in orders)


def misnumbered(line: Sequence[Exchange]) -> int:
    """Count the events that do not carry the next number, from 1 on."""
    numbers = [0, *(one.sequence for one in first_sent(line))]
    return sum(after != before + 1 for before, after in pairwise(numbers)) + sum(
        count > 1 for count in Counter(numbers).values()
    )


def longest_pause(line: Sequence[Exchange], since: float) -> float:
    """Return the longest time between two requests, or between `since` and the first after it."""
    moments = [since, *(one.at for one in line if one.at > since)]
    return max((after - before for before, after in pairwise(moments)), default=0.0)
