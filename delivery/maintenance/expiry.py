"""End what is over: expired deliveries and replies, old callbacks (contract 2.10, 6.8)."""

from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.believed_clock import BELIEVED_CLOCK
from delivery.filing import END_GROUPS, end_deliveries

EXPIRES: Final = "GREATEST(expires_at, fetched_until)"
"""A fetched delivery does not expire before it times out; an index has the same expression."""

SLICE: Final = 1_000
"""Rows changed in one statement: none is locked for long."""

IS_OVERDUE: Final = f"""
  expires_at IS NOT NULL AND {EXPIRES} <= (SELECT {{}})
  AND (status IN ('PENDING', 'HELD') OR fetched_until IS NOT NULL)"""
"""Whether a delivery expires; format with the time."""
ARE_OVERDUE: Final = f"""
  (SELECT id FROM delivery_open WHERE {IS_OVERDUE.format("clock_timestamp()")} ORDER BY {EXPIRES} LIMIT 1)
    IS NOT NULL"""

EXPIRE_OVERDUE: Final = f"""
WITH overdue AS MATERIALIZED (
  SELECT id, line_id, group_id FROM delivery_open WHERE {IS_OVERDUE.format("%(now)s::timestamptz")}
   ORDER BY {EXPIRES} LIMIT {SLICE}),
lines AS MATERIALIZED (
  SELECT l.id FROM (SELECT DISTINCT line_id FROM overdue ORDER BY line_id) o
   CROSS JOIN LATERAL (SELECT id FROM delivery_line WHERE id = o.line_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) l),
groups AS MATERIALIZED (
  SELECT g.id, g.delivery_ids
    FROM (SELECT DISTINCT o.group_id FROM overdue o JOIN lines l ON l.id = o.line_id
           WHERE o.group_id IS NOT NULL ORDER BY o.group_id) o
   CROSS JOIN LATERAL (SELECT * FROM delivery_queuegroup WHERE id = o.group_id LIMIT 1 FOR UPDATE SKIP LOCKED) g),
locked AS MATERIALIZED (
  SELECT d.id
    FROM (SELECT o.id, o.line_id FROM overdue o JOIN lines l ON l.id = o.line_id
           WHERE (SELECT count(*) FROM groups) >= 0 AND (o.group_id IS NULL OR o.group_id IN (SELECT id FROM groups))
           ORDER BY o.id) t
   CROSS JOIN LATERAL (
     SELECT o.id FROM delivery_open o
      WHERE o.id = t.id AND o.closed_on = '9999-12-31' AND o.line_id = t.line_id
        AND (o.status IN ('PENDING', 'HELD') OR o.fetched_until <= %(now)s)
      LIMIT 1 FOR UPDATE SKIP LOCKED) d),{
    end_deliveries(
        "SELECT id FROM locked",
        note="'expired; it may never have been sent'",
        status="'EXPIRED'",
        reason="concat_ws(': ', CASE WHEN d.subscription_id IS NULL THEN 'not taken in time' ELSE 'expired' END,"
        " NULLIF(d.reason, ''))",
    )
},
let_pass AS (
  DELETE FROM delivery_hold h USING gone g
   WHERE g.subscription_id IS NULL AND h.delivery_id = ANY (ARRAY[g.id])),{END_GROUPS}
SELECT count(*) FROM gone
"""
"""Lock lines, then groups, then deliveries, as a cancel does. Pushed deliveries in flight are left to their answer, and
fetched ones to their receipt or time-out. The line of a reply has nothing left to hold.

Locked lines, groups and deliveries are left to the next run: waiting for one would keep the lines of all locked.
"""


def expire_overdue() -> int:
    """End a slice of expired deliveries that are not in flight as EXPIRED; return their number."""
    ((expired,),) = rows(EXPIRE_OVERDUE, {"now": BELIEVED_CLOCK.now()})
    return int(expired)


ENDED_LINES: Final = f"""
SELECT l.id FROM delivery_line l
 WHERE l.id > %s AND l.lane = 'callback' AND l.lease_until IS NULL
   AND NOT EXISTS (SELECT FROM delivery_hold h WHERE h.line_id = l.id)
 ORDER BY l.id LIMIT {SLICE} FOR UPDATE SKIP LOCKED
"""
LET_GO: Final = """
WITH ended AS MATERIALIZED (
  SELECT l.id FROM unnest(%s::bigint[]) AS l (id)
   WHERE NOT EXISTS (SELECT FROM delivery_hold h WHERE h.line_id = l.id)),
forgotten AS (DELETE FROM delivery_pageread p USING ended WHERE p.line_id = ANY (ARRAY[ended.id])),
untold AS (DELETE FROM delivery_lineevent e USING ended WHERE e.line_id = ended.id)
DELETE FROM delivery_line l USING ended WHERE l.id = ended.id RETURNING l.id
"""
"""A second look, with the lines locked: one whose reply was resubmitted before that has a hold again."""

START: Final = f"""
WITH ended AS MATERIALIZED (
  SELECT c.id, c.group_id FROM delivery_callback c
   WHERE c.expires_at IS NULL AND c.id > %(after)s
     AND NOT EXISTS (SELECT FROM delivery_queuegroup g WHERE g.id = c.group_id)
   ORDER BY c.expires_at, c.id LIMIT {SLICE})
UPDATE delivery_callback c SET expires_at = %(now)s::timestamptz + make_interval(days => %(days)s::int)
  FROM ended e WHERE c.id = e.id AND c.group_id = e.group_id AND c.expires_at IS NULL
RETURNING c.id
"""
"""While its group is open, an endpoint may still be given its address. A resubmit makes it that of another group.

In the order of the index, whose other entries are not read.
"""

FORGET: Final = f"""
DELETE FROM delivery_callback WHERE id = ANY (ARRAY(
  SELECT c.id FROM delivery_callback c
   WHERE c.expires_at <= %s::timestamptz - make_interval(days => %s::int)
     AND NOT EXISTS (SELECT FROM delivery_line l WHERE l.callback_id = c.id)
     AND NOT EXISTS (SELECT FROM delivery_callback o WHERE o.parent_id = c.id)
     AND NOT EXISTS (SELECT FROM delivery_queuegroup g WHERE g.id = c.group_id)
   ORDER BY c.expires_at LIMIT {SLICE} FOR UPDATE OF c SKIP LOCKED))
RETURNING id
"""
"""The last of a chain first. Others may outlive the callback that they lead to. What is being resubmitted is locked.

A group may still be open although an endpoint has replied: each of its requests has the address.
"""


def remove_ended_lines() -> int:
    """Delete the lines of replies that have ended; return their number."""
    removed, last = 0, 0
    while True:
        with transaction.atomic():
            ended = [line_id for (line_id,) in rows(ENDED_LINES, [last])]
            if not ended:
                return removed
            removed, last = removed + len(rows(LET_GO, [ended])), max(ended)


def start_reply_times(*, days: int) -> int:
    """Give callbacks whose group has ended `days` from now for a reply; return their number."""
    started, last = 0, 0
    while found := rows(START, {"after": last, "now": BELIEVED_CLOCK.now(), "days": days}):
        started, last = started + len(found), max(callback_id for (callback_id,) in found)
    return started


def forget_callbacks(*, keep_days: int) -> int:
    """Delete callbacks that ended `keep_days` ago; return their number."""
    return sum(iter(lambda: len(rows(FORGET, [BELIEVED_CLOCK.now(), keep_days])), 0))
