"""Who had a message of a mailbox for himself, and when."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.faults.exchanges import Exchange
from tests.faults.hand_outs import Asked, Handed, Record, Said

TOLERANCE = 0.002
"""Seconds by which the clocks of the broker and of its clients, on one machine, may differ when they are read."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A stretch of time in which somebody had a message for himself."""

    begun: float
    ended: float


def overlapping(records: Iterable[Record], sent: Iterable[Exchange] = ()) -> int:
    """Count the messages that began to be somebody's while they still were somebody else's, and print them."""
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
    """Yield who was surely held until when: until the time was over, extended or not, or it was to be given back.

    To be: where the answer was lost, it may have been heard all the same, and the one to a second call is another.
    """
    extended, given_back = defaultdict(list), defaultdict(list)
    for one in records:
        if isinstance(one, Said) and one.status == 200:
            extended[one.receipt].append(one.until)
        elif isinstance(one, Asked) and one.word != "extend":
            given_back[one.receipt].append(one.at)
    for one in records:
        if isinstance(one, Handed):
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
