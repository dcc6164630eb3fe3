"""What a fault did, by the logs of publishers and endpoints alone: lost, duplicated, inverted, altered."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields

from broker_project.stack.demo.records import Published
from tests.faults.exchanges import (
    Exchange,
    Fault,
    extra_copies,
    max_delay_seconds,
    misnumbered,
    most_of_a_fault,
    out_of_order,
    overlapping,
    unexplained,
)

MUST_BE_NONE = (
    "lost",
    "unexpected",
    "unflagged",
    "not_under_way",
    "overlapping",
    "inverted",
    "misnumbered",
    "altered",
    "misrecorded",
    "unfinished",
)

GREATEST = ("acknowledged", "most_of_a_line", "most_of_a_fault", "pause")
"""Those that do not add up over lines."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one case, over all lines."""

    acknowledged: int = 0
    """Events whose publish was answered 2xx."""
    delivered: int = 0
    """Deliveries that were answered 2xx."""
    lost: int = 0
    """Deliveries of acknowledged events that were never answered 2xx."""
    recovered: int = 0
    """Of those delivered, the ones whose publish call was never answered 2xx."""
    unexpected: int = 0
    """Requests for events that nobody began to publish."""
    duplicated: int = 0
    """Requests that were one copy more."""
    inverted: int = 0
    """Events first sent, or accepted unless set aside, after one whose publish call began when theirs had ended."""
    unflagged: int = 0
    """Copies that did not say that they may be one, or came under another webhook id."""
    not_under_way: int = 0
    """Copies of requests that were not under way when something broke, or that came after something else."""
    overlapping: int = 0
    """Requests of a line that came while another of it was under way."""
    misnumbered: int = 0
    """Events whose number is not one more than that of the event first sent before it in its line."""
    altered: int = 0
    """Requests with another body than was published."""
    misrecorded: int = 0
    """Jobs, replies and calls that the broker's own books do not have as the endpoints do, once."""
    unfinished: int = 0
    """Deliveries that the broker itself still had to do when time was up."""
    most_of_a_line: int = 0
    """Of the copies, those in the line that had the most."""
    most_of_a_fault: int = 0
    """Of those, the ones that repeat what was under way in one line when something broke once, at most."""
    pause: float = 0.0
    """The longest time in seconds without any request in a line that always has work, from the fault on."""

    def __add__(self, other: "Figures") -> "Figures":
        """Return the figures of both, which judge different lines."""
        both = {each.name: (getattr(self, each.name), getattr(other, each.name)) for each in fields(self)}
        return Figures(**{name: max(pair) if name in GREATEST else sum(pair) for name, pair in both.items()})

    def __str__(self) -> str:
        counts = {each.name.replace("_", " "): getattr(self, each.name) for each in fields(self)}
        return ", ".join(f"{name} {count}" for name, count in counts.items())

    @property
    def broken(self) -> dict[str, int]:
        """Return what should be 0 and is not."""
        return {name: getattr(self, name) for name in MUST_BE_NONE if getattr(self, name)}


Report = Callable[[], Figures]
"""Waits until everything is through, and returns what became of it."""


def figures(
    published: Collection[Published],
    begun: Collection[int],
    lines: Mapping[str, Sequence[Exchange]],
    *,
    steady: Collection[str] = (),
    fault_at: float = 0.0,
    faults: Collection[Fault] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge the lines, each with its exchanges in the order of arrival; every event was for every line.

    Without `faults` nothing is said about what a copy repeats.
    """
    events = {event.number: event for event in published}
    accepted = {name: {one.number for one in line if one.status == 200} for name, line in lines.items()}
    copies = [[*extra_copies(line)] for line in lines.values()]
    return Figures(
        acknowledged=len(events),
        delivered=sum(map(len, accepted.values())),
        lost=sum(len(events.keys() - numbers) for numbers in accepted.values()),
        recovered=sum(len(numbers - events.keys()) for numbers in accepted.values()),
        unexpected=sum(one.number not in begun for line in lines.values() for one in line),
        duplicated=sum(map(len, copies)),
        inverted=sum(out_of_order(line, events) for line in lines.values()),
        unflagged=sum(not copy.request.flagged for extra in copies for copy in extra) + renamed(lines),
        not_under_way=sum(unexplained(line, faults) for line in lines.values()) if faults else 0,
        overlapping=sum(overlapping(line) for line in lines.values()),
        misnumbered=sum(misnumbered(line) for line in lines.values()),
        altered=sum(one.altered for line in lines.values() for one in line),
        unfinished=unfinished,
        most_of_a_line=max(map(len, copies), default=0),
        most_of_a_fault=max((most_of_a_fault(line, faults) for line in lines.values()), default=0),
        pause=round(max((max_delay_seconds(lines[name], fault_at) for name in steady), default=0.0), 1),
    )


def renamed(lines: Mapping[str, Sequence[Exchange]]) -> int:
    """Count the events that came under more than one webhook id, or number, in a line."""
    names: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for line, exchanges in lines.items():
        for one in exchanges:
            names[line, one.number].add((one.webhook_id, one.sequence))
    return sum(len(each) > 1 for each in names.values())
