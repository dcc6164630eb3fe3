"""What the clients of a mailbox have written down says: each message had one holder at a time, and one end."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from tests.faults.exchanges import Exchange
from tests.faults.figures import Figures
from tests.faults.hand_outs import Asked, Handed, Record, Said
from tests.faults.holders import TOLERANCE, overlapping


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
    handed = sorted((one for one in records if isinstance(one, Handed)), key=lambda one: one.begun)
    said = [one for one in records if isinstance(one, Said)]
    done = numbers_done(handed, said) | {one.number for one in sent if one.status == 200}
    wanted = {*acknowledged} - {*dropped}
    everything: list[Handed | Exchange] = [*handed, *sent]
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


def numbers_done(handed: Iterable[Handed], said: Iterable[Said]) -> set[int]:
    """Return the events that a client was told to have acknowledged."""
    receipts = {one.receipt for one in said if one.word == "ack" and one.status == 200}
    return {one.number for one in handed if one.receipt in receipts}


def numbers_unheard(handed: Iterable[Handed], records: Iterable[Record], winners: Mapping[int, int]) -> set[int]:
    """Return the events that a client acknowledged without ever noting an answer, where the books say that it did."""
    asked = {one.receipt for one in records if isinstance(one, Asked) and one.word == "ack"}
    answered = {one.receipt for one in records if isinstance(one, Said) and one.word == "ack"}
    return {one.number for one in handed if one.receipt in asked - answered and winners.get(one.number) == 1}


def unflagged(handed: Iterable[Handed], everything: Iterable[Handed | Exchange]) -> int:
    """Count the hand-outs again that are not said to be, and the names under which an event came beyond its first."""
    ids = {(one.number, one.webhook_id) for one in everything}
    return sum(one.redeliveries > 0 and not one.flagged for one in handed) + len(ids) - len(dict(ids))


def handed_after(handed: Iterable[Handed], said: Iterable[Said]) -> int:
    """Count the hand-outs of what had been acknowledged by then."""
    ends = {one.receipt: one.answered_at for one in said if one.word == "ack" and one.status == 200}
    done = {one.number: ends[one.receipt] for one in handed if one.receipt in ends}
    return sum(one.begun > done.get(one.number, one.begun) + TOLERANCE for one in handed)


def not_rising(handed: Iterable[Handed]) -> int:
    """Count the hand-outs that do not say of more hand-outs before them than the one before did."""
    by_number = defaultdict(list)
    for one in handed:
        by_number[one.number].append(one.redeliveries)
    return sum(later <= earlier for counts in by_number.values() for earlier, later in pairwise(counts))
