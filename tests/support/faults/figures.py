"""The figures of a case, from the logs of publishers and endpoints: lost, duplicated, reordered, altered."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from broker_project.stack.folders import ROOT
from broker_project.stack.load.exchanges import Exchange, Published, is_accepted
from tests.support.faults.exchanges import (
    TRAVEL_SECONDS,
    Fault,
    extra_copies,
    max_copies_of_a_fault,
    max_delay_seconds,
    may_be_unsettled,
    min_blame,
    misnumbered,
    out_of_order,
    overlapping,
    unexplained,
)

GREATEST = ("acknowledged", "max_per_line", "max_per_fault", "pause")
"""Those that do not add up over lines."""

CONTRACT = ROOT / "docs" / "contract.md"
RESTARTED = "workers or PostgreSQL end and are started again"
TAKEN_OVER = "a worker ends, freezes or cannot reach PostgreSQL, and another takes over"
STORES_NOTHING = "PostgreSQL stores nothing: from when it does again"
"""Some of what the contract promises for."""
SENDERS = 5
UNDER_WAY = 16
"""Jobs that each sender has under way at most."""

MUST_BE_ZERO = (
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
    """Requests for events that were never published."""
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
    max_per_line: int = 0
    """Of the copies, those in the line that had the most."""
    max_per_fault: int = 0
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
        return {name: getattr(self, name) for name in MUST_BE_ZERO if getattr(self, name)}


def promised_pause(cause: str) -> float:
    """Return for how many seconds a line that has work gets no request at most, as the contract says (11.9)."""
    _, _, promises = CONTRACT.read_text().partition("\n11.9 ")
    (seconds,) = re.findall(rf"^\| {re.escape(cause)} \| (\d+) s \|$", promises, re.M)
    return float(seconds)


Report = Callable[[], Figures]
"""Waits until everything is through, and returns what became of it."""


def figures(
    events: Mapping[int, Published],
    begun: Collection[int],
    lines: Mapping[str, Sequence[Exchange]],
    *,
    steady: Collection[str] = (),
    fault_at: float = 0.0,
    faults: Collection[Fault] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge the lines, each with its exchanges in the order of arrival; every event, by number, was for every line.

    Without `faults` nothing is said about what a copy repeats.
    """
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
        max_per_line=max(map(len, copies), default=0),
        max_per_fault=max((max_copies_of_a_fault(line, faults) for line in lines.values()), default=0),
        pause=round(max((max_delay_seconds(lines[name], fault_at) for name in steady), default=0.0), 1),
    )


def renamed(lines: Mapping[str, Sequence[Exchange]]) -> int:
    """Count the events that came under more than one webhook id, or number, in a line."""
    names: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for line, exchanges in lines.items():
        for one in exchanges:
            names[line, one.number].add((one.webhook_id, one.sequence))
    return sum(len(each) > 1 for each in names.values())


def figures_of_concurrent(
    events: Collection[int],
    begun: Collection[int],
    requests: Sequence[Exchange],
    *,
    faults: Collection[Fault] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge the requests of a subscriber that gets everything in no order."""
    pairs = [*extra_job_copies(requests)]
    return replace(
        counted(events, begun, requests, [copy for copy, _ in pairs]),
        not_under_way=unexplained_job_copies(pairs, faults),
        unfinished=unfinished,
        max_per_line=len(pairs),
        max_per_fault=max_job_copies_of_a_fault(pairs, faults),
    )


def counted(
    acknowledged: Collection[int], begun: Collection[int], requests: Sequence[Exchange], copies: Sequence[Exchange]
) -> Figures:
    """Return the figures that do not depend on the order of the requests, `copies` among them."""
    acknowledged = {*acknowledged}
    accepted = {one.number for one in requests if one.status == 200}
    return Figures(
        acknowledged=len(acknowledged),
        delivered=len(accepted),
        lost=len(acknowledged - accepted),
        recovered=len(accepted - acknowledged),
        unexpected=sum(one.number not in begun for one in requests),
        duplicated=len(copies),
        unflagged=sum(not one.flagged for one in copies) + renamed({"": requests}),
        altered=sum(one.altered for one in requests),
    )


def figures_of_lanes(
    events: Mapping[int, Published],
    begun: Collection[int],
    requests: Sequence[Exchange],
    *,
    doomed: Collection[int] = (),
    faults: Collection[Fault] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge the requests of one subscriber in the order of their arrival; those for `doomed` events are all refused."""
    own, apart = [one for one in requests if one.attempt == 1], [one for one in requests if one.attempt > 1]
    accepted = {one.number for one in requests if one.status == 200}
    pairs = [*extra_job_copies(apart)]
    copies = [copy.request for copy in extra_copies(own)] + [copy for copy, _ in pairs]
    all_counted = counted(events, begun, requests, copies)
    return replace(
        all_counted,
        lost=len(events.keys() - accepted - {*doomed}),
        unexpected=all_counted.unexpected + len(accepted & {*doomed}),
        inverted=out_of_order(own, events),
        not_under_way=unexplained(own, faults) + unexplained_job_copies(pairs, faults),
        overlapping=overlapping(own) + overlapping(apart),
        misnumbered=misnumbered(own),
        unfinished=unfinished,
        max_per_line=max(len([*extra_copies(own)]), len(pairs)),
        max_per_fault=max(max_copies_of_a_fault(own, faults), max_job_copies_of_a_fault(pairs, faults)),
    )


def extra_job_copies(requests: Sequence[Exchange]) -> Iterator[tuple[Exchange, Exchange]]:
    """Yield the requests for jobs that an earlier one may have given away already, with that one."""
    taken: dict[int, Exchange] = {}
    for one in requests:
        if one.number in taken:
            yield one, taken[one.number]
        if one.status is None or is_accepted(one.status):
            taken[one.number] = one


def causes_of_job_copies(copies: Sequence[tuple[Exchange, Exchange]], faults: Collection[Fault]) -> Iterator[list[int]]:
    """Yield which of the faults explain each copy: what it repeats may have been sent and not yet settled then."""
    for copy, repeated in copies:
        yield [
            place
            for place, fault in enumerate(faults)
            if copy.at > fault.begun
            and repeated.at <= fault.ended + TRAVEL_SECONDS
            and may_be_unsettled(repeated, fault)
        ]


def unexplained_job_copies(copies: Sequence[tuple[Exchange, Exchange]], faults: Collection[Fault]) -> int:
    """Count and print the copies of what was not under way when something was broken."""
    count = 0
    for (copy, repeated), causes in zip(copies, causes_of_job_copies(copies, faults), strict=True):
        if not causes:
            before = [fault for fault in faults if fault.begun < copy.at]
            print(f"no fault explains {copy}, a copy of {repeated}; those before: {before[-3:]}")
            count += 1
    return count


def max_job_copies_of_a_fault(copies: Sequence[tuple[Exchange, Exchange]], faults: Collection[Fault]) -> int:
    """Return the most copies that one fault must have cost, of what comes in no order."""
    return min_blame([*filter(None, causes_of_job_copies(copies, faults))])


def max_job_copies(copies: Sequence[tuple[Exchange, Exchange]], faults: Collection[Fault]) -> int:
    """Return the most copies that one fault must have cost one sender."""
    of_sender: defaultdict[int, list[tuple[Exchange, Exchange]]] = defaultdict(list)
    for pair in copies:
        of_sender[pair[0].message_id % SENDERS].append(pair)
    return max((max_job_copies_of_a_fault(pairs, faults) for pairs in of_sender.values()), default=0)


def figures_of_jobs(
    acknowledged: Collection[int],
    begun: Collection[int],
    requests: Sequence[Exchange],
    *,
    winners: Mapping[int, int],
    faults: Sequence[Fault] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge the requests for jobs, in the order of their arrival wherever they went.

    `winners` is what the books say: how many deliveries of each job are DELIVERED.
    """
    copies = [*extra_job_copies(requests)]
    accepted = {one.number for one in requests if one.status == 200}
    return replace(
        counted(acknowledged, begun, requests, [copy for copy, _ in copies]),
        not_under_way=unexplained_job_copies(copies, faults) if faults else 0,
        misrecorded=sum(winners.get(number, 0) != 1 for number in {*acknowledged} | accepted | winners.keys()),
        unfinished=unfinished,
        max_per_line=max(Counter(copy.message_id % SENDERS for copy, _ in copies).values(), default=0),
        max_per_fault=max_job_copies(copies, faults),
    )
