"""Read pages: which deliveries a line may send next, oldest first (contract 4.2, 4.6, 5.3).

Of a line with one slot the first is marked as IN_FLIGHT at once, and comes with all that its request needs.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import islice, zip_longest
from typing import Any, Final, Generic, LiteralString, NamedTuple, Self, TypeVar

from broker_project.core.db import Rows, array, rows, with_blocks
from delivery.limits import MAX_LINE_BYTES, MAX_MARKED_BYTES, MAX_PAGE_DELIVERIES
from delivery.webhook.content import Content, content_with, contents_of
from delivery.webhook.destination import Destination, destinations_of, original_addresses
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer, Work
from delivery.worker.page_sql import PAGES, UNMARK

HEAD: Final = 0
"""A held delivery that is due."""
FRESH: Final = 1
DEFERRED: Final = 2
AFTER: Final = "\x01"
"""Appended to an ordering key, it sorts before everything that comes after that key."""


@cache
def pages_statement(blocks: frozenset[str]) -> LiteralString:
    """Return the statement that reads pages with these optional blocks."""
    return with_blocks(PAGES, blocks)


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
    times_deferred: int
    size: int
    due_at: datetime | None
    ordering_key: str | None
    version: int | None
    """Of its destination's configuration."""

    @property
    def deliveries(self) -> int:
        """How many it stands for: itself."""
        return 1


ROW_WIDTH: Final = len(Row._fields)


class Marked(NamedTuple):
    """A delivery that was marked as IN_FLIGHT with its page."""

    size: int
    sequence: int
    content: Content


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


One = TypeVar("One", Row, GroupRow)


@dataclass(frozen=True, slots=True)
class KeyWalk:
    """Which ordering keys a page is read of, and how much of each."""

    start: str
    """The first of them, or the next one that has something to send."""
    keys: int
    per_key: int
    held: Sequence[str]
    """Those of which nothing is read."""
    not_deferred: Sequence[str]
    """Those of which no deferred deliveries are read."""
    last_sequence: int
    """The last number that the line has given, before those that are being marked."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What to read for one line: at most `capacity` deliveries, the `heads` first that still may be sent."""

    line_id: int
    epoch: int
    capacity: int
    heads: Sequence[int] = ()
    """Held deliveries that are due."""
    deferred_next: bool = False
    """Whether it is the turn of the deferred ones."""
    busy: Sequence[int] = ()
    """The deliveries, or QUEUE groups, that it has taken already, and held deliveries that are not due."""
    left_out: Sequence[int] = ()
    """Subscriptions of which nothing is read."""
    is_concurrent: bool = False
    """Whether it sends several at a time."""
    walk: KeyWalk | None = None
    """How it goes by ordering keys; None: by age alone."""
    mark_as: int | None = None
    """The number under which the first is marked as IN_FLIGHT; None: none is."""
    cut_short: Sequence[int] = ()
    """QUEUE groups whose cycle ended early: they wait a moment."""
    hanging: Mapping[int, float] = field(default_factory=dict)
    """The subscriptions that keep half of its slots waiting, and for how many seconds."""


@dataclass(frozen=True, slots=True)
class Page(Generic[One]):
    """What a line takes."""

    taken: list[One]
    more: bool
    """Whether the line has more than it could take."""


def page_of(waiting: Sequence[One], line: PageRequest, budget: BodyBudget, paid_for: Collection[int] = ()) -> Page[One]:
    """Take from the front what fits: the line's capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Of groups as many as have 500 deliveries together (but always one). What is `paid_for` was taken from `budget`.
    """
    busy = {*line.busy}
    taken: list[One] = []
    held = deliveries = 0
    for row in islice(_in_order(waiting, line, busy), line.capacity):
        is_full = held + row.size > MAX_LINE_BYTES or deliveries + row.deliveries > MAX_PAGE_DELIVERIES
        if (taken and is_full) or not (row.id in paid_for or budget.take(row.size)):
            return Page(taken, more=True)
        taken.append(row)
        held += row.size
        deliveries += row.deliveries
    return Page(taken, more=_is_cut(waiting, line, busy))


def _in_order(waiting: Sequence[One], line: PageRequest, busy: set[int]) -> Iterator[One]:
    """Yield the heads, then new and deferred ones in turn: however short a page is cut, neither kind starves."""
    heads = [row for row in waiting if row.part == HEAD and row.id not in busy]
    first_or_busy = busy | {row.id for row in heads}
    fresh = [row for row in waiting if row.part == FRESH and row.id not in first_or_busy]
    if line.walk:
        fresh = _by_turns(fresh)
    deferred = [row for row in waiting if row.part == DEFERRED and row.id not in first_or_busy]
    yield from sorted(heads, key=lambda row: row.id)
    first, second = (deferred, fresh) if line.deferred_next else (fresh, deferred)
    for pair in zip_longest(first, second):
        yield from (row for row in pair if row)


def _by_turns(rows_by_key: Sequence[Any]) -> list[Any]:
    """Return the first of each ordering key, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, str, Any]] = []
    for row in sorted(rows_by_key, key=lambda row: row.id):
        turns.append((seen[row.ordering_key], row.ordering_key, row))
        seen[row.ordering_key] += 1
    return [row for *_, row in sorted(turns, key=lambda turn: turn[:2])]


def _is_cut(waiting: Sequence[Any], line: PageRequest, busy: set[int]) -> bool:
    """Return whether there may be more than was read."""
    if line.walk:
        keys = Counter(row.ordering_key for row in waiting if row.part == FRESH)
        if line.walk.start or 2 * len(keys) >= line.walk.keys or max(keys.values(), default=0) >= line.walk.per_key:
            return True
    return sum(row.id not in busy for row in waiting) >= line.capacity


def _next_key(line: PageRequest, page: "Page[Row]") -> str:
    """Return the ordering key from which on the next page is read; empty: from the first one on.

    A walk that was cut short has met so many keys that half of them have something that is not in flight.
    """
    assert line.walk  # noqa: S101 - only asked of lines that go by keys
    keys = {row.ordering_key or "" for row in page.taken if row.part == FRESH}
    return max(keys) + AFTER if 2 * len(keys) >= line.walk.keys else ""


@contextmanager
def charged(
    budget: BodyBudget, pages: Mapping[int, Page[One]], buffers: Mapping[int, Buffer[Work]]
) -> Iterator[Sequence[One]]:
    """Give the rows of the pages, to put them into buffers; give the bytes back of those that are in none at the end.

    Those are gone by now, or nobody can take them, or the database failed.
    """
    taken = [row for page in pages.values() for row in page.taken]
    try:
        yield taken
    finally:
        budget.give_back(sum(row.size for row in taken) - sum(buffer.bytes for buffer in buffers.values()))


def unmark(lines: Sequence[PageRequest]) -> set[int]:
    """Undo what reading a page without an answer may have marked; return the lines where that is certain."""
    last = [(line.line_id, line.epoch, line.mark_as - 1) for line in lines if line.mark_as]
    return {line_id for (line_id,) in rows(UNMARK, [[*column] for column in zip(*last, strict=True)])}


class PageReading:
    """A statement that reads pages, and what becomes of its rows; to be closed in any case.

    `settled` are deliveries that the same transaction settles before it: of a line in which one of them stays in flight
    nothing is marked. None: no other statement is in its transaction.
    """

    def __init__(
        self,
        wanted: Sequence[PageRequest],
        budget: BodyBudget,
        settled: Sequence[int] | None = None,
        *,
        marks: bool = True,
    ) -> None:
        self.wanted = wanted
        self._budget = budget
        self._marked: Mapping[int, Marked] = {}
        marking = [line for line in wanted if marks and line.mark_as is not None]
        self._reserved = len(marking) * MAX_MARKED_BYTES
        if not budget.take(self._reserved):
            marking, self._reserved = [], 0
        self.statement = _statement(wanted, marking, settled)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._budget.give_back(self._reserved - sum(first.size for first in self._marked.values()))

    def buffers(self, found: Rows) -> dict[int, Buffer[Outgoing]]:
        """Return a buffer for every line: at most its capacity, 1 MiB of bodies (but always one), what the budget has.

        Takes each buffer's bytes from the budget; when a delivery is dropped, its bytes are given back. A buffer is
        `starved` if there is work but the process holds too many bodies already: then nothing is marked either. A line
        is missing if the configuration of what was marked has changed since: that has to be undone.
        """
        by_line: dict[int, list[Row]] = defaultdict(list)
        marked: dict[int, Marked] = {}
        for columns in found:
            row = Row._make(columns[:ROW_WIDTH])
            by_line[row.line_id].append(row)
            if self._reserved and (sequence := columns[ROW_WIDTH]) is not None:
                marked[row.id] = Marked(row.size, sequence, content_with(columns[ROW_WIDTH + 1 :]))
        self._marked = marked
        pages = {
            line.line_id: page_of(by_line.get(line.line_id, []), line, self._budget, paid_for=marked)
            for line in self.wanted
        }
        buffers: dict[int, Buffer[Outgoing]] = {}
        with charged(self._budget, pages, buffers) as taken:
            contents = contents_of({row.message_id for row in taken if row.id not in marked})
            destinations = destinations_of({row.subscription_id: row.version for row in taken if row.subscription_id})
            originals = original_addresses({row.line_id for row in taken if row.subscription_id is None})
            changed = {
                row.line_id
                for row in taken
                if row.id in marked
                and not ((to := destinations.get(row.subscription_id or 0)) and to.config_version == row.version)
            }
            for line_id, page in pages.items():
                if line_id not in changed:
                    buffers[line_id] = _buffer_of(page, marked, contents, destinations, originals)
        for line in self.wanted:
            if line.line_id in buffers:
                _note_ends(line, pages[line.line_id], by_line.get(line.line_id, ()), buffers[line.line_id])
        return buffers


def read_pages(wanted: Sequence[PageRequest], budget: BodyBudget) -> dict[int, Buffer[Outgoing]]:
    """Read pages in a statement of their own; return a buffer for every line, as `PageReading.buffers` does."""
    with PageReading(wanted, budget) as reading:
        return reading.buffers(rows(*reading.statement))


def _note_ends(line: PageRequest, page: Page[Row], found: Sequence[Row], buffer: Buffer[Outgoing]) -> None:
    """Note where the line's next page begins, and which of its held deliveries may no longer be sent."""
    if line.walk:
        buffer.next_key = _next_key(line, page)
    if line.heads:
        heads = {row.id for row in found if row.part == HEAD}
        buffer.gone = [one for one in line.heads if one not in heads]


def _statement(
    wanted: Sequence[PageRequest], marking: Sequence[PageRequest], settled: Sequence[int] | None
) -> tuple[LiteralString, dict[str, Any]]:
    """Return the statement that reads what waits, and marks the first of the lines `marking`, with its arguments.

    What waits: beyond a line's capacity as many as it has taken already, which may be read again.
    """
    left_out = [(line.line_id, subscription_id) for line in wanted for subscription_id in line.left_out]
    heads = [(line.line_id, head) for line in wanted for head in line.heads]
    concurrent = [line for line in wanted if line.is_concurrent]
    busy = [(line.line_id, taken_id) for line in concurrent for taken_id in line.busy]
    keyed = [(line.line_id, line.walk) for line in wanted if line.walk]
    held = [(line_id, key) for line_id, walk in keyed for key in walk.held]
    not_deferred = [(line_id, key) for line_id, walk in keyed for key in walk.not_deferred]
    arguments: dict[str, Any] = {
        "line_id": array(line.line_id for line in wanted),
        "epoch": array(line.epoch for line in wanted),
        "capacity": array(line.capacity + len(line.busy) for line in wanted),
    }
    blocks = {"only_reads"} if not marking and settled is None else set()
    if marking:
        blocks.add("marks")
        arguments |= {
            "marks_in": array(line.line_id for line in marking),
            "mark_epoch": array(line.epoch for line in marking),
            "mark_as": array(line.mark_as for line in marking),
            "deferred_next": array(line.deferred_next for line in marking),
            "most": MAX_MARKED_BYTES,
        }
    if marking and settled:
        blocks.add("settles")
        arguments["settled"] = array(settled)
    if concurrent:
        blocks.add("has_concurrent")
        arguments |= {
            "concurrent": array(line.line_id for line in concurrent),
            "of_busy": array(line_id for line_id, _ in busy),
            "busy": array(taken_id for _, taken_id in busy),
        }
    if keyed:
        blocks.add("has_keyed")
        arguments |= {
            "keyed": array(line_id for line_id, _ in keyed),
            "start": [walk.start for _, walk in keyed],
            "keys": array(walk.keys for _, walk in keyed),
            "per_key": array(walk.per_key for _, walk in keyed),
            "last_sequence": array(walk.last_sequence for _, walk in keyed),
            "held_keys_of": array(line_id for line_id, _ in held),
            "held_keys": [key for _, key in held],
            "not_deferred_of": array(line_id for line_id, _ in not_deferred),
            "not_deferred": [key for _, key in not_deferred],
        }
    if heads:
        blocks.add("has_heads")
        arguments |= {"held_by": array(line_id for line_id, _ in heads), "heads": array(head for _, head in heads)}
    if left_out:
        blocks.add("leaves_out")
        arguments |= {
            "of_line": array(line_id for line_id, _ in left_out),
            "left_out": array(subscription_id for _, subscription_id in left_out),
        }
    return pages_statement(frozenset(blocks)), arguments


def _buffer_of(
    page: Page[Row],
    marked: Mapping[int, Marked],
    contents: Mapping[int, Content],
    destinations: Mapping[int, Destination],
    originals: Mapping[int, Destination],
) -> Buffer[Outgoing]:
    parts: dict[int, list[Outgoing]] = {HEAD: [], FRESH: [], DEFERRED: []}
    for row in page.taken:
        first = marked.get(row.id)
        content = first.content if first else contents.get(row.message_id)
        destination = destinations.get(row.subscription_id) if row.subscription_id else originals.get(row.line_id)
        # Both are there unless somebody cancelled the delivery and deleted what it needs since its row was read.
        if content and destination:
            delivery = Outgoing(
                id=row.id,
                content=content,
                destination=destination,
                attempts=row.attempts,
                sequence=row.sequence,
                uncertain=row.uncertain,
                size=row.size,
                is_deferred=row.part == DEFERRED,
                times_deferred=row.times_deferred,
                marked_as=first.sequence if first else None,
                ordering_key=row.ordering_key or "",
            )
            parts[HEAD if first else row.part].append(delivery)
    return Buffer(heads=parts[HEAD], fresh=parts[FRESH], deferred=parts[DEFERRED], more=page.more)
