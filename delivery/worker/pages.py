"""Read pages: which deliveries a line may send next, oldest first (contract 4.2, 4.6, 5.3)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, zip_longest
from typing import Final, Generic, LiteralString, NamedTuple, Protocol, TypeVar

from broker_project.core.db import rows
from delivery.callbacks.address import original_addresses
from delivery.limits import MAX_LINE_BYTES
from delivery.webhook.content import contents_of
from delivery.webhook.destination import destinations_of
from delivery.webhook.parts import Content, Destination, Outgoing
from delivery.worker.buffer import BodyBudget, Buffer, Work

ROW: Final = "d.id, d.message_id, d.subscription_id, d.attempts, d.sequence, d.uncertain, d.times_deferred, d.size"
LIVES: Final = "(d.expires_at IS NULL OR d.expires_at > (SELECT clock_timestamp()))"

LEFT_OUT: Final = """
         AND NOT EXISTS (SELECT FROM unnest(%(of_line)s::bigint[], %(left_out)s::bigint[]) AS x (line_id, id)
                          WHERE x.line_id = w.line_id AND x.id = s.id)"""

HEAD: Final = 0
FRESH: Final = 1
ASIDE: Final = 2

MAX_DELIVERIES: Final = 500
"""In a page, however many endpoints the groups in it have: the event loop waits for its reading, with all its lines."""

ACTIVE: Final = """
WITH wanted AS (
  SELECT * FROM unnest(%(line_id)s::bigint[], %(epoch)s::bigint[], %(head_id)s::bigint[], %(capacity)s::int[])
           AS w (line_id, epoch, head_id, capacity)),
active AS MATERIALIZED (
  SELECT w.line_id, w.epoch, w.capacity, l.lane = 'main' AS has_fresh, array_agg(s.id ORDER BY s.id) AS subscription_ids
    FROM wanted w JOIN delivery_line l ON l.id = w.line_id
    JOIN subscriptions_subscriber u ON u.id = l.subscriber_id AND u.status = 'ACTIVE'
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.is_sending AND s.kind = 'TOPIC'
         AND (l.lane = 'main' OR NOT s.half_open)"""

PAGE: Final = f"""
   GROUP BY 1, 2, 3, 4),
page AS MATERIALIZED (
  SELECT w.line_id, 0 AS part, {ROW}
    FROM wanted w JOIN delivery_open d ON d.id = w.head_id AND d.closed_on = '9999-12-31' AND d.status = 'PENDING'
    LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
    LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   WHERE d.line_id = w.line_id AND (d.subscription_id IS NULL OR s.is_sending AND u.status = 'ACTIVE') AND {LIVES}
  UNION ALL
  SELECT a.line_id, 1, d.* FROM active a CROSS JOIN LATERAL (
    SELECT f.* FROM unnest(a.subscription_ids) AS s (id) CROSS JOIN LATERAL (
      SELECT {ROW} FROM delivery_open d
       WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.due_at IS NULL AND d.status = 'PENDING'
         AND {LIVES}
       ORDER BY d.id LIMIT a.capacity) f
     ORDER BY f.id LIMIT a.capacity) d
   WHERE a.has_fresh
  UNION ALL
  SELECT a.line_id, 2, {ROW} FROM active a CROSS JOIN LATERAL (
    SELECT f.* FROM (
      SELECT f.*, CASE WHEN NOT a.has_fresh THEN dense_rank() OVER (ORDER BY f.subscription_id) END AS number
        FROM unnest(a.subscription_ids) AS s (id) CROSS JOIN LATERAL (
          SELECT {ROW}, d.due_at,
                 CASE WHEN NOT a.has_fresh THEN row_number() OVER (ORDER BY d.due_at, d.id) END AS round
            FROM delivery_open d
           WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.due_at <= (SELECT clock_timestamp())
             AND d.status = 'PENDING' AND {LIVES}
           ORDER BY d.due_at, d.id LIMIT a.capacity) f) f
     ORDER BY f.round, mod(f.number + a.epoch, max(f.number) OVER ()), f.due_at, f.id LIMIT a.capacity) d),
"""

NOTED: Final = """
noted AS (
  INSERT INTO delivery_pageread (line_id, delivery_ids)
  SELECT line_id, array_agg(id) FROM page GROUP BY line_id
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL)
SELECT * FROM page
"""
NOTED_ANEW: Final = """
concurrent AS MATERIALIZED (
  SELECT l.id FROM wanted w JOIN delivery_line l ON l.id = w.line_id AND l.epoch = w.epoch
   WHERE l.id = ANY (%(concurrent)s::bigint[]) AND l.id IN (SELECT line_id FROM page) FOR KEY SHARE OF l),
forgotten AS (
  DELETE FROM delivery_pageread p USING concurrent c WHERE p.line_id = c.id),
noted AS (
  INSERT INTO delivery_pageread (line_id, delivery_ids)
  SELECT line_id, array_agg(id) FROM (
    SELECT line_id, id FROM page
    UNION ALL
    SELECT b.line_id, b.id FROM unnest(%(of_busy)s::bigint[], %(busy)s::bigint[]) AS b (line_id, id)
      JOIN concurrent c ON c.id = b.line_id) i
   GROUP BY line_id
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL)
SELECT * FROM page
"""
"""Where lines send several at a time, of which one may always wait: their turn need not end, their notes must not grow.

What has been taken already is noted again, and whoever has lost a line forgets nothing: its new worker's notes stay.
"""


@cache
def pages_statement(*, leaves_out: bool, has_concurrent: bool) -> LiteralString:
    """Return what reads the pages, and notes for mending what is in them; without some subscriptions if it says so.

    A retry line has nothing that was never tried, and nothing of a subscription on trial, which is the main line's
    alone. Those of its subscriptions of which something is due take turns, and another of them begins whenever it is
    claimed: one that hangs, and whose turn goes with that, does not keep the others from theirs.

    The note need not be on disk yet: the settle that marks one of these as under way is written behind it, and waits.
    """
    return ACTIVE + (LEFT_OUT if leaves_out else "") + PAGE + (NOTED_ANEW if has_concurrent else NOTED)


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
class PageRequest:
    """What to read for one line: at most `capacity` deliveries, `head_id` first if it still may be sent."""

    line_id: int
    epoch: int
    """Under which it was claimed."""
    head_id: int | None
    capacity: int
    deferred_next: bool = False
    """Whether it is the turn of those set aside."""
    busy: Sequence[int] = ()
    """The deliveries, or QUEUE groups, that it has taken already."""
    left_out: Sequence[int] = ()
    """Subscriptions of which nothing is read."""
    is_concurrent: bool = False
    """Whether it sends several at a time: its turn may not end for long."""
    cut_short: Sequence[int] = ()
    """QUEUE groups whose cycle ended before its time: not at once again."""
    hanging: Mapping[int, float] = field(default_factory=dict)
    """The subscriptions that have kept half of its slots waiting, and for how many seconds."""

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


def page_of(waiting: Sequence[One], line: PageRequest, budget: BodyBudget) -> Page[One]:
    """Take from the front what fits: the line's capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Of groups so many as have 500 deliveries together (but always one).
    """
    taken: list[One] = []
    held = deliveries = 0
    for row in islice(_in_order(waiting, line), line.capacity):
        is_full = held + row.size > MAX_LINE_BYTES or deliveries + row.deliveries > MAX_DELIVERIES
        if (taken and is_full) or not budget.take(row.size):
            return Page(taken, more=True)
        taken.append(row)
        held += row.size
        deliveries += row.deliveries
    busy = {*line.busy}
    return Page(taken, more=sum(row.id not in busy for row in waiting) >= line.capacity)


@contextmanager
def charged(
    budget: BodyBudget, pages: Mapping[int, Page[One]], buffers: Mapping[int, Buffer[Work]]
) -> Iterator[Sequence[One]]:
    """Give what was taken of the pages, to put it into buffers; what is in none at the end is not held.

    It is gone meanwhile, or nobody can take it, or the database failed.
    """
    taken = [row for page in pages.values() for row in page.taken]
    try:
        yield taken
    finally:
        budget.give_back(sum(row.size for row in taken) - sum(buffer.bytes for buffer in buffers.values()))


def _in_order(waiting: Sequence[One], line: PageRequest) -> Iterator[One]:
    """Yield the head, then those never sent and those set aside in turn: however short a page is cut, none starves."""
    busy = {*line.busy}
    head = [row for row in waiting if row.part == HEAD and row.id not in busy]
    first_or_busy = busy | {row.id for row in head}
    fresh = [row for row in waiting if row.part == FRESH and row.id not in first_or_busy]
    aside = [row for row in waiting if row.part == ASIDE and row.id not in first_or_busy]
    yield from head
    first, second = (aside, fresh) if line.deferred_next else (fresh, aside)
    for pair in zip_longest(first, second):
        yield from (row for row in pair if row)


def read_pages(wanted: Sequence[PageRequest], budget: BodyBudget) -> dict[int, Buffer[Outgoing]]:
    """Return a buffer for every line: at most its capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Takes each buffer's bytes from `budget`; whoever drops a delivery gives them back. A buffer is `starved` where there
    is work but the process holds too many bodies already.
    """
    by_line = _waiting(wanted)
    pages = {line.line_id: page_of(by_line.get(line.line_id, []), line, budget) for line in wanted}
    buffers: dict[int, Buffer[Outgoing]] = {}
    with charged(budget, pages, buffers) as taken:
        contents = contents_of({row.message_id for row in taken})
        destinations = destinations_of({row.subscription_id for row in taken if row.subscription_id is not None})
        originals = original_addresses({row.line_id for row in taken if row.subscription_id is None})
        buffers |= {line_id: _buffer_of(page, contents, destinations, originals) for line_id, page in pages.items()}
    return buffers


def _waiting(wanted: Sequence[PageRequest]) -> Mapping[int, list[Row]]:
    """Return what waits, by line: as many rows as each may be read for."""
    left_out = [(line.line_id, subscription_id) for line in wanted for subscription_id in line.left_out]
    concurrent = [line for line in wanted if line.is_concurrent]
    arguments: dict[str, list[int | None]] = {
        "line_id": [line.line_id for line in wanted],
        "epoch": [line.epoch for line in wanted],
        "head_id": [line.head_id for line in wanted],
        "capacity": [line.rows for line in wanted],
    }
    if concurrent:
        busy = [(line.line_id, one) for line in concurrent for one in line.busy]
        arguments |= {"concurrent": [line.line_id for line in concurrent]}
        arguments |= {"of_busy": [line_id for line_id, _ in busy], "busy": [one for _, one in busy]}
    if left_out:
        arguments |= {"of_line": [one for one, _ in left_out], "left_out": [one for _, one in left_out]}
    by_line: dict[int, list[Row]] = defaultdict(list)
    for columns in rows(pages_statement(leaves_out=bool(left_out), has_concurrent=bool(concurrent)), arguments):
        row = Row(*columns)
        by_line[row.line_id].append(row)
    return by_line


def _buffer_of(
    page: Page[Row],
    contents: Mapping[int, Content],
    destinations: Mapping[int, Destination],
    originals: Mapping[int, Destination],
) -> Buffer[Outgoing]:
    parts: dict[int, list[Outgoing]] = {HEAD: [], FRESH: [], ASIDE: []}
    for row in page.taken:
        # Both are there unless somebody cancelled the delivery and deleted what it needs since its row was read.
        content, of = contents.get(row.message_id), row.subscription_id
        destination = originals.get(row.line_id) if of is None else destinations.get(of)
        if content and destination:
            parts[row.part].append(_outgoing(row, content, destination))
    return Buffer(head=next(iter(parts[HEAD]), None), fresh=parts[FRESH], aside=parts[ASIDE], more=page.more)


def _outgoing(row: Row, content: Content, destination: Destination) -> Outgoing:
    return Outgoing(
        row.id,
        content,
        destination,
        row.attempts,
        row.sequence,
        row.uncertain,
        row.size,
        is_deferred=row.part == ASIDE,
        times_deferred=row.times_deferred,
    )
