"""The backlog of each subscriber: how much waits for it, and since when."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from broker_project.core.db import rows
from delivery.dispatch.turn_floors import WAITS
from delivery.filing import IS_OWN
from delivery.status.line_status import MAX_COUNTED

MAX_COUNTED_IN_ALL: Final = 100_000
"""Deliveries counted for one page, divided among the subscriptions for which something waits."""

ASIDE: Final = "d.waits_for IN ('RETRY', 'RELEASE', 'RETURN', 'SUBSCRIPTION')"

IS_DUE: Final = "d.not_before IS NULL OR d.not_before <= clock_timestamp()"
"""A delayed delivery of a QUEUE group waits for its turn: only its group waits for its time."""
SINCE: Final = "GREATEST(d.created_at, d.not_before)"

FIRST: Final = f"""(SELECT d.* FROM (
         SELECT d.line_id, d.created_at, d.not_before FROM delivery_open d
          WHERE {{}} ORDER BY d.subscription_id, d.id LIMIT {MAX_COUNTED}) d
         WHERE {IS_DUE} LIMIT 1)"""
"""SQL of the first delivery that is due and meets a condition on its subscription, with which it is formatted."""

BACKLOGS: Final = f"""
WITH waiting AS MATERIALIZED (
  SELECT s.id, s.subscriber_id, s.delivery_mode = 'PULL' AS is_in_mailbox, o.line_id, o.since, {IS_OWN} AS is_own
    FROM subscriptions_subscription s
   CROSS JOIN LATERAL (
     SELECT d.line_id, {SINCE} AS since FROM (
       {FIRST.format(WAITS.format("s.id"))}
       UNION ALL
       SELECT d.* FROM unnest('{{RETRY,RELEASE,RETURN,SUBSCRIPTION}}'::text[]) AS w (it) CROSS JOIN LATERAL
       {FIRST.format("d.subscription_id = s.id AND d.waits_for = w.it AND d.waits_for <> 'TURN'")} d) d
      ORDER BY since LIMIT 1) o
   WHERE %(subscriber_ids)s::bigint[] IS NULL OR s.subscriber_id = ANY(%(subscriber_ids)s::bigint[])),
fair AS MATERIALIZED (
  SELECT LEAST({MAX_COUNTED}, {MAX_COUNTED_IN_ALL} / GREATEST(count(*), 1)) + 1 AS share FROM waiting)
SELECT w.subscriber_id, sum(LEAST(c.number, fair.share - 1))::int, bool_or(c.looked_at = fair.share),
       min(w.since), (array_agg(w.line_id ORDER BY w.since))[1], (array_agg(w.is_in_mailbox ORDER BY w.since))[1],
       min(w.since) FILTER (WHERE NOT w.is_own)
  FROM waiting w CROSS JOIN fair
 CROSS JOIN LATERAL (
   SELECT count(*) FILTER (WHERE {IS_DUE}) AS number, count(*) AS looked_at FROM (
     (SELECT d.not_before FROM delivery_open d WHERE {WAITS.format("w.id")} ORDER BY d.subscription_id, d.id
       LIMIT (SELECT share FROM fair))
     UNION ALL
     (SELECT d.not_before FROM delivery_open d WHERE d.subscription_id = w.id AND {ASIDE} ORDER BY d.waits_for, d.id
       LIMIT (SELECT share FROM fair))
      LIMIT (SELECT share FROM fair)) d) c
 GROUP BY w.subscriber_id
"""
"""By index, from subscription to subscription. Delayed deliveries do not count: nobody waits for them yet."""


class Backlog(NamedTuple):
    """What waits for one subscriber, in its lines and in its mailbox."""

    waiting: int
    is_cut: bool
    """Whether there is more than was counted."""
    oldest_since: datetime
    """When the oldest was published, or was due if it was delayed."""
    oldest_line_id: int
    is_oldest_in_mailbox: bool
    published_since: datetime | None
    """`oldest_since` of what publishers have published; None if only events of the broker's own wait."""


def backlogs(subscriber_ids: Sequence[int] | None = None) -> dict[int, Backlog]:
    """Return the backlog of each subscriber that has one, or of each of these."""
    ids = None if subscriber_ids is None else [*subscriber_ids]
    return {key: Backlog(*columns) for key, *columns in rows(BACKLOGS, {"subscriber_ids": ids})}
