"""Who had a message of a mailbox for himself, and when."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.faults.exchanges import Exchange
from tests.faults.hand_outs import Handed, Said

TOLERANCE = 0.002
"""Seconds by which the clocks of the broker and of its clients, on one machine, may differ when they are read."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A stretch of time in which somebody had a message for himself."""

    begun: float
    ended: float


def overlapping(handed: Iterable[Handed], said: Iterable[Said], sent: Iterable[Exchange] = ()) -> int:
    """Count the messages that began to be somebody's while they still were somebody else's."""
    holds = defaultdict(list)
    for number, hold in [*_held(handed, said), *_under_way(sent)]:
        holds[number].append(hold)
    count = 0
    for several in holds.values():
        several.sort(key=lambda hold: hold.begun)
        count += sum(later.begun < earlier.ended - TOLERANCE for earlier, later in pairwise(several))
    return count


def _held(handed: Iterable[Handed], said: Iterable[Said]) -> Iterator[tuple[int, Hold]]:
    """Yield who was surely held until when: until the time was over, extended or not, or it was given back."""
    words = defaultdict(list)
    for one in said:
        if one.status == 200:
            words[one.receipt].append(one)
    for each in handed:
        until = max([each.until, *(one.until for one in words[each.receipt])])
        given_back = [one.asked_at for one in words[each.receipt] if one.word != "extend"]
        yield each.number, Hold(each.begun, min([until, *given_back]))


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
