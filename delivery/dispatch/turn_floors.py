"""Floors below which nothing waits for its turn: searches begin there while dead rows pile up (decision 0064).

As long as somebody's snapshot is held, a backup's for example, PostgreSQL keeps the index entries of all that has ended
since, and a search for what is next would walk through them.
"""

from typing import Final

from broker_project.core.db import rows
from delivery.limits import SWEEP_SLICE

MANY_DEAD: Final = 100_000
"""Dead rows from which on there are floors; they go when there is half as much. Vacuum begins at 20,000."""
NOTE_SECONDS: Final = 10
"""Between two notes of a floor: by the second, what had an id at the first has a transaction id, if it is not over. A
row is inserted as soon as its id is drawn, or those of its statement are."""

FLOOR: Final = "COALESCE((SELECT f.floor FROM delivery_turnfloor f WHERE f.subscription_id = {}), 0)"
"""SQL of the id below which nothing of a subscription waits for its turn; format with its id."""
GROUP_FLOOR: Final = "COALESCE((SELECT f.floor FROM delivery_turnfloor f WHERE f.line_id = {}), 0)"
"""The same of the groups of a QUEUE sender; format with the id of its line."""
ARE_THERE: Final = "(SELECT EXISTS (SELECT FROM delivery_turnfloor))"

DEAD: Final = """(SELECT pg_stat_get_dead_tuples('delivery_open'::regclass)
                      + pg_stat_get_dead_tuples('delivery_queuegroup'::regclass))"""
OWN_XID: Final = "pg_current_xact_id()::text::bigint"
LOWEST: Final = """COALESCE(
         (SELECT d.id FROM delivery_open d
           WHERE d.subscription_id = w.subscription_id AND d.waits_for = 'TURN' AND d.id >= w.floor
           ORDER BY d.id LIMIT 1),
         (SELECT g.id FROM delivery_queuegroup g
           WHERE g.line_id = w.line_id AND g.waits_for = 'TURN' AND g.id >= w.floor ORDER BY g.id LIMIT 1),
         (SELECT last_value + 1 FROM delivery_delivery_id_seq))"""
"""The lowest id that waits for its turn, of a subscription or in a sender's line; if none does, the next one."""

NOTE: Final = f"""
WITH noted AS MATERIALIZED (
  SELECT * FROM delivery_turnfloor
   WHERE {DEAD} > %(few)s::bigint AND noted_xid <= pg_snapshot_xmin(pg_current_snapshot())::text::bigint
     AND noted_at NOT BETWEEN clock_timestamp() - make_interval(secs => {NOTE_SECONDS}) AND clock_timestamp()
   ORDER BY id LIMIT {SWEEP_SLICE} FOR UPDATE SKIP LOCKED),
raised AS (
  UPDATE delivery_turnfloor f
     SET floor = LEAST(w.older, w.lowest), older = w.newer, newer = w.lowest,
         noted_at = clock_timestamp(), noted_xid = {OWN_XID}
    FROM (SELECT w.*, {LOWEST} AS lowest FROM noted w) w WHERE f.id = w.id
  RETURNING f.id),
begun AS (
  INSERT INTO delivery_turnfloor (subscription_id, line_id, floor, older, newer, noted_at, noted_xid)
  SELECT w.subscription_id, w.line_id, 0, 0, {LOWEST}, clock_timestamp(), {OWN_XID}
    FROM (SELECT s.id AS subscription_id, NULL::bigint AS line_id, 0 AS floor
            FROM subscriptions_subscription s
           WHERE s.kind = 'TOPIC' AND (SELECT f.id FROM delivery_turnfloor f WHERE f.subscription_id = s.id) IS NULL
          UNION ALL
          SELECT NULL, l.id, 0 FROM delivery_line l
           WHERE l.sender IS NOT NULL AND (SELECT f.id FROM delivery_turnfloor f WHERE f.line_id = l.id) IS NULL) w
   WHERE {DEAD} > %(many)s::bigint
   LIMIT {SWEEP_SLICE}
  ON CONFLICT DO NOTHING
  RETURNING id),
ended AS (
  DELETE FROM delivery_turnfloor WHERE {DEAD} <= %(few)s::bigint RETURNING id)
SELECT (SELECT count(*) FROM raised) + (SELECT count(*) FROM begun) + (SELECT count(*) FROM ended)
"""
"""A floor is what was lowest two notes before, if nothing lower waits now.

A delivery with a lower id that could not be seen then has been committed by now. It had its id before the first note,
and its transaction id before the second. At the third, all transactions up to that one are over. If a delivery waits
for its turn again later, in its old place, a trigger lowers the floor.
"""


def note_floors(many_dead: int = MANY_DEAD) -> int:
    """Note a slice of the floors whose time has come; return how many. None are left without many dead rows."""
    ((noted,),) = rows(NOTE, {"many": many_dead, "few": many_dead // 2})
    return int(noted)
