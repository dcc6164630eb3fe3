"""Read pages: which deliveries a line may send next, oldest first (contract 4.2, 4.6, 5.3)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, zip_longest
from typing import Any, Final, Generic, LiteralString, NamedTuple, TypeVar

from broker_project.core.db import rows, with_blocks
from delivery.callbacks.address import original_addresses
from delivery.limits import MAX_LINE_BYTES, MAX_PAGE_DELIVERIES
from delivery.webhook.content import contents_of
from delivery.webhook.destination import destinations_of
from delivery.webhook.parts import Content, Destination, Outgoing
from delivery.worker.buffer import BodyBudget, Buffer, Work

ROW: Final = "d.id, d.message_id, d.subscription_id, d.attempts, d.sequence, d.uncertain, d.times_deferred, d.size"
LIVES: Final = "(d.expires_at IS NULL OR d.expires_at > (SELECT clock_timestamp()))"

HEAD: Final = 0
FRESH: Final = 1
DEFERRED: Final = 2

PAGES: Final = f"""
WITH wanted AS (
  SELECT * FROM unnest(%(line_id)s::bigint[], %(epoch)s::bigint[], %(head_id)s::bigint[], %(capacity)s::int[])
           AS w (line_id, epoch, head_id, capacity)),
-- A retry line has nothing that was never tried, and nothing of a half-open subscription, which is the main line's.
active AS MATERIALIZED (
  SELECT w.line_id, w.epoch, w.capacity, l.lane = 'main' AS has_fresh, array_agg(s.id ORDER BY s.id) AS subscription_ids
    FROM wanted w JOIN delivery_line l ON l.id = w.line_id
    JOIN subscriptions_subscriber u ON u.id = l.subscriber_id AND u.status = 'ACTIVE'
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.is_sending AND s.kind = 'TOPIC'
         AND (l.lane = 'main' OR NOT s.half_open)
-- if leaves_out
         AND NOT EXISTS (SELECT FROM unnest(%(of_line)s::bigint[], %(left_out)s::bigint[]) AS x (line_id, id)
                          WHERE x.line_id = w.line_id AND x.id = s.id)
-- end
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
       WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.waits_for = 'TURN' AND d.status = 'PENDING'
         AND {LIVES}
       ORDER BY d.id LIMIT a.capacity) f
     ORDER BY f.id LIMIT a.capacity) d
   WHERE a.has_fresh
  UNION ALL
  -- In a retry line the subscriptions with something due take turns, and each claim begins with another one: one that
  -- hangs, and whose turn goes with that, does not keep the others from theirs.
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
-- Recovery finds in these notes what may be in flight. They need not be on disk yet: the settle that marks one of these
-- deliveries is written behind the note, and waits.
-- unless has_concurrent
noted AS (
  INSERT INTO delivery_pageread (line_id, delivery_ids)
  SELECT line_id, array_agg(id) FROM page GROUP BY line_id
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL)
-- end
-- if has_concurrent
-- A line that sends several at a time may never end its turn, since one of them always waits: so its old notes are
-- deleted, and what it has taken already is noted again. For a worker that has lost a line nothing is deleted.
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
-- end
SELECT * FROM page
"""


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


One = TypeVar("One", Row, GroupRow)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What to read for one line: at most `capacity` deliveries, `head_id` first if it still may be sent."""

    line_id: int
    epoch: int
    head_id: int | None
    capacity: int
    deferred_next: bool = False
    """Whether it is the turn of the deferred ones."""
    busy: Sequence[int] = ()
    """The deliveries, or QUEUE groups, that it has taken already."""
    left_out: Sequence[int] = ()
    """Subscriptions of which nothing is read."""
    is_concurrent: bool = False
    """Whether it sends several at a time."""
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


def page_of(waiting: Sequence[One], line: PageRequest, budget: BodyBudget) -> Page[One]:
    """Take from the front what fits: the line's capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Of groups as many as have 500 deliveries together (but always one).
    """
    busy = {*line.busy}
    taken: list[One] = []
    held = deliveries = 0
    for row in islice(_in_order(waiting, line, busy), line.capacity):
        is_full = held + row.size > MAX_LINE_BYTES or deliveries + row.deliveries > MAX_PAGE_DELIVERIES
        if (taken and is_full) or not budget.take(row.size):
            return Page(taken, more=True)
        taken.append(row)
        held += row.size
        deliveries += row.deliveries
    return Page(taken, more=sum(row.id not in busy for row in waiting) >= line.capacity)


def _in_order(waiting: Sequence[One], line: PageRequest, busy: set[int]) -> Iterator[One]:
    """Yield the head, then new and deferred ones in turn: however short a page is cut, neither kind starves."""
    head = [row for row in waiting if row.part == HEAD and row.id not in busy]
    first_or_busy = busy | {row.id for row in head}
    fresh = [row for row in waiting if row.part == FRESH and row.id not in first_or_busy]
    deferred = [row for row in waiting if row.part == DEFERRED and row.id not in first_or_busy]
    yield from head
    first, second = (deferred, fresh) if line.deferred_next else (fresh, deferred)
    for pair in zip_longest(first, second):
        yield from (row for row in pair if row)


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


def read_pages(wanted: Sequence[PageRequest], budget: BodyBudget) -> dict[int, Buffer[Outgoing]]:
    """Return a buffer for every line: at most its capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Takes each buffer's bytes from `budget`; when a delivery is dropped, its bytes are given back. A buffer is `starved`
    if there is work but the process holds too many bodies already.
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
    """Return what waits, by line: beyond its capacity as many as it has taken already, which may be read again."""
    left_out = [(line.line_id, subscription_id) for line in wanted for subscription_id in line.left_out]
    concurrent = [line for line in wanted if line.is_concurrent]
    arguments: dict[str, Sequence[Any]] = {
        "line_id": [line.line_id for line in wanted],
        "epoch": [line.epoch for line in wanted],
        "head_id": [line.head_id for line in wanted],
        "capacity": [line.capacity + len(line.busy) for line in wanted],
    }
    blocks = set()
    if concurrent:
        blocks.add("has_concurrent")
        busy = [(line.line_id, taken_id) for line in concurrent for taken_id in line.busy]
        arguments["concurrent"] = [line.line_id for line in concurrent]
        arguments["of_busy"] = [line_id for line_id, _ in busy]
        arguments["busy"] = [taken_id for _, taken_id in busy]
    if left_out:
        blocks.add("leaves_out")
        arguments["of_line"] = [line_id for line_id, _ in left_out]
        arguments["left_out"] = [subscription_id for _, subscription_id in left_out]
    by_line: dict[int, list[Row]] = defaultdict(list)
    for row in map(Row._make, rows(pages_statement(frozenset(blocks)), arguments)):
        by_line[row.line_id].append(row)
    return by_line


def _buffer_of(
    page: Page[Row],
    contents: Mapping[int, Content],
    destinations: Mapping[int, Destination],
    originals: Mapping[int, Destination],
) -> Buffer[Outgoing]:
    parts: dict[int, list[Outgoing]] = {HEAD: [], FRESH: [], DEFERRED: []}
    for row in page.taken:
        # Both are there unless somebody cancelled the delivery and deleted what it needs since its row was read.
        content, of = contents.get(row.message_id), row.subscription_id
        destination = originals.get(row.line_id) if of is None else destinations.get(of)
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
            )
            parts[row.part].append(delivery)
    return Buffer(head=next(iter(parts[HEAD]), None), fresh=parts[FRESH], deferred=parts[DEFERRED], more=page.more)
