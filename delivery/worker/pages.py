"""Cutting pages: which of the waiting deliveries a line takes in hand (behaviour 4.2, 4.6)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from delivery.worker.buffer import MAX_BYTES, BodyBudget, Hand, Work

HEAD: Final = 0
FRESH: Final = 1
ASIDE: Final = 2

MOST_DELIVERIES: Final = 500
"""In a page, however many endpoints the groups in it have: the driver waits for its reading, with all its lines."""


class Row(NamedTuple):
    """A waiting delivery as read, without its body."""

    line_id: int
    part: int
    id: int
    message_id: int
    subscription_id: int | None
    """None: the reply to a callback."""
    attempts: int
    sequence: int | None
    uncertain: bool
    times_set_aside: int
    size: int

    @property
    def deliveries(self) -> int:
        """How many it stands for: itself."""
        return 1


class GroupRow(NamedTuple):
    """A QUEUE group that is due, as read."""

    line_id: int
    part: int
    id: int
    message_id: int
    delivery_ids: list[int]
    size: int
    cycles: int
    attempts: int
    uncertain: bool
    first_id: int | None

    @property
    def deliveries(self) -> int:
        """How many it stands for."""
        return len(self.delivery_ids)


class Waiting(Protocol):
    """What may be taken in hand."""

    @property
    def part(self) -> int:
        """Whether it is the line's head, was never sent, or was set aside."""

    @property
    def id(self) -> int:
        """Its id."""

    @property
    def size(self) -> int:
        """Bytes of its body."""

    @property
    def deliveries(self) -> int:
        """How many it stands for."""


One = TypeVar("One", bound=Waiting)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read for one line: at most `capacity` deliveries, `head_id` first if it still may be sent."""

    line_id: int
    epoch: int
    """Under which it was claimed."""
    head_id: int | None
    capacity: int
    aside_next: bool = False
    """Whether it is the turn of those set aside."""
    busy: Sequence[int] = ()
    """The deliveries, or QUEUE groups, that it has taken already."""
    left_out: Sequence[int] = ()
    """Subscriptions of which nothing is read."""
    is_crowd: bool = False
    """Whether it sends several at a time: its turn may not end for long."""
    cut_short: Sequence[int] = ()
    """QUEUE groups whose cycle ended before its time: not at once again."""
    hanging: Mapping[int, float] = field(default_factory=dict)
    """The subscriptions that have kept half of its strands waiting, and for how many seconds."""

    @property
    def rows(self) -> int:
        """How many are read for it: some may be those that it has taken, and be in the way of what it can take."""
        return self.capacity + len(self.busy)


@dataclass(frozen=True, slots=True)
class Page(Generic[One]):
    """What a line takes."""

    taken: list[One]
    more: bool
    """Whether the line has more than it could take."""


def page_of(waiting: Sequence[One], line: Wanted, budget: BodyBudget) -> Page[One]:
    """Take from the front what fits: the line's capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Of groups so many as have 500 deliveries together (but always one).
    """
    taken: list[One] = []
    held = deliveries = 0
    for row in islice(_in_order(waiting, line), line.capacity):
        is_full = held + row.size > MAX_BYTES or deliveries + row.deliveries > MOST_DELIVERIES
        if (taken and is_full) or not budget.take(row.size):
            return Page(taken, more=True)
        taken.append(row)
        held += row.size
        deliveries += row.deliveries
    busy = {*line.busy}
    return Page(taken, more=sum(row.id not in busy for row in waiting) >= line.capacity)


@contextmanager
def charged(
    budget: BodyBudget, pages: Mapping[int, Page[One]], hands: Mapping[int, Hand[Work]]
) -> Iterator[Sequence[One]]:
    """Give what was taken of the pages, to put it into hands; what is in none at the end is not held.

    It is gone meanwhile, or nobody can take it, or the database failed.
    """
    taken = [row for page in pages.values() for row in page.taken]
    try:
        yield taken
    finally:
        budget.give_back(sum(row.size for row in taken) - sum(hand.bytes for hand in hands.values()))


def _in_order(waiting: Sequence[One], line: Wanted) -> Iterator[One]:
    """Yield the head, then those never sent and those set aside in turn: however short a page is cut, none starves."""
    busy = {*line.busy}
    head = [row for row in waiting if row.part == HEAD and row.id not in busy]
    first_or_busy = busy | {row.id for row in head}
    fresh = [row for row in waiting if row.part == FRESH and row.id not in first_or_busy]
    aside = [row for row in waiting if row.part == ASIDE and row.id not in first_or_busy]
    yield from head
    first, second = (aside, fresh) if line.aside_next else (fresh, aside)
    for pair in zip_longest(first, second):
        yield from (row for row in pair if row)
