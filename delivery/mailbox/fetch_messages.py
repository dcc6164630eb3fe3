"""The statements that hand out what is available of a mailbox (behaviour 9.1, 9.3, 9.7)."""

from typing import Final

from delivery.due_times_ import FIRST_SENTINEL, RETURNED
from delivery.mailbox.available_ import available, in_flight
from delivery.webhook.content_statements import COLUMNS, MESSAGE

PAGE_BYTES: Final = 1_048_576
"""What one fetch hands out of bodies at most, but always one message."""
LATE_REACH: Final = 1_000
"""Of what timed out, how many an ordered mailbox looks at for the oldest: it is few, unless it was not ordered then."""

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('mailbox', %s))"
"""Lets those who change what is in flight of an ordered mailbox do so one after the other (behaviour 9.7).

A statement of its own: whoever has waited must see what the other has done.
"""

HANDED_OUT: Final = f"""
taken AS MATERIALIZED (
  SELECT id FROM (SELECT id, size, sum(size) OVER (ORDER BY id) AS upto FROM locked) l
   WHERE upto = size OR upto <= {PAGE_BYTES}),
handed_out AS (
  UPDATE delivery_open d
     SET status = 'IN_FLIGHT', fetches = d.fetches + 1, due_at = {RETURNED}, line_id = (SELECT min(line_id) FROM box),
         fetched_until = clock_timestamp() + make_interval(secs => (SELECT min(ack_seconds) FROM box)),
         uncertain = d.uncertain OR d.fetched_until IS NOT NULL
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(SELECT id FROM taken))
  RETURNING d.id, d.fetches, d.subscription_id, d.fetched_until,
            extract(epoch FROM d.fetched_until - clock_timestamp())::float8, d.uncertain, d.message_id,
            (SELECT output FROM box WHERE box.id = d.subscription_id))
SELECT n.is_ordered, n.is_any, h.*, {COLUMNS}
  FROM (SELECT (SELECT mailbox_ordered FROM subscriptions_subscriber WHERE id = %(subscriber)s) AS is_ordered,
               EXISTS (SELECT FROM near) AS is_any) n
  LEFT JOIN handed_out h ON true
  LEFT JOIN LATERAL {MESSAGE.format(id="h.message_id")}
 ORDER BY h.id
"""
"""Of what is `locked`, as much as one fetch may have, with what is delivered of it."""


def _hands_out(most: str, *, of: str, there: str, reach: str, lock: str) -> str:
    """Return the statement that hands out so many of what is `there`, of subscribers `u` of which `of` is true."""
    return f"""
WITH box AS MATERIALIZED (
  SELECT s.id, s.output, u.ack_seconds, u.max_redeliveries, l.id AS line_id
    FROM subscriptions_subscriber u
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.is_fetchable
    JOIN delivery_line l ON l.subscriber_id = u.id AND l.lane = 'main'
   WHERE u.id = %(subscriber)s AND u.status = 'ACTIVE' AND {of}),
near AS MATERIALIZED (
  SELECT d.id FROM box b CROSS JOIN LATERAL ({there}) d ORDER BY d.id LIMIT {reach}),
locked AS MATERIALIZED (
  SELECT d.* FROM (SELECT id FROM near ORDER BY id) n CROSS JOIN LATERAL (
    SELECT o.id, o.size FROM delivery_open o
     WHERE o.id = n.id AND o.closed_on = '9999-12-31'
       AND (o.status = 'PENDING' AND (o.due_at IS NULL OR o.due_at < {FIRST_SENTINEL})
            OR o.fetched_until <= clock_timestamp() AND NOT o.cancel_requested)
     LIMIT 1 {lock}) d
   LIMIT {most}),{HANDED_OUT}"""


FETCH: Final = _hands_out(
    "%(most)s",
    of="NOT u.mailbox_ordered",
    there=available("%(reach)s"),
    reach="%(reach)s",
    lock="FOR UPDATE SKIP LOCKED",
)
"""Returns one row at least: whether the mailbox is ordered, whether it had anything, and what is handed out.

Of what is near the front, the oldest are locked, one by one and no more than are wanted; what somebody else has is
passed over, and what he had is looked at anew once it is locked. They come back to the main line: what was set aside in
the retry line waits for no time any more. What has timed out may have been done: it is uncertain from then on.
"""

FETCH_IN_ORDER: Final = _hands_out(
    "1",
    of=f"u.mailbox_ordered AND NOT {in_flight('u.id')}",
    there=available("1", late=str(LATE_REACH)),
    reach="1",
    lock="FOR UPDATE",
)
"""The same of an ordered mailbox: the oldest or nothing, once nobody holds any.

Whoever is at the oldest is waited for, and not passed over: he may be giving it back. It is the only delivery locked
here, and whoever locks several asks for `LOCK` before, if at all: so nobody who is waited for waits for this.
"""
