"""The deliveries of a backfill, in the place of ids that were kept for them (behaviour 5.8)."""

import datetime as dt
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker_project.core.db import rows
from delivery.due_times_ import DUE_LATER, RELEASED
from delivery.replay.missed import Missed

LINE_UP: Final = f"""
WITH job AS MATERIALIZED (SELECT ids, COALESCE(last_given, 0) AS last_given FROM delivery_replay WHERE id = %(id)s),
wanted AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY w.message_id) AS place, w.*
    FROM unnest(%(messages)s::bigint[], %(failures)s::text[]) AS w (message_id, failure)
   WHERE NOT EXISTS (
     SELECT FROM delivery_delivery d
      WHERE d.message_id = w.message_id AND d.subscription_id = %(subscription)s AND d.closed_on >= %(first_day)s::date
        AND (d.closed_on = '9999-12-31' OR d.id >= (SELECT lower(ids) FROM job)))),
free AS MATERIALIZED (
  SELECT unnest(ids * int8multirange(int8range(last_given + 1, NULL))) AS span FROM job
   LIMIT (SELECT count(*) FROM wanted)),
given AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY g.id) AS place, g.id
    FROM (SELECT span, sum(upper(span) - lower(span)) OVER (ORDER BY span) AS upto FROM free) f
   CROSS JOIN LATERAL (SELECT (SELECT count(*) FROM wanted) - upto + upper(span) - lower(span) AS most) n
   CROSS JOIN LATERAL generate_series(lower(span), LEAST(upper(span), lower(span) + most) - 1) AS g (id)),
lined_up AS (
  INSERT INTO delivery_open (id, message_id, line_id, subscription_id, status, size, reason, due_at, expires_at,
                             not_before, replay_id)
  SELECT g.id, m.id, l.id, s.id, CASE w.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END, m.size, w.failure,
         CASE WHEN w.failure <> '' THEN {RELEASED} WHEN m.not_before > clock_timestamp() THEN {DUE_LATER} END,
         m.expires_at, m.not_before, %(id)s
    FROM wanted w JOIN given g USING (place) JOIN delivery_message m ON m.id = w.message_id
    JOIN subscriptions_subscription s ON s.id = %(subscription)s
    JOIN delivery_line l ON l.subscriber_id = s.subscriber_id AND l.lane = 'main'
   ORDER BY g.id
  RETURNING id)
SELECT (SELECT count(*) FROM wanted), (SELECT count(*) FROM lined_up), (SELECT max(id) FROM lined_up)
"""
"""Where both could have made it, whoever published has: a message and its deliveries are seen together.

What an earlier backfill had that was cancelled has lower ids, and is made again. Ids are given lowest first, from as
few of the ranges as that takes.
"""


class Placed(NamedTuple):
    """What has come of some of the messages."""

    wanted: int
    """How many are without a delivery."""
    filed: int
    """How many have one now; fewer, where there are no ids left."""
    last_id: int | None
    """The last one's."""


def place(missed: Sequence[Missed], *, replay_id: int, subscription_id: int, first_day: dt.date) -> Placed:
    """Store a delivery of each message that has none, in their order, within the transaction that is open.

    `first_day`: what was published to the subscription for itself has ended then or later, if it has.
    """
    arguments = {
        "id": replay_id,
        "subscription": subscription_id,
        "first_day": first_day,
        "messages": [one.message_id for one in missed],
        "failures": [one.failure for one in missed],
    }
    ((wanted, filed, last_id),) = rows(LINE_UP, arguments)
    return Placed(wanted, filed, last_id)
