"""The statements that cancel what a subscription has unfinished, a slice of it at a time (behaviour 1.8, 9.7).

**Whoever waits for rows of the open shelf locks them in order of id**, each by itself (`CROSS JOIN LATERAL (… LIMIT 1
FOR UPDATE)` over sorted ids), and only then changes them, by what the locked row says. So two that want the same rows
wait for each other and never in a ring. Whoever does not wait (`SKIP LOCKED`) may take them as they come. Lines are
locked before groups, and groups before deliveries, each in order of id too.
"""

from typing import Final

from delivery.due_times import CARRIED, FILE_GONE, IN_DOUBT, TOLD_BY
from delivery.due_times_ import FIRST_SENTINEL, RETURNED

SLICE: Final = 5_000
"""Deliveries of each sort in one transaction: a large backlog must not keep its line locked, nor outlast the time."""

LOCK_LINES: Final = """
SELECT l.id, l.lease_until IS NOT NULL FROM delivery_line l
 WHERE l.id IN (
   SELECT m.id FROM subscriptions_subscription s JOIN delivery_line m ON m.subscriber_id = s.subscriber_id
    WHERE s.id = %(subscription)s AND s.kind <> 'QUEUE'
   UNION ALL
   SELECT q.id FROM subscriptions_subscription s JOIN delivery_line q ON q.sender >= 0
    WHERE s.id = %(subscription)s AND s.kind = 'QUEUE')
 ORDER BY l.id FOR NO KEY UPDATE OF l
"""
"""First the lines, of the subscriber or of all senders, then their deliveries: a settle sees what was cancelled.

Returns them, and which of them are driven.
"""

OURS: Final = """d.subscription_id = %(subscription)s AND d.id <= %(newest)s
      AND NOT (d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AND d.cancel_requested)"""
"""All but what is being sent, and is asked to end already: of those there are never many."""

CANCEL: Final = f"""
WITH handed_out AS MATERIALIZED (
  SELECT id, group_id, fetched_until FROM delivery_open
   WHERE subscription_id = %(subscription)s AND id <= %(newest)s AND fetched_until >= %(since)s::timestamptz
     AND NOT (cancel_requested AND fetched_until > (SELECT clock_timestamp()))
   ORDER BY fetched_until, id LIMIT {SLICE}),
these AS MATERIALIZED (
  (SELECT d.id, d.group_id FROM delivery_open d WHERE {OURS} AND d.due_at IS NULL ORDER BY d.id LIMIT {SLICE})
  UNION ALL
  (SELECT d.id, d.group_id FROM delivery_open d WHERE {OURS} AND d.due_at < {FIRST_SENTINEL}
    ORDER BY d.id LIMIT {SLICE})
  UNION ALL
  (SELECT w.id, w.group_id FROM unnest(%(lines)s::bigint[]) AS l (id) CROSS JOIN LATERAL (
      SELECT d.id, d.group_id FROM delivery_open d WHERE {OURS} AND d.line_id = l.id AND d.due_at > {RETURNED}
       ORDER BY d.due_at, d.id LIMIT {SLICE}) w
    LIMIT {SLICE})
  UNION ALL
  SELECT id, group_id FROM handed_out),
groups AS MATERIALIZED (
  SELECT g.id, g.delivery_ids, t.id AS delivery_id
    FROM (SELECT id, group_id FROM these WHERE group_id IS NOT NULL ORDER BY group_id) t
   CROSS JOIN LATERAL (SELECT * FROM delivery_queuegroup WHERE id = t.group_id LIMIT 1 FOR UPDATE) g),
locked AS MATERIALIZED (
  SELECT d.* FROM (SELECT id FROM these WHERE (SELECT count(*) FROM groups) >= 0 ORDER BY id) t CROSS JOIN LATERAL (
    SELECT o.id, o.cancel_requested,
           o.status <> 'IN_FLIGHT' OR COALESCE(o.fetched_until <= clock_timestamp(), false) AS ends
      FROM delivery_open o WHERE o.id = t.id AND o.closed_on = '9999-12-31' LIMIT 1 FOR UPDATE) d),
asked AS (
  UPDATE delivery_open d SET cancel_requested = true
   WHERE d.closed_on = '9999-12-31'
     AND d.id = ANY (ARRAY(SELECT id FROM locked WHERE NOT ends AND NOT cancel_requested))
  RETURNING d.id),
gone AS (
  DELETE FROM delivery_open d
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(SELECT id FROM locked WHERE ends))
  RETURNING d.id, d.message_id, d.line_id, d.subscription_id, d.group_id, 'CANCELLED' AS status, d.size, d.attempts,
            d.times_set_aside, d.due_at, d.sequence, d.uncertain, true AS cancel_requested, %(reason)s::text AS reason,
            d.created_at, {CARRIED}),
filed AS ({FILE_GONE}),
ended AS (
  DELETE FROM delivery_queuegroup WHERE id = ANY (ARRAY(
    SELECT g.id FROM groups g JOIN gone ON gone.id = g.delivery_id
     WHERE NOT EXISTS (SELECT FROM delivery_open d
                        WHERE d.id = ANY (g.delivery_ids) AND d.closed_on = '9999-12-31' AND d.id <> gone.id)))),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {TOLD_BY}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'cancelled; it may never have been sent'
    FROM gone WHERE {IN_DOUBT})
SELECT (SELECT count(*) FROM these), (SELECT count(*) FROM gone), (SELECT count(*) FROM asked),
       (SELECT max(fetched_until)::text FROM handed_out HAVING count(*) = {SLICE})
"""
"""What waits ends; what is being sent, or is handed out, is asked to. Each is decided when it is locked: what somebody
gave back, or fetched, while this waited for him is met as he left it, and in one statement none slips between the two.

Returns how many it has found, how many of them have ended, how many are newly asked, and from which time-out on to look
next for what is handed out: what is asked stays where it is, and each slice would look through all of it again. None:
that was the last of them.

Groups in which nobody is left end too: those that are HELD or parked are not read any more.
"""

NEWEST: Final = "SELECT last_value FROM delivery_delivery_id_seq"
