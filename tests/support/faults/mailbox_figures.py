"""What clients of a mailbox recorded: each message has one holder at a time, and one end."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from broker_project.stack.load.exchanges import Exchange
from tests.support.faults.figures import Figures

TOLERANCE = 0.002
"""Seconds by which the clocks of the broker and of its clients, on one machine, may differ when they are read."""


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """One message that a client got; times are the broker's, in seconds since 1970."""

    receipt: str
    client: str
    number: int
    webhook_id: str
    redeliveries: int
    flagged: bool
    altered: bool
    begun: float
    until: float


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A call for a receipt that a client is about to make; if it is killed, the outcome is unknown."""

    receipt: str
    word: str
    at: float


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """A client's call for a receipt and its answer; times are the client's, by the same clock."""

    receipt: str
    word: str
    status: int
    code: str
    asked_at: float
    answered_at: float
    until: float
    """Until when it was extended; 0: it was not."""


Record = FetchRecord | RequestRecord | ResponseRecord


def in_hand(records: Sequence[Record]) -> list[FetchRecord]:
    """Return what clients have got and not begun to say anything of."""
    asked = {one.receipt for one in records if isinstance(one, RequestRecord)}
    return [one for one in records if isinstance(one, FetchRecord) and one.receipt not in asked]


@dataclass(frozen=True, slots=True)
class Hold:
    """A period in which one client or endpoint had a message."""

    begun: float
    ended: float


def overlapping(records: Iterable[Record], sent: Iterable[Exchange] = ()) -> int:
    """Count and print the messages that had two holders at the same time."""
    holds = defaultdict(list)
    for number, hold in [*_held([*records]), *_under_way(sent)]:
        holds[number].append(hold)
    count = 0
    for number, several in holds.items():
        several.sort(key=lambda hold: hold.begun)
        for earlier, later in pairwise(several):
            if later.begun < earlier.ended - TOLERANCE:
                print(f"two had event {number}: {earlier}, {later}")
                count += 1
    return count


def _held(records: Sequence[Record]) -> Iterator[tuple[int, Hold]]:
    """Yield how long each message was certainly held: until its time-out, or until the call that returned it.

    The call counts, not its answer: a lost answer does not mean that the call had no effect.
    """
    extended, given_back = defaultdict(list), defaultdict(list)
    for one in records:
        if isinstance(one, ResponseRecord) and one.status == 200:
            extended[one.receipt].append(one.until)
        elif isinstance(one, RequestRecord) and one.word != "extend":
            given_back[one.receipt].append(one.at)
    for one in records:
        if isinstance(one, FetchRecord):
            until = max([one.until, *extended[one.receipt]])
            yield one.number, Hold(one.begun, min([until, *given_back[one.receipt]]))


def _under_way(sent: Iterable[Exchange]) -> Iterator[tuple[int, Hold]]:
    for one in sent:
        yield one.number, Hold(one.at, one.at if one.answered_at is None else one.answered_at)


def by_the_clock(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return exchanges with times since 1970."""
    since_1970 = time.time() - time.monotonic()
    moved = []
    for one in exchanges:
        answered_at = None if one.answered_at is None else one.answered_at + since_1970
        moved.append(replace(one, at=one.at + since_1970, answered_at=answered_at))
    return moved


def figures_of_mailbox(
    acknowledged: Collection[int],
    begun: Collection[int],
    records: Sequence[Record],
    *,
    sent: Collection[Exchange] = (),
    winners: Mapping[int, int],
    dropped: Collection[int] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge what one mailbox handed out, and what was `sent` meanwhile, by how many DELIVERED each event has."""
    handed = sorted((one for one in records if isinstance(one, FetchRecord)), key=lambda one: one.begun)
    said = [one for one in records if isinstance(one, ResponseRecord)]
    done = numbers_done(handed, said) | {one.number for one in sent if one.status == 200}
    wanted = {*acknowledged} - {*dropped}
    everything: list[FetchRecord | Exchange] = [*handed, *sent]
    return Figures(
        acknowledged=len(wanted),
        delivered=len(done),
        lost=len(wanted - done - numbers_unheard(handed, records, winners)),
        recovered=len(done - {*acknowledged}),
        unexpected=sum(one.number not in begun for one in handed) + len(done & {*dropped}) + handed_after(handed, said),
        duplicated=len(everything) - len({one.number for one in everything}),
        unflagged=unflagged(handed, everything),
        misnumbered=not_rising(handed),
        overlapping=overlapping(records, sent),
        altered=sum(one.altered for one in everything),
        misrecorded=sum(winners.get(number, 0) != 1 for number in wanted | done),
        unfinished=unfinished,
    )


def numbers_done(handed: Iterable[FetchRecord], said: Iterable[ResponseRecord]) -> set[int]:
    """Return the events whose acknowledgement was answered 200."""
    receipts = {one.receipt for one in said if one.word == "ack" and one.status == 200}
    return {one.number for one in handed if one.receipt in receipts}


def numbers_unheard(handed: Iterable[FetchRecord], records: Iterable[Record], winners: Mapping[int, int]) -> set[int]:
    """Return the events acknowledged without a recorded answer that the broker has recorded as delivered."""
    asked = {one.receipt for one in records if isinstance(one, RequestRecord) and one.word == "ack"}
    answered = {one.receipt for one in records if isinstance(one, ResponseRecord) and one.word == "ack"}
    return {one.number for one in handed if one.receipt in asked - answered and winners.get(one.number) == 1}


def unflagged(handed: Iterable[FetchRecord], everything: Iterable[FetchRecord | Exchange]) -> int:
    """Count the hand-outs again that are not said to be, and the names under which an event came beyond its first."""
    ids = {(one.number, one.webhook_id) for one in everything}
    return sum(one.redeliveries > 0 and not one.flagged for one in handed) + len(ids) - len(dict(ids))


def handed_after(handed: Iterable[FetchRecord], said: Iterable[ResponseRecord]) -> int:
    """Count the hand-outs of what had been acknowledged by then."""
    ends = {one.receipt: one.answered_at for one in said if one.word == "ack" and one.status == 200}
    done = {one.number: ends[one.receipt] for one in handed if one.receipt in ends}
    return sum(one.begun > done.get(one.number, one.begun) + TOLERANCE for one in handed)


def not_rising(handed: Iterable[FetchRecord]) -> int:
    """Count the hand-outs that do not say of more hand-outs before them than the one before did."""
    by_number = defaultdict(list)
    for one in handed:
        by_number[one.number].append(one.redeliveries)
    return sum(later <= earlier for counts in by_number.values() for earlier, later in pairwise(counts))
