"""The backlog of each subscriber: how much waits for it, and since when."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from broker_project.core.db import rows
from delivery.dispatch.turn_floors import WAITS
from delivery.filing import IS_OWN
from delivery.status.line_status import MAX_COUNTED

FEW: Final = 5
"""Deliveries of each kind that are counted of each subscription."""
MAX_COUNTED_IN_ALL: Final = 50_000
"""Deliveries of each kind counted besides, divided among the subscriptions for which more than a few wait."""
KINDS: Final = "'{RETRY,RELEASE,RETURN,SUBSCRIPTION}'::text[]"
"""What deliveries wait for that count too, besides their turn."""

IS_DUE: Final = "d.not_before IS NULL OR d.not_before <= clock_timestamp()"
"""A delayed delivery of a QUEUE group waits for its turn: only its group waits for its time."""
SINCE: Final = "GREATEST(d.created_at, d.not_before)"

FIRST: Final = """(SELECT d.line_id, d.created_at, d.not_before FROM delivery_open d
        WHERE {} ORDER BY d.subscription_id, d.id LIMIT {})"""
"""SQL of the first deliveries of one kind, due or delayed; format with a condition and their number."""
IS_ASIDE_OF_ANY: Final = "d.waits_for = a.kind AND d.waits_for <> 'TURN'"
IS_ASIDE: Final = f"{IS_ASIDE_OF_ANY} AND d.subscription_id = {{0}}"
COUNTED: Final = f"""LATERAL (
  SELECT count(*) FILTER (WHERE {IS_DUE}) AS number, count(*) AS looked_at,
         min({SINCE}) FILTER (WHERE {IS_DUE}) AS since,
         (array_agg(d.line_id ORDER BY {SINCE}) FILTER (WHERE {IS_DUE}))[1] AS line_id
    FROM ({FIRST.format(WAITS, "{1}")}
          UNION ALL
          SELECT d.* FROM unnest((SELECT kinds FROM aside)) AS a (kind) CROSS JOIN LATERAL
          {FIRST.format(IS_ASIDE, "{1}")} d) d) c"""
"""SQL of what waits for a subscription, which it is formatted with, and of what is counted of each kind at most."""

ENOUGH: Final = f"CASE WHEN w.number > 0 THEN fair.share ELSE {MAX_COUNTED} END + 1"
"""Of what waits, perhaps behind delayed deliveries of QUEUE groups."""

BACKLOGS: Final = f"""
WITH aside AS MATERIALIZED (
  SELECT CASE WHEN %(subscriber_ids)s::bigint[] IS NOT NULL THEN {KINDS} ELSE ARRAY(
    SELECT kind FROM unnest({KINDS}) AS a (kind)
     WHERE (SELECT d.id FROM delivery_open d WHERE {IS_ASIDE_OF_ANY}
             ORDER BY d.waits_for, d.subscription_id, d.id LIMIT 1) IS NOT NULL) END AS kinds),
waiting AS MATERIALIZED (
  SELECT s.id, s.subscriber_id, s.delivery_mode = 'PULL' AS is_in_mailbox, {IS_OWN} AS is_own, c.*
    FROM subscriptions_subscription s CROSS JOIN {COUNTED.format("s.id", FEW + 1)}
   WHERE c.looked_at > 0
     AND (%(subscriber_ids)s::bigint[] IS NULL OR s.subscriber_id = ANY(%(subscriber_ids)s::bigint[]))),
fair AS MATERIALIZED (
  SELECT LEAST({MAX_COUNTED}, GREATEST({FEW}, {MAX_COUNTED_IN_ALL} / GREATEST(count(*), 1))) AS share
    FROM waiting WHERE looked_at > {FEW}),
counted AS (
  SELECT w.*, {FEW} AS share FROM waiting w CROSS JOIN fair
   WHERE w.looked_at <= {FEW} OR (fair.share = {FEW} AND w.number > 0)
   UNION ALL
  SELECT w.id, w.subscriber_id, w.is_in_mailbox, w.is_own, c.*, fair.share
    FROM waiting w CROSS JOIN fair CROSS JOIN {COUNTED.format("w.id", ENOUGH)}
   WHERE w.looked_at > {FEW} AND (fair.share > {FEW} OR w.number = 0))
SELECT subscriber_id, sum(LEAST(number, share))::int, bool_or(looked_at > share),
       min(since), (array_agg(line_id ORDER BY since))[1], (array_agg(is_in_mailbox ORDER BY since))[1],
       min(since) FILTER (WHERE NOT is_own)
  FROM counted WHERE number > 0
 GROUP BY subscriber_id
"""
"""By index, from subscription to subscription. Delayed deliveries do not count: nobody waits for them yet.

Which kinds there are is found out first, unless only few subscribers are asked for.
"""


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
