"""Floors below which nothing waits for its turn: searches begin there while dead rows pile up (decision 0064).

As long as somebody's snapshot is held, a backup's for example, PostgreSQL keeps the index entries of all that has ended
since, and a search for what is next would walk through them.
"""

from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.limits import SWEEP_SLICE

MANY_DEAD: Final = 100_000
"""Dead rows from which on there are floors; they go when there is half as much. Vacuum begins at 20,000."""
NOTE_SECONDS: Final = 1
"""Between two notes of a floor. A search passes what has died since the last note but two."""

NEWEST: Final = "ORDER BY f.noted_xid DESC LIMIT 1"
"""Of the versions of a floor `f`, of which each note leaves a dead one, an index has the newest first."""
FLOOR: Final = f"COALESCE((SELECT f.floor FROM delivery_turnfloor f WHERE f.subscription_id = {{0}} {NEWEST}), 0)"
"""SQL of the id below which nothing of a subscription waits for its turn; format with its id."""
GROUP_FLOOR: Final = f"COALESCE((SELECT f.floor FROM delivery_turnfloor f WHERE f.line_id = {{0}} {NEWEST}), 0)"
"""The same of the groups of a QUEUE sender; format with the id of its line."""
ARE_THERE: Final = f"((SELECT f.noted_xid FROM delivery_turnfloor f {NEWEST}) IS NOT NULL)"

WAITS: Final = (
    f"""d.waits_for = 'TURN' AND (d.subscription_id, d.id) >= ({{0}}, {FLOOR}) AND d.subscription_id <= {{0}}"""
)
"""SQL that a delivery `d` of a subscription waits for its turn; format with its id.

To be ordered by subscription and id: said so that no index will do but the one that begins with the subscription.
"""
GROUP_WAITS: Final = f"""g.waits_for = 'TURN' AND (g.line_id, g.id) >= ({{0}}, {GROUP_FLOOR}) AND g.line_id <= {{0}}"""
"""The same of a group `g` of a QUEUE sender's line, to be ordered by line and id."""

DEAD: Final = """(SELECT pg_stat_get_dead_tuples('delivery_open'::regclass)
                      + pg_stat_get_dead_tuples('delivery_queuegroup'::regclass))"""
OWN_XID: Final = "pg_current_xact_id()::text::bigint"
LOWEST: Final = f"""COALESCE(
         (SELECT d.id FROM delivery_open d WHERE {WAITS.format("w.subscription_id")}
           ORDER BY d.subscription_id, d.id LIMIT 1),
         (SELECT g.id FROM delivery_queuegroup g WHERE {GROUP_WAITS.format("w.line_id")}
           ORDER BY g.line_id, g.id LIMIT 1),
         (SELECT last_value + 1 FROM delivery_delivery_id_seq))"""
"""The lowest id that waits for its turn, of a subscription or in a sender's line; if none does, the next one."""

ARE_NEEDED: Final = f"({ARE_THERE} OR {DEAD} > {MANY_DEAD})"
ONE_AT_A_TIME: Final = "SELECT pg_try_advisory_xact_lock(hashtext('delivery.turn_floors'))"
NOTE: Final = f"""
WITH owner AS MATERIALIZED (
  SELECT s.id AS subscription_id, NULL::bigint AS line_id, f.* FROM subscriptions_subscription s
    LEFT JOIN LATERAL (
      SELECT f.id, f.noted_xid FROM delivery_turnfloor f WHERE f.subscription_id = s.id {NEWEST}) f ON true
   WHERE s.kind = 'TOPIC' AND {DEAD} > %(few)s::bigint
   UNION ALL
  SELECT NULL, l.id, f.* FROM delivery_line l
    LEFT JOIN LATERAL (SELECT f.id, f.noted_xid FROM delivery_turnfloor f WHERE f.line_id = l.id {NEWEST}) f ON true
   WHERE l.sender >= 0 AND {DEAD} > %(few)s::bigint),
noted AS MATERIALIZED (
  SELECT f.* FROM (SELECT * FROM owner ORDER BY noted_xid) o CROSS JOIN LATERAL (
    SELECT f.ctid AS place, f.* FROM delivery_turnfloor f
     WHERE (f.id, f.noted_xid) >= (o.id, o.noted_xid) AND f.id <= o.id
       AND f.noted_xid <= pg_snapshot_xmin(pg_current_snapshot())::text::bigint
       AND f.noted_at NOT BETWEEN clock_timestamp() - make_interval(secs => {NOTE_SECONDS}) AND clock_timestamp()
     ORDER BY f.id, f.noted_xid LIMIT 1 FOR UPDATE SKIP LOCKED) f
   LIMIT {SWEEP_SLICE}),
raised AS (
  UPDATE delivery_turnfloor f
     SET floor = LEAST(w.older, w.lowest), older = w.newer, newer = w.lowest,
         noted_at = clock_timestamp(), noted_xid = {OWN_XID}
    FROM (SELECT w.*, {LOWEST} AS lowest FROM noted w) w WHERE f.ctid = ANY (ARRAY[w.place])
  RETURNING f.id),
begun AS (
  INSERT INTO delivery_turnfloor (subscription_id, line_id, floor, older, newer, noted_at, noted_xid)
  SELECT w.subscription_id, w.line_id, 0, 0, {LOWEST}, clock_timestamp(), {OWN_XID}
    FROM owner w WHERE w.id IS NULL AND {DEAD} > %(many)s::bigint LIMIT {SWEEP_SLICE}
  RETURNING id),
ended AS (
  DELETE FROM delivery_turnfloor WHERE id = ANY (ARRAY(
    SELECT id FROM delivery_turnfloor WHERE {DEAD} <= %(few)s::bigint FOR UPDATE SKIP LOCKED))
  RETURNING id)
SELECT (SELECT count(*) FROM raised) + (SELECT count(*) FROM begun) + (SELECT count(*) FROM ended)
"""
"""A floor is what was lowest two notes before, if nothing lower waits now.

A delivery with a lower id that could not be seen then has been committed by now: its transaction had an id before the
delivery had one (`next_delivery_id()`), so before the first note, and that of the second note is higher. At the third,
all transactions up to that one are over. If a delivery waits for its turn again later, in its old place, a trigger
lowers the floor. A note waits for none that is being lowered: who lowers several has them in another order.
"""


def note_floors(many_dead: int = MANY_DEAD) -> int:
    """Note a slice of the floors whose time has come; return how many. None are left without many dead rows."""
    with transaction.atomic():
        if not rows(ONE_AT_A_TIME)[0][0]:
            return 0
        ((noted,),) = rows(NOTE, {"many": many_dead, "few": many_dead // 2})
        return int(noted)
