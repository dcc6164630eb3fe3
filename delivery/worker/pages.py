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
from typing import Any, Final, Generic, LiteralString, NamedTuple, TypeVar

from broker_project.core.db import array, rows, with_blocks
from delivery.callbacks.address import original_addresses
from delivery.limits import MAX_LINE_BYTES, MAX_MARKED_BYTES, MAX_PAGE_DELIVERIES
from delivery.webhook.content import COLUMNS, MESSAGE, content_with, contents_of
from delivery.webhook.destination import destinations_of
from delivery.webhook.parts import Content, Destination, Outgoing
from delivery.worker.buffer import BodyBudget, Buffer, Work

ROW: Final = (
    "d.id, d.message_id, d.subscription_id, d.attempts, d.sequence, d.uncertain, d.times_deferred, d.size, d.due_at,"
    " d.ordering_key"
)
IS_PLAIN: Final = """(s.script = '' AND s.rate_limit IS NULL AND u.processing = 'SERIAL')"""
"""Whether what is first can be sent as it is read: it needs neither a script nor a slot of its rate."""
LIVES: Final = "(d.expires_at IS NULL OR d.expires_at > (SELECT clock_timestamp()))"

HEAD: Final = 0
"""A held delivery that is due."""
FRESH: Final = 1
DEFERRED: Final = 2
AFTER: Final = "\x01"
"""Appended to an ordering key, it sorts before everything that comes after that key."""

PAGES: Final = f"""
WITH wanted AS (
  SELECT * FROM unnest(%(line_id)s::bigint[], %(epoch)s::bigint[], %(capacity)s::int[])
           AS w (line_id, epoch, capacity)),
-- if marks
-- Lines that are still ours, with the number that comes next.
owned AS MATERIALIZED (
  SELECT l.id, m.sequence, m.deferred_next
    FROM unnest(%(marks_in)s::bigint[], %(mark_epoch)s::bigint[], %(mark_as)s::bigint[], %(deferred_next)s::bool[])
           AS m (line_id, epoch, sequence, deferred_next)
    JOIN delivery_line l ON l.id = m.line_id AND l.epoch = m.epoch
     FOR NO KEY UPDATE OF l SKIP LOCKED),
-- end
-- A retry line has nothing that was never tried, and nothing of a half-open subscription, which is the main line's.
active AS MATERIALIZED (
  SELECT w.line_id, w.epoch, w.capacity, l.lane = 'main' AS has_fresh,
         array_agg(s.id ORDER BY s.id) AS subscription_ids, array_agg(s.version + u.version ORDER BY s.id) AS versions,
         array_agg({IS_PLAIN} ORDER BY s.id) AS plain
    FROM wanted w JOIN delivery_line l ON l.id = w.line_id
    JOIN subscriptions_subscriber u ON u.id = l.subscriber_id AND u.status = 'ACTIVE'
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.is_sending AND s.kind = 'TOPIC'
         AND (l.lane = 'main' OR NOT s.half_open)
-- if leaves_out
         AND NOT EXISTS (SELECT FROM unnest(%(of_line)s::bigint[], %(left_out)s::bigint[]) AS x (line_id, id)
                          WHERE x.line_id = w.line_id AND x.id = s.id)
-- end
   GROUP BY 1, 2, 3, 4),
-- if has_keyed
-- From one ordering key with something to send to the next, along the index.
keyed AS MATERIALIZED (
  SELECT a.*, k.per_key, w.key
    FROM unnest(%(keyed)s::bigint[], %(start)s::text[], %(keys)s::int[], %(per_key)s::int[])
           AS k (line_id, start, keys, per_key)
    JOIN active a ON a.line_id = k.line_id
   CROSS JOIN LATERAL (
     WITH RECURSIVE walk AS (
       SELECT 1 AS number, (
         SELECT min(n.key) FROM unnest(a.subscription_ids) AS s (id) CROSS JOIN LATERAL (
           SELECT d.ordering_key AS key FROM delivery_open d
            WHERE d.subscription_id = s.id AND d.waits_for = 'TURN' AND d.ordering_key >= k.start
            ORDER BY d.ordering_key, d.id LIMIT 1) n) AS key
       UNION ALL
       SELECT w.number + 1, (
         SELECT min(n.key) FROM unnest(a.subscription_ids) AS s (id) CROSS JOIN LATERAL (
           SELECT d.ordering_key AS key FROM delivery_open d
            WHERE d.subscription_id = s.id AND d.waits_for = 'TURN' AND d.ordering_key > w.key
            ORDER BY d.ordering_key, d.id LIMIT 1) n)
         FROM walk w WHERE w.key IS NOT NULL AND w.number < k.keys)
     SELECT key FROM walk WHERE key IS NOT NULL) w
   WHERE (a.line_id, w.key) NOT IN (
     SELECT * FROM unnest(%(held_keys_of)s::bigint[], %(held_keys)s::text[]) AS h (line_id, key))),
-- end
page AS MATERIALIZED (
-- if has_heads
  SELECT h.line_id, 0 AS part, {ROW}, s.version + u.version AS version, {IS_PLAIN} AS is_plain
    FROM unnest(%(held_by)s::bigint[], %(heads)s::bigint[]) AS h (line_id, id)
    JOIN delivery_open d ON d.id = h.id AND d.closed_on = '9999-12-31' AND d.status = 'PENDING'
    LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
    LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   WHERE d.line_id = h.line_id AND (d.subscription_id IS NULL OR s.is_sending AND u.status = 'ACTIVE') AND {LIVES}
  UNION ALL
-- end
  SELECT a.line_id, 1 AS part, d.* FROM active a CROSS JOIN LATERAL (
    SELECT f.*, s.version, s.is_plain
      FROM unnest(a.subscription_ids, a.versions, a.plain) AS s (id, version, is_plain) CROSS JOIN LATERAL (
      SELECT {ROW} FROM delivery_open d
       WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.waits_for = 'TURN' AND d.status = 'PENDING'
         AND {LIVES}
       ORDER BY d.id LIMIT a.capacity) f
     ORDER BY f.id LIMIT a.capacity) d
   WHERE a.has_fresh
-- if has_keyed
     AND a.line_id <> ALL (%(keyed)s::bigint[])
  UNION ALL
  SELECT a.line_id, 1, d.* FROM keyed a CROSS JOIN LATERAL (
    SELECT f.*, s.version, false FROM unnest(a.subscription_ids, a.versions) AS s (id, version) CROSS JOIN LATERAL (
      SELECT {ROW} FROM delivery_open d
       WHERE d.subscription_id = s.id AND d.ordering_key = a.key AND d.waits_for = 'TURN' AND d.line_id = a.line_id
         AND d.status = 'PENDING' AND {LIVES}
       ORDER BY d.id LIMIT a.per_key) f
     ORDER BY f.id LIMIT a.per_key) d
-- end
  UNION ALL
  -- In a retry line the subscriptions with something due take turns, and each claim begins with another one: one that
  -- hangs, and whose turn goes with that, does not keep the others from theirs.
  SELECT a.line_id, 2, {ROW}, d.version, d.is_plain FROM active a CROSS JOIN LATERAL (
    SELECT f.* FROM (
      SELECT f.*, s.version, s.is_plain,
             CASE WHEN NOT a.has_fresh THEN dense_rank() OVER (ORDER BY f.subscription_id) END AS number
        FROM unnest(a.subscription_ids, a.versions, a.plain) AS s (id, version, is_plain) CROSS JOIN LATERAL (
          SELECT {ROW}, CASE WHEN NOT a.has_fresh THEN row_number() OVER (ORDER BY d.due_at, d.id) END AS round
            FROM delivery_open d
           WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.due_at <= (SELECT clock_timestamp())
             AND d.status = 'PENDING' AND {LIVES}
           ORDER BY d.due_at, d.id LIMIT a.capacity) f) f
     ORDER BY f.round, mod(f.number + a.epoch, max(f.number) OVER ()), f.due_at, f.id LIMIT a.capacity) d),
-- if marks
-- The first of each line, if nothing more is needed to send it than its message.
first AS (
  SELECT DISTINCT ON (p.line_id) p.line_id, p.id, p.size, p.is_plain, o.sequence
    FROM page p JOIN owned o ON o.id = p.line_id
   ORDER BY p.line_id, p.part > 0, (p.part = 2) <> o.deferred_next, CASE WHEN p.part > 0 THEN p.due_at END, p.id),
started AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT', sequence = COALESCE(d.sequence, f.sequence)
    FROM first f
   WHERE f.is_plain AND f.size <= %(most)s
     AND d.closed_on = '9999-12-31' AND d.id = f.id AND d.line_id = f.line_id AND d.status = 'PENDING'
  RETURNING d.id, d.sequence, d.message_id),
-- end
-- Recovery finds in these notes what may be in flight. Unless something is marked here, they need not be on disk yet:
-- the settle that marks one of these deliveries is written behind the note, and waits.
-- unless has_concurrent
noted AS (
  INSERT INTO delivery_pageread (line_id, delivery_ids)
  SELECT line_id, array_agg(id) FROM page GROUP BY line_id
-- unless marks
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL
-- end
  )
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
-- unless marks
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL
-- end
  )
-- end
SELECT p.line_id, p.part, {ROW.replace("d.", "p.")}, p.version
-- if marks
       , s.sequence, {COLUMNS}
-- end
-- unless marks
  FROM page p
-- end
-- if marks
  FROM (SELECT *, row_number() OVER () AS place FROM page) p  -- a join may change the order
  LEFT JOIN (started s JOIN LATERAL {MESSAGE.format(id="s.message_id")}) ON s.id = p.id
 ORDER BY p.place
-- end
"""


UNMARK: Final = """
WITH mine AS MATERIALIZED (
  SELECT l.id, i.last_sequence
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS i (line_id, epoch, last_sequence)
    JOIN delivery_line l ON l.id = i.line_id AND l.epoch = i.epoch
     FOR NO KEY UPDATE OF l SKIP LOCKED),
in_flight AS MATERIALIZED (
  SELECT n.line_id, n.last_sequence, d.id, d.cancel_requested
    FROM (SELECT DISTINCT m.id AS line_id, m.last_sequence, unnest(p.delivery_ids) AS id
            FROM mine m JOIN delivery_pageread p ON p.line_id = m.id) n
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open o
      WHERE o.id = n.id AND o.closed_on = '9999-12-31' AND o.line_id = n.line_id AND o.status = 'IN_FLIGHT'
        AND o.fetched_until IS NULL LIMIT 1) d),
back AS (
  UPDATE delivery_open d
     SET status = 'PENDING', sequence = CASE WHEN d.sequence <= f.last_sequence THEN d.sequence END
    FROM in_flight f WHERE d.id = f.id AND d.closed_on = '9999-12-31' AND NOT d.cancel_requested
  RETURNING d.id)
SELECT id FROM mine
 WHERE id <> ALL (ARRAY(SELECT line_id FROM in_flight WHERE id <> ALL (ARRAY(SELECT id FROM back))))
"""
"""Lines of one slot, from which nothing has been sent since: what is in flight there was marked and not heard of."""


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


def read_pages(wanted: Sequence[PageRequest], budget: BodyBudget) -> dict[int, Buffer[Outgoing]]:
    """Return a buffer for every line: at most its capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Takes each buffer's bytes from `budget`; when a delivery is dropped, its bytes are given back. A buffer is `starved`
    if there is work but the process holds too many bodies already: then nothing is marked either. A line is missing if
    the configuration of what was marked has changed since: that has to be undone.
    """
    marking = {line.line_id for line in wanted if line.mark_as is not None}
    reserved = len(marking) * MAX_MARKED_BYTES
    if not budget.take(reserved):
        marking, reserved = set(), 0
    marked: Mapping[int, Marked] = {}
    try:
        by_line, marked = _waiting(wanted, marking)
    finally:
        budget.give_back(reserved - sum(first.size for first in marked.values()))
    pages = {line.line_id: page_of(by_line.get(line.line_id, []), line, budget, paid_for=marked) for line in wanted}
    buffers: dict[int, Buffer[Outgoing]] = {}
    with charged(budget, pages, buffers) as taken:
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
    for line in wanted:
        if line.walk:
            buffers[line.line_id].next_key = _next_key(line, pages[line.line_id])
        if line.heads and line.line_id in buffers:
            found = {row.id for row in by_line.get(line.line_id, ()) if row.part == HEAD}
            buffers[line.line_id].gone = [one for one in line.heads if one not in found]
    return buffers


def _waiting(
    wanted: Sequence[PageRequest], marking: Collection[int]
) -> tuple[Mapping[int, list[Row]], Mapping[int, Marked]]:
    """Return what waits, by line, and what of it was marked in the lines `marking`, by id.

    What waits: beyond a line's capacity as many as it has taken already, which may be read again.
    """
    left_out = [(line.line_id, subscription_id) for line in wanted for subscription_id in line.left_out]
    concurrent = [line for line in wanted if line.is_concurrent]
    arguments: dict[str, Any] = {
        "line_id": array(line.line_id for line in wanted),
        "epoch": array(line.epoch for line in wanted),
        "capacity": array(line.capacity + len(line.busy) for line in wanted),
    }
    blocks = set()
    if marking:
        blocks.add("marks")
        lines = [line for line in wanted if line.line_id in marking]
        arguments |= {
            "marks_in": array(line.line_id for line in lines),
            "mark_epoch": array(line.epoch for line in lines),
            "mark_as": array(line.mark_as for line in lines),
            "deferred_next": array(line.deferred_next for line in lines),
            "most": MAX_MARKED_BYTES,
        }
    if concurrent:
        blocks.add("has_concurrent")
        busy = [(line.line_id, taken_id) for line in concurrent for taken_id in line.busy]
        arguments |= {
            "concurrent": array(line.line_id for line in concurrent),
            "of_busy": array(line_id for line_id, _ in busy),
            "busy": array(taken_id for _, taken_id in busy),
        }
    if keyed := [(line.line_id, line.walk) for line in wanted if line.walk]:
        blocks.add("has_keyed")
        held = [(line_id, key) for line_id, walk in keyed for key in walk.held]
        arguments |= {
            "keyed": array(line_id for line_id, _ in keyed),
            "start": [walk.start for _, walk in keyed],
            "keys": array(walk.keys for _, walk in keyed),
            "per_key": array(walk.per_key for _, walk in keyed),
            "held_keys_of": array(line_id for line_id, _ in held),
            "held_keys": [key for _, key in held],
        }
    if heads := [(line.line_id, head) for line in wanted for head in line.heads]:
        blocks.add("has_heads")
        arguments |= {"held_by": array(line_id for line_id, _ in heads), "heads": array(head for _, head in heads)}
    if left_out:
        blocks.add("leaves_out")
        arguments |= {
            "of_line": array(line_id for line_id, _ in left_out),
            "left_out": array(subscription_id for _, subscription_id in left_out),
        }
    by_line: dict[int, list[Row]] = defaultdict(list)
    marked: dict[int, Marked] = {}
    for columns in rows(pages_statement(frozenset(blocks)), arguments):
        row = Row._make(columns[:ROW_WIDTH])
        by_line[row.line_id].append(row)
        if marking and (sequence := columns[ROW_WIDTH]) is not None:
            marked[row.id] = Marked(row.size, sequence, content_with(columns[ROW_WIDTH + 1 :]))
    return by_line, marked


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
