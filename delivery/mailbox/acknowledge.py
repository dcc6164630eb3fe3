"""The statements for what clients say of their receipts (behaviour 9.2, 9.4).

Each returns, of every receipt whose delivery is handed out: the delivery, the number of the hand-out, that of
the newest one, whether the receipt counted, where the delivery stands now, until when it is in flight if it was
prolonged, how many seconds that is, and the line that has to be woken for it.
"""

from typing import Final

from delivery.due_times_ import RETURNED
from delivery.mailbox.available import BACK, ends, gone

FOUND: Final = """
WITH asked AS MATERIALIZED (SELECT * FROM unnest(%(ids)s::bigint[], %(fetches)s::int[]) AS a (id, number)),
own AS MATERIALIZED (
  SELECT s.id, s.delivery_mode, u.mailbox_ordered, u.max_redeliveries
    FROM subscriptions_subscriber u JOIN subscriptions_subscription s ON s.subscriber_id = u.id
   WHERE u.id = %(subscriber)s),
found AS MATERIALIZED (
  SELECT a.id, a.number, d.fetches AS newest, d.fetches = a.number AS counts, d.status, d.fetched_until,
         d.cancel_requested, own.delivery_mode, own.mailbox_ordered, own.max_redeliveries
    FROM (SELECT * FROM asked ORDER BY id, number) a
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open o
      WHERE o.id = a.id AND o.closed_on = '9999-12-31' AND o.subscription_id = ANY (ARRAY(SELECT id FROM own))
        AND o.fetched_until IS NOT NULL
      LIMIT 1 FOR UPDATE) d
    JOIN own ON own.id = d.subscription_id)"""
"""Locked in order of id, so that calls with the same receipts, and whoever cancels, wait for each other and never in a
ring; and only what is handed out: whoever sends what is sent by now waits for no client.
"""

ACKNOWLEDGE: Final = f"""{FOUND},
{gone("SELECT id FROM found WHERE counts", status="'DELIVERED'", reason="''")}
SELECT id, number, newest, counts, CASE WHEN counts THEN 'DELIVERED' ELSE status END,
       NULL::timestamptz, NULL::float8, NULL::bigint
  FROM found
"""
"""Their due time is carried along: it says that they have ended out of the mailbox, by that hand-out."""

LIMIT: Final = "CASE WHEN NOT %(not_attempted)s THEN f.max_redeliveries END"
"""Of what nobody has begun, none: a hand-out that was no try never ends a message."""

GIVE_BACK: Final = f"""{FOUND},
back AS MATERIALIZED (
  SELECT f.id, f.delivery_mode, {ends("f", LIMIT)} AS ends
    FROM (SELECT *, newest AS fetches FROM found WHERE counts) f),
{BACK}
SELECT f.id, f.number, f.newest, f.counts, CASE WHEN f.counts THEN COALESCE(g.status, 'PENDING') ELSE f.status END,
       NULL::timestamptz, NULL::float8, CASE WHEN f.counts AND f.delivery_mode = 'PUSH' THEN r.line_id END
  FROM found f LEFT JOIN gone g USING (id) LEFT JOIN returned r USING (id)
"""

EXTEND: Final = f"""{FOUND},
extended AS (
  UPDATE delivery_open d
     SET fetched_until = GREATEST(d.fetched_until, clock_timestamp() + make_interval(secs => %(seconds)s))
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(
     SELECT id FROM found WHERE counts AND (fetched_until > clock_timestamp() OR NOT mailbox_ordered)))
  RETURNING d.id, d.fetched_until, extract(epoch FROM d.fetched_until - clock_timestamp())::float8 AS seconds)
SELECT f.id, f.number, f.newest, e.id IS NOT NULL, f.status,
       COALESCE(e.fetched_until, CASE WHEN f.counts THEN f.fetched_until END), e.seconds, NULL::bigint
  FROM found f LEFT JOIN extended e ON e.id = f.id AND f.counts
"""
"""What has timed out is in flight again; but for an ordered mailbox, where something newer may be by now (9.7)."""

ELSEWHERE: Final = f"""
SELECT a.id, a.number, d.fetches, d.status, d.closed_on = '9999-12-31', COALESCE(d.due_at = {RETURNED}, false)
  FROM unnest(%(ids)s::bigint[], %(fetches)s::int[]) AS a (id, number)
 CROSS JOIN LATERAL (
   SELECT * FROM delivery_delivery o
    WHERE o.id = a.id AND o.subscription_id = ANY (ARRAY(
      SELECT id FROM subscriptions_subscription WHERE subscriber_id = %(subscriber)s))
    LIMIT 1) d
"""
"""What has become of those that are handed out no more: where they stand, whether they are unfinished, and by which
hand-out; of what is finished, whether it ended out of the mailbox by that.

Asked after the others, for it must see what whoever they have waited for has done. None of them counts: whatever is
handed out again has another number.
"""
