"""What an endpoint recorded of one line's requests: copies, order, numbers, and the faults that explain them."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from broker_project.stack.load.exchanges import Exchange, Published, inverted, is_accepted, sets_aside

SETTLE_SECONDS = 2.0
"""How long an answer may take to be stored, on a busy machine; that it was not is what the tables say."""
TRAVEL_SECONDS = 1.0
"""How long after it was sent a request may be read, on a busy machine."""


def min_blame(wanted: Sequence[Sequence[int]]) -> int:
    """Return how much the one must bear that bears most, where each thing goes to one of those that it names."""
    most, borne = min(1, len(wanted)), defaultdict[int, list[int]](list)
    for thing in range(len(wanted)):
        while not _finds_room(thing, wanted, borne, most, set()):
            most += 1
    return most


def _finds_room(
    thing: int, wanted: Sequence[Sequence[int]], borne: defaultdict[int, list[int]], most: int, full: set[int]
) -> bool:
    """Assign a thing to one of its candidates, if need be by moving another thing to a different candidate."""
    for one in wanted[thing]:
        if one in full:
            continue
        full.add(one)
        if len(borne[one]) >= most:
            moved = next((other for other in borne[one] if _finds_room(other, wanted, borne, most, full)), None)
            if moved is None:
                continue
            borne[one].remove(moved)
        borne[one].append(thing)
        return True
    return False


@dataclass(frozen=True, slots=True)
class Fault:
    """When something was broken, on the monotonic clock."""

    begun: float
    ended: float


def may_be_unsettled(exchange: Exchange, fault: Fault) -> bool:
    """Return whether its answer may not have been stored when the fault began, and is not, as far as is known."""
    if exchange.answered_at is None:
        return True
    return not exchange.is_stored and fault.begun <= exchange.answered_at + SETTLE_SECONDS


@dataclass(frozen=True, slots=True)
class Copy:
    """A request for an event that an earlier request of the line may have delivered already."""

    request: Exchange
    repeated: Exchange | None
    """The last of those earlier ones; None if the line had gone on to another event in between."""

    def is_explained_by(self, fault: Fault, under_way: Sequence[Exchange]) -> bool:
        """Return whether it came after the fault, and repeats what was under way then."""
        return self.request.at > fault.begun and any(one is self.repeated for one in under_way)


def extra_copies(line: Sequence[Exchange]) -> Iterator[Copy]:
    """Yield the requests for events that an earlier request may have delivered already."""
    taken: dict[int, Exchange] = {}
    goes_on_with: int | None = None
    for one in line:
        if one.number in taken:
            yield Copy(one, taken[one.number] if one.number == goes_on_with else None)
        if one.status is None or is_accepted(one.status):
            taken[one.number] = one
        goes_on_with = one.number


def under_way(line: Sequence[Exchange], fault: Fault) -> Sequence[Exchange]:
    """Return what may have been sent and not yet settled during the fault: one request, but for those begun in it.

    A line sends one request at a time: that is the last one begun before, or, where the fault was over before it was
    read, the first one after.
    """
    before, after = (bisect_right(line, moment, key=lambda one: one.at) for moment in (fault.begun, fault.ended))
    was_last = before > 0 and may_be_unsettled(line[before - 1], fault)
    was_on_its_way = after < len(line) and line[after].at <= fault.ended + TRAVEL_SECONDS
    return line[before - was_last : after + was_on_its_way]


def causes(line: Sequence[Exchange], faults: Collection[Fault]) -> list[list[int]]:
    """Return which of the faults explain each copy in a line, by their places."""
    seen = [(fault, under_way(line, fault)) for fault in faults]
    return [
        [place for place, (fault, requests) in enumerate(seen) if copy.is_explained_by(fault, requests)]
        for copy in extra_copies(line)
    ]


def max_copies_of_a_fault(line: Sequence[Exchange], faults: Collection[Fault]) -> int:
    """Return the most copies that one fault must have cost: what several came upon, any of them may have cost."""
    return min_blame([*filter(None, causes(line, faults))])


def unexplained(line: Sequence[Exchange], faults: Collection[Fault]) -> int:
    """Count the copies that no fault explains."""
    return sum(not of_copy for of_copy in causes(line, faults))


def overlapping(line: Sequence[Exchange]) -> int:
    """Count the requests that began before the previous one was answered, although its client was still connected."""
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
    aside = {one.number for one in line if sets_aside(one.status)}
    straight = first_sent([one for one in line if one.status == 200 and one.number not in aside])
    orders = (first_sent(line), straight)
    return sum(inverted(events[one.number] for one in order if one.number in events) for order in orders)


def misnumbered(line: Sequence[Exchange]) -> int:
    """Count the events that do not carry the next number, from 1 on."""
    numbers = [0, *(one.sequence for one in first_sent(line))]
    return sum(after != before + 1 for before, after in pairwise(numbers)) + sum(
        count > 1 for count in Counter(numbers).values()
    )


def max_delay_seconds(line: Sequence[Exchange], since: float) -> float:
    """Return the longest time between two requests, or between `since` and the first after it."""
    moments = [since, *(one.at for one in line if one.at > since)]
    return max((after - before for before, after in pairwise(moments)), default=0.0)
