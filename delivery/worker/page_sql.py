"""The statements that read pages of deliveries, and undo a mark; `queue` has those of QUEUE groups.

Read them as `settle_sql`: a block between `-- if name` and `-- end` is left out where it is of no use.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

from broker_project.core.db import array
from delivery.dispatch.turn_floors import FLOOR
from delivery.filing import IS_SENT_IN, LIVES, SHORT_LOCK_WAIT
from delivery.limits import MAX_CRASHES, MAX_MARKED_BYTES
from delivery.webhook.content import COLUMNS, FIRST_MESSAGE, MESSAGE
from delivery.worker.buffer import KeyWalk, PageRequest
from delivery.worker.sql_blocks import with_blocks

ROW: Final = (
    "d.id, d.message_id, d.subscription_id, d.attempts, d.sequence, d.uncertain, d.times_deferred, d.size, d.due_at,"
    " COALESCE(d.ordering_key, '') AS ordering_key, d.crash_count"
)
FEW: Final = 8
"""Up to this many messages are looked up one by one, each in its own partition; more are joined."""
_FEW_MESSAGES: Final = FIRST_MESSAGE.format(id="f.message_id")
IS_PLAIN: Final = """(s.script = '' AND s.rate_limit IS NULL AND u.processing = 'SERIAL')"""
"""Whether what is first can be sent as it is read: it needs neither a script nor a slot of its rate."""

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
   WHERE {SHORT_LOCK_WAIT}
-- if settles
     -- the statement before this one, of the same transaction, may have left out what was to end first
     AND l.id <> ALL (ARRAY(
       SELECT d.line_id FROM delivery_open d WHERE d.id = ANY (%(settled)s::bigint[]) AND d.status = 'IN_FLIGHT'))
-- end
     FOR NO KEY UPDATE OF l SKIP LOCKED),
-- end
-- A retry line has nothing that waits for its turn.
active AS MATERIALIZED (
  SELECT w.line_id, w.epoch, w.capacity, l.lane = 'main' AS has_fresh,
         array_agg(s.id ORDER BY s.id) AS subscription_ids, array_agg(s.version + u.version ORDER BY s.id) AS versions,
         array_agg({IS_PLAIN} ORDER BY s.id) AS plain, array_agg({FLOOR.format("s.id")} ORDER BY s.id) AS floors
-- if has_keyed
         , min(u.keyless_until) AS keyless_until
-- end
    FROM wanted w JOIN delivery_line l ON l.id = w.line_id AND l.epoch = w.epoch
    JOIN subscriptions_subscriber u ON u.id = l.subscriber_id AND u.status = 'ACTIVE'
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.kind = 'TOPIC' AND {IS_SENT_IN}
-- if leaves_out
         AND NOT EXISTS (SELECT FROM unnest(%(of_line)s::bigint[], %(left_out)s::bigint[]) AS x (line_id, id)
                          WHERE x.line_id = w.line_id AND x.id = s.id)
-- end
   GROUP BY 1, 2, 3, 4),
-- if has_keyed
-- From one ordering key with something to send to the next, along the index. A walk from the start looks for the empty
-- key beside the others, in any case: what was stored without a key has it too, and is not in this index.
keyed AS MATERIALIZED (
  SELECT a.*, k.per_key, w.key
    FROM unnest(%(keyed)s::bigint[], %(start)s::text[], %(keys)s::int[], %(per_key)s::int[])
           AS k (line_id, start, keys, per_key)
    JOIN active a ON a.line_id = k.line_id
   CROSS JOIN LATERAL (
     WITH RECURSIVE walk AS (
       SELECT CASE k.start WHEN '' THEN 0 ELSE 1 END AS number, CASE k.start WHEN '' THEN '' ELSE (
         SELECT min(n.key) FROM unnest(a.subscription_ids, a.floors) AS s (id, floor) CROSS JOIN LATERAL (
           SELECT d.ordering_key AS key FROM delivery_open d
            WHERE d.subscription_id = s.id AND d.waits_for = 'TURN' AND d.ordering_key >= k.start AND d.id >= s.floor
            ORDER BY d.ordering_key, d.id LIMIT 1) n) END AS key
       UNION ALL
       SELECT w.number + 1, (
         SELECT min(n.key) FROM unnest(a.subscription_ids, a.floors) AS s (id, floor) CROSS JOIN LATERAL (
           SELECT d.ordering_key AS key FROM delivery_open d
            WHERE d.subscription_id = s.id AND d.waits_for = 'TURN' AND d.ordering_key > w.key AND d.id >= s.floor
            ORDER BY d.ordering_key, d.id LIMIT 1) n)
         FROM walk w WHERE w.key IS NOT NULL AND w.number < k.keys)
     SELECT key FROM walk WHERE key IS NOT NULL) w
   WHERE (a.line_id, w.key) NOT IN (
     SELECT * FROM unnest(%(held_keys_of)s::bigint[], %(held_keys)s::text[]) AS h (line_id, key))),
-- end
page AS MATERIALIZED (
-- if has_heads
  SELECT h.line_id, w.epoch, 0 AS part, {ROW}, s.version + u.version AS version, {IS_PLAIN} AS is_plain
    FROM unnest(%(held_by)s::bigint[], %(heads)s::bigint[]) AS h (line_id, id)
    JOIN delivery_open d ON d.id = ANY (ARRAY[h.id]) AND d.status = 'PENDING'
    JOIN wanted w ON w.line_id = h.line_id
    JOIN delivery_line l ON l.id = w.line_id AND l.epoch = w.epoch
    LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
    LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   WHERE d.line_id = h.line_id AND (d.subscription_id IS NULL OR {IS_SENT_IN} AND u.status = 'ACTIVE' AND {LIVES})
  UNION ALL
-- end
  SELECT a.line_id, a.epoch, 1 AS part, d.* FROM active a CROSS JOIN LATERAL (
    SELECT f.*, s.version, s.is_plain
      FROM unnest(a.subscription_ids, a.versions, a.plain, a.floors) AS s (id, version, is_plain, floor)
     CROSS JOIN LATERAL (
      SELECT {ROW} FROM delivery_open d
       WHERE (d.subscription_id, d.id) >= (s.id, s.floor) AND d.subscription_id <= s.id AND d.waits_for = 'TURN'
         AND d.line_id = a.line_id AND d.status = 'PENDING' AND {LIVES}
       ORDER BY d.subscription_id, d.id LIMIT a.capacity) f
     ORDER BY f.id LIMIT a.capacity) d
   WHERE a.has_fresh
-- if has_keyed
     AND a.line_id <> ALL (%(keyed)s::bigint[])
  UNION ALL
  SELECT a.line_id, a.epoch, 1, d.* FROM keyed a CROSS JOIN LATERAL (
    SELECT f.*, s.version, false FROM unnest(a.subscription_ids, a.versions, a.floors) AS s (id, version, floor)
     CROSS JOIN LATERAL (
      (SELECT {ROW} FROM delivery_open d
        WHERE d.subscription_id = s.id AND d.ordering_key = a.key AND d.waits_for = 'TURN' AND d.id >= s.floor
          AND d.line_id = a.line_id AND d.status = 'PENDING' AND {LIVES}
        ORDER BY d.id LIMIT a.per_key)
      UNION ALL
      -- What has no key is older than all that has one: nothing else is passed here.
      (SELECT {ROW} FROM delivery_open d
        WHERE a.key = '' AND (d.subscription_id, d.id) >= (s.id, s.floor)
          AND (d.subscription_id, d.id) <= (s.id, a.keyless_until) AND d.waits_for = 'TURN' AND d.ordering_key IS NULL
          AND d.line_id = a.line_id AND d.status = 'PENDING' AND {LIVES}
        ORDER BY d.subscription_id, d.id LIMIT a.per_key)) f
     ORDER BY f.id LIMIT a.per_key) d
-- end
  UNION ALL
  -- In a retry line the subscriptions with something due take turns, and each claim begins with another one: one that
  -- hangs, and whose turn goes with that, does not keep the others from theirs.
  SELECT a.line_id, a.epoch, 2, {ROW}, d.version, d.is_plain FROM active a CROSS JOIN LATERAL (
    SELECT f.* FROM (
      SELECT f.*, s.version, s.is_plain
-- if takes_turns
             , CASE WHEN NOT a.has_fresh THEN dense_rank() OVER (ORDER BY f.subscription_id) END AS number
-- end
        FROM unnest(a.subscription_ids, a.versions, a.plain) AS s (id, version, is_plain) CROSS JOIN LATERAL (
          SELECT {ROW}
-- if takes_turns
                 , CASE WHEN NOT a.has_fresh THEN row_number() OVER (ORDER BY d.due_at, d.id) END AS round
-- end
            FROM delivery_open d
           WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.due_at <= (SELECT clock_timestamp())
             AND d.status = 'PENDING' AND {LIVES}
-- if has_keyed
             AND (a.line_id, COALESCE(d.ordering_key, '')) NOT IN (
               SELECT * FROM unnest(%(not_deferred_of)s::bigint[], %(not_deferred)s::text[]) AS x (line_id, key))
-- end
           ORDER BY d.due_at, d.id LIMIT a.capacity) f) f
     ORDER BY
-- if takes_turns
       f.round, mod(f.number + a.epoch, max(f.number) OVER ()),
-- end
       f.due_at, f.id LIMIT a.capacity) d),
-- if marks
-- The first of each line, if nothing more is needed to send it than its message.
first AS (
  SELECT DISTINCT ON (p.line_id) p.line_id, p.id, p.message_id, p.size, o.sequence,
         p.is_plain AND p.crash_count < %(max_crashes)s AS is_plain
    FROM page p JOIN owned o ON o.id = p.line_id
   ORDER BY p.line_id, p.part > 0, (p.part = 2) <> o.deferred_next, CASE WHEN p.part > 0 THEN p.due_at END, p.id),
started AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT', sequence = COALESCE(d.sequence, f.sequence)
    FROM first f JOIN LATERAL {_FEW_MESSAGES}
   WHERE f.is_plain AND f.size <= %(most)s
     AND d.id = ANY (ARRAY[f.id]) AND d.line_id = f.line_id AND d.status = 'PENDING'
  RETURNING d.id, d.sequence, {COLUMNS}),
-- end
-- Recovery finds in these notes what may be in flight. Unless something is marked here, they need not be on disk yet:
-- the settle that marks one of these deliveries is written behind the note, and waits.
-- if has_concurrent
-- The turn of a line that sends several at a time may take minutes, since one of them always waits: its old notes are
-- deleted, and what it has taken already is noted again. For a worker that has lost a line nothing is deleted.
concurrent AS MATERIALIZED (
  SELECT l.id, l.epoch FROM wanted w JOIN delivery_line l ON l.id = w.line_id AND l.epoch = w.epoch
   WHERE l.id = ANY (%(concurrent)s::bigint[]) AND l.id IN (SELECT line_id FROM page)
     FOR NO KEY UPDATE OF l SKIP LOCKED),
forgotten AS (
  DELETE FROM delivery_pageread p USING concurrent c WHERE p.line_id = ANY (ARRAY[c.id]) AND p.epoch = c.epoch),
-- end
-- if has_keyed
-- What has a number need not be noted any more: so the line says which was the last.
numbered AS (
  UPDATE delivery_line l SET last_sequence = GREATEST(l.last_sequence, k.last_sequence)
    FROM unnest(%(keyed)s::bigint[], %(last_sequence)s::bigint[]) AS k (line_id, last_sequence)
    JOIN concurrent c ON c.id = k.line_id
   WHERE l.id = c.id AND l.epoch = c.epoch),
-- end
noted AS (
  INSERT INTO delivery_pageread (line_id, epoch, delivery_ids)
  SELECT line_id, epoch, array_agg(id) FROM (
    SELECT line_id, epoch, id FROM page
-- if has_concurrent
    UNION ALL
    SELECT t.line_id, c.epoch, t.id FROM unnest(%(taken_by)s::bigint[], %(taken)s::bigint[]) AS t (line_id, id)
      JOIN concurrent c ON c.id = t.line_id
-- end
    ) i
   GROUP BY line_id, epoch
-- if only_reads
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL
-- end
  )
SELECT p.line_id, p.part, {ROW.replace("d.", "p.")}, p.version
-- if marks
       , s.*
-- end
  FROM (SELECT *, row_number() OVER () AS place FROM page) p  -- a join may change the order
-- if marks
  LEFT JOIN started s ON s.id = p.id
-- end
 ORDER BY p.place
"""
PAGES_MARKING_MANY: Final = PAGES.replace(_FEW_MESSAGES, MESSAGE.format(id="f.message_id"))

UNMARK: Final = """
WITH mine AS MATERIALIZED (
  SELECT l.id, i.last_sequence
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS i (line_id, epoch, last_sequence)
    JOIN delivery_line l ON l.id = i.line_id AND l.epoch = i.epoch
     FOR NO KEY UPDATE OF l SKIP LOCKED),
in_flight AS MATERIALIZED (
  SELECT n.line_id, n.last_sequence, d.id
    FROM (SELECT DISTINCT m.id AS line_id, m.last_sequence, unnest(p.delivery_ids) AS id
            FROM mine m JOIN delivery_pageread p ON p.line_id = ANY (ARRAY[m.id])) n
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open o
      WHERE o.id = n.id AND o.closed_on = '9999-12-31' AND o.line_id = n.line_id AND o.status = 'IN_FLIGHT'
        AND o.fetched_until IS NULL LIMIT 1) d),
free AS MATERIALIZED (
  SELECT id FROM delivery_open
   WHERE id = ANY (ARRAY(SELECT id FROM in_flight)) AND closed_on = '9999-12-31' FOR NO KEY UPDATE SKIP LOCKED),
back AS (
  UPDATE delivery_open d
     SET status = 'PENDING', sequence = CASE WHEN d.sequence <= f.last_sequence THEN d.sequence END
    FROM in_flight f
   WHERE d.id = ANY (ARRAY[f.id]) AND f.id = ANY (ARRAY(SELECT id FROM free)) AND NOT d.cancel_requested
  RETURNING d.id)
SELECT id FROM mine
 WHERE id <> ALL (ARRAY(SELECT line_id FROM in_flight WHERE id <> ALL (ARRAY(SELECT id FROM back))))
"""
"""Lines of one slot, from which nothing has been sent since: what is in flight there was marked and not heard of."""


def statement_of_pages(
    wanted: Sequence[PageRequest], marking: Sequence[PageRequest], settled: Sequence[int] | None
) -> tuple[LiteralString, dict[str, Any]]:
    """Return the statement that reads what waits, and marks the first of the lines `marking`, with its arguments.

    What waits: beyond a line's capacity as many as it has taken already, which may be read again.
    """
    blocks = {
        "only_reads": {} if not marking and settled is None else None,
        "marks": _marks(marking),
        "settles": {"settled": array(settled)} if marking and settled else None,
        "has_concurrent": _concurrent([line for line in wanted if line.is_concurrent]),
        "has_keyed": _keyed({line.line_id: line.walk for line in wanted if line.walk}),
        # only main lines are marked in
        "takes_turns": {} if len(marking) < len(wanted) else None,
        "has_heads": _pairs("held_by", "heads", [(line.line_id, head) for line in wanted for head in line.heads]),
        "leaves_out": _pairs("of_line", "left_out", [(line.line_id, one) for line in wanted for one in line.left_out]),
    }
    needed = {name: arguments for name, arguments in blocks.items() if arguments is not None}
    arguments: dict[str, Any] = {
        "line_id": array(line.line_id for line in wanted),
        "epoch": array(line.epoch for line in wanted),
        "capacity": array(line.capacity + len(line.busy) for line in wanted),
    }
    for more in needed.values():
        arguments |= more
    return with_blocks(PAGES if len(marking) <= FEW else PAGES_MARKING_MANY, frozenset(needed)), arguments


def _marks(marking: Sequence[PageRequest]) -> dict[str, Any] | None:
    """Return the arguments of the block that marks the first delivery of each line, None if none is marked."""
    if not marking:
        return None
    return {
        "marks_in": array(line.line_id for line in marking),
        "mark_epoch": array(line.epoch for line in marking),
        "mark_as": array(line.mark_as for line in marking),
        "deferred_next": array(line.deferred_next for line in marking),
        "most": MAX_MARKED_BYTES,
        "max_crashes": MAX_CRASHES,
    }


def _concurrent(lines: Sequence[PageRequest]) -> dict[str, Any] | None:
    """Return the arguments of the block of lines that send several at a time, None if there are none."""
    if not lines:
        return None
    taken = [(line.line_id, taken_id) for line in lines for taken_id in line.taken]
    return {
        "concurrent": array(line.line_id for line in lines),
        "taken_by": array(line_id for line_id, _ in taken),
        "taken": array(taken_id for _, taken_id in taken),
    }


def _keyed(walks: Mapping[int, KeyWalk]) -> dict[str, Any] | None:
    """Return the arguments of the block of lines that go by ordering keys, None if there are none."""
    if not walks:
        return None
    held = [(line_id, key) for line_id, walk in walks.items() for key in walk.held]
    not_deferred = [(line_id, key) for line_id, walk in walks.items() for key in walk.not_deferred]
    return {
        "keyed": array(walks),
        "start": [walk.start for walk in walks.values()],
        "keys": array(walk.keys for walk in walks.values()),
        "per_key": array(walk.per_key for walk in walks.values()),
        "last_sequence": array(walk.last_sequence for walk in walks.values()),
        "held_keys_of": array(line_id for line_id, _ in held),
        "held_keys": [key for _, key in held],
        "not_deferred_of": array(line_id for line_id, _ in not_deferred),
        "not_deferred": [key for _, key in not_deferred],
    }


def _pairs(line_ids: str, others: str, pairs: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """Return lines, and of each what else is told, under these names, None if there are none."""
    if not pairs:
        return None
    return {line_ids: array(line_id for line_id, _ in pairs), others: array(other for _, other in pairs)}
