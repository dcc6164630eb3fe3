"""What a fault did, by the logs of publishers and endpoints alone: lost, duplicated, inverted, altered."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from broker_project.stack.demo.arrivals import inverted, sets_aside
from broker_project.stack.demo.records import Published


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

    @property
    def may_have_been_taken(self) -> bool:
        """Whether another request for the same event is one copy more: it was not refused."""
        return self.status is None or self.status // 100 == 2


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one case, over all lines; those that have to be 0 come from `lost` on."""

    acknowledged: int
    """Events whose publish was answered 2xx."""
    delivered: int
    """Deliveries that were answered 2xx."""
    recovered: int
    """Of those, the ones whose publish call was never answered 2xx."""
    duplicated: int
    """Requests that were one copy more."""
    most_of_a_line: int
    """Of those, in the line that had the most."""
    pause: float
    """The longest time in seconds without any request in a line that always has work, from the fault on."""
    lost: int
    """Deliveries of acknowledged events that were never answered 2xx."""
    unexpected: int
    """Requests for events that nobody began to publish."""
    unflagged: int
    """Copies that did not say that they may be one, or came under another webhook id."""
    inverted: int
    """Events first sent, or accepted unless set aside, after one whose publish call began when theirs had ended."""
    misnumbered: int
    """Events whose number is not one more than that of the event first sent before it in its line."""
    altered: int
    """Requests with another body than was published."""

    def __str__(self) -> str:
        counts = {each.name.replace("_", " "): getattr(self, each.name) for each in fields(self)}
        return ", ".join(f"{name} {count}" for name, count in counts.items())

    @property
    def broken(self) -> dict[str, int]:
        """Return what should be 0 and is not."""
        names = ("lost", "unexpected", "unflagged", "inverted", "misnumbered", "altered")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


def figures(
    published: Collection[Published],
    begun: Collection[int],
    lines: Mapping[str, Sequence[Exchange]],
    *,
    steady: Collection[str] = (),
    fault_at: float = 0.0,
) -> Figures:
    """Judge the lines, each with its exchanges in the order of arrival; every event was for every line."""
    events = {event.number: event for event in published}
    accepted = {name: {one.number for one in line if one.status == 200} for name, line in lines.items()}
    copies = {name: extra_copies(line) for name, line in lines.items()}
    return Figures(
        acknowledged=len(events),
        delivered=sum(map(len, accepted.values())),
        recovered=sum(len(numbers - events.keys()) for numbers in accepted.values()),
        duplicated=sum(map(len, copies.values())),
        most_of_a_line=max(map(len, copies.values())),
        pause=round(max((longest_pause(lines[name], fault_at) for name in steady), default=0.0), 1),
        lost=sum(len(events.keys() - numbers) for numbers in accepted.values()),
        unexpected=sum(one.number not in begun for line in lines.values() for one in line),
        unflagged=sum(not one.flagged for extra in copies.values() for one in extra) + renamed(lines),
        inverted=sum(out_of_order(line, events) for line in lines.values()),
        misnumbered=sum(misnumbered(line) for line in lines.values()),
        altered=sum(one.altered for line in lines.values() for one in line),
    )


def extra_copies(line: Sequence[Exchange]) -> list[Exchange]:
    """Return the requests for events that an earlier request may have delivered already."""
    taken: set[int] = set()
    extra = []
    for one in line:
        if one.number in taken:
            extra.append(one)
        if one.may_have_been_taken:
            taken.add(one.number)
    return extra


def renamed(lines: Mapping[str, Sequence[Exchange]]) -> int:
    """Count the events that came under more than one webhook id, or number, in a line."""
    names: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for line, exchanges in lines.items():
        for one in exchanges:
            names[line, one.number].add((one.webhook_id, one.sequence))
    return sum(len(each) > 1 for each in names.values())


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
