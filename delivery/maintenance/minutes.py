"""Count what ended in each minute, by subscriber and event type: the live numbers, which need no Spark.

A minute is counted once it is over and nothing can end in it any more, with one statement, in a transaction that says
that it is counted. So a count is exact, and what was not counted while no worker ran is made up for. If the clock is
set back, the minutes that it repeats are counted again. Nothing is added to what publishing and settling write.
"""

import datetime as dt
from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.believed_clock import BELIEVED_CLOCK
from delivery.dispatch.turn_floors import WAITS
from delivery.filing import IS_OWN
from delivery.limits import MAX_DUE
from delivery.maintenance.partitions import summarize_times
from delivery.statuses import NEUTRAL, DeliveryStatus

KEPT_HOURS: Final = 48
ONE_AT_A_TIME: Final = "SELECT pg_try_advisory_xact_lock(hashtext('delivery.minutes'))"

LAST_CLOSED: Final = "(SELECT date_trunc('minute', clock_timestamp()) - interval '1 minute')"
"""The last closed minute."""
IS_SET_BACK: Final = f"EXISTS (SELECT FROM delivery_minutetotal WHERE minute > {LAST_CLOSED})"
"""Whether a minute is counted that is not over: the clock was set back."""
IS_UNCOUNTED: Final = f"""
  (NOT EXISTS (SELECT FROM delivery_minutetotal WHERE minute = {LAST_CLOSED}) OR {IS_SET_BACK})"""
"""Whether the last closed minute is not counted, or is to be counted again: those before are counted before it."""
FORGET_REPEATED: Final = f"""
WITH repeated AS (SELECT minute FROM {LAST_CLOSED} AS l (minute) WHERE {IS_SET_BACK}),
counts AS (DELETE FROM delivery_minutecount WHERE minute >= (SELECT minute FROM repeated))
DELETE FROM delivery_minutetotal WHERE minute >= (SELECT minute FROM repeated)
"""
"""The last closed minute too: the clock may have repeated it before this process saw that."""
NEXT: Final = f"""
WITH next AS (
  SELECT now, GREATEST(
           date_trunc('minute', now) - interval '{KEPT_HOURS} hours',
           COALESCE((SELECT max(minute) + interval '1 minute' FROM delivery_minutetotal
                      WHERE minute < date_trunc('minute', now)),
                    date_trunc('minute', now) - interval '1 minute')) AS minute
    FROM CAST(%s AS timestamptz) AS now)
SELECT minute FROM next
 WHERE minute + interval '1 minute' <= now
   AND NOT EXISTS (
     SELECT FROM pg_stat_activity
      WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
        AND xact_start < minute + interval '1 minute')
"""
"""The first minute that is not counted, if nothing can end in it any more: no transaction that writes is as old.

`finished_at` is a time within its transaction, after that has begun to write. While the clock is not believed, no
minute is counted.
"""

IS_FORGOTTEN: Final = f"minute < %(minute)s - interval '{KEPT_HOURS} hours'"
FORGET: Final = f"""
WITH counts AS (DELETE FROM delivery_minutecount WHERE {IS_FORGOTTEN})
DELETE FROM delivery_minutetotal WHERE {IS_FORGOTTEN}
"""

FILED: Final = """
SELECT LEAST(day - 1, delivery_filing_day()), GREATEST(day, delivery_filing_day())
  FROM (SELECT %s::timestamptz::date AS day) d
"""
"""Under which days a minute's deliveries may be filed: those of midnight under the day before, those of a clock that
was set back, or of late maintenance, under another."""

DUE: Final = f"""
WITH sending AS MATERIALIZED (
  SELECT s.id FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   WHERE s.is_sending AND NOT s.half_open AND s.delivery_mode = 'PUSH' AND u.status = 'ACTIVE' AND NOT {IS_OWN})
SELECT count(*) FROM (
  SELECT FROM sending w CROSS JOIN LATERAL (
    SELECT d.not_before FROM delivery_open d WHERE {WAITS.format("w.id")}
     ORDER BY d.subscription_id, d.id LIMIT {MAX_DUE}) d
   WHERE d.not_before IS NULL OR d.not_before <= clock_timestamp() LIMIT {MAX_DUE}) one
"""
"""How many deliveries wait for nothing but their turn, without the broker's own events."""

COUNT: Final = f"""
WITH ended AS MATERIALIZED (
  SELECT subscriber_id, event_type_id,
         CASE WHEN is_sent AND ms > 0 THEN ceil(ln(LEAST(ms, 2^38)::float8) / ln(1.02::float8))::smallint
              WHEN is_sent THEN -1 END AS bucket,
         count(*) AS deliveries, count(*) FILTER (WHERE status = '{DeliveryStatus.DELIVERED}') AS delivered,
         count(*) FILTER (WHERE status NOT IN {tuple(map(str, NEUTRAL))}) AS eligible
    FROM (
      SELECT CASE WHEN s.id IS NOT NULL THEN s.subscriber_id
                  ELSE (SELECT l.subscriber_id FROM delivery_line l WHERE l.id = d.line_id) END AS subscriber_id,
             CASE WHEN s.event_type_id IS NOT NULL THEN s.event_type_id
                  ELSE (SELECT m.event_type_id FROM delivery_message m WHERE m.id = d.message_id) END AS event_type_id,
             d.status, d.status = '{DeliveryStatus.DELIVERED}' AND d.fetches = 0 AS is_sent,
             round(date_part('epoch', d.finished_at - LEAST(GREATEST(d.created_at, d.not_before), d.finished_at)) * 1e6)
             ::bigint / 1000 AS ms
        FROM delivery_delivery d LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
       WHERE d.closed_on BETWEEN %(first)s AND %(last)s
         AND d.finished_at >= %(minute)s AND d.finished_at < %(minute)s + interval '1 minute') d
   GROUP BY 1, 2, 3),
counts AS (
  INSERT INTO delivery_minutecount
         (minute, subscriber_id, event_type_id, deliveries, delivered, eligible, buckets, bucket_counts)
  SELECT %(minute)s, subscriber_id, event_type_id, sum(deliveries), sum(delivered), sum(eligible),
         COALESCE(array_agg(bucket ORDER BY bucket) FILTER (WHERE bucket IS NOT NULL), '{{}}'),
         COALESCE(array_agg(deliveries ORDER BY bucket) FILTER (WHERE bucket IS NOT NULL), '{{}}')
    FROM ended GROUP BY subscriber_id, event_type_id)
INSERT INTO delivery_minutetotal (minute, due, deliveries, delivered, eligible, buckets, bucket_counts)
SELECT %(minute)s, %(due)s::int,
       COALESCE(sum(deliveries), 0), COALESCE(sum(delivered), 0), COALESCE(sum(eligible), 0),
       COALESCE(array_agg(bucket ORDER BY bucket) FILTER (WHERE bucket IS NOT NULL), '{{}}'),
       COALESCE(array_agg(deliveries ORDER BY bucket) FILTER (WHERE bucket IS NOT NULL), '{{}}')
  FROM (SELECT bucket, sum(deliveries) AS deliveries, sum(delivered) AS delivered, sum(eligible) AS eligible
          FROM ended GROUP BY bucket) e
"""
"""Buckets, statuses, subscribers and event types are those of Spark's summaries, as a test shows."""


def count_minutes() -> int:
    """Count the first closed minute not yet counted; return 0 if all are, or another process counts."""
    now = BELIEVED_CLOCK.now()
    with transaction.atomic():
        if now is None or not rows(ONE_AT_A_TIME)[0][0]:
            return 0
        rows(FORGET_REPEATED)
        minutes = rows(NEXT, [now])
        for (minute,) in minutes:
            is_last = now < minute + dt.timedelta(minutes=2)
            count_minute(minute, rows(DUE)[0][0] if is_last else None)
        return len(minutes)


def count_minute(minute: dt.datetime, due: int | None = None) -> None:
    """Count what ended in a minute, and forget what is too old; in the caller's transaction."""
    ((first, last),) = rows(FILED, [minute])
    summarize_times(first, last)
    # A scan of an index by blocks, which those of lines must not be; and one core is enough. Of a minute the planner
    # expects a single row, for each of which it would look through all subscriptions.
    rows(
        "SELECT set_config(name, value, true) FROM (VALUES ('enable_bitmapscan', 'on'), ('enable_seqscan', 'on'),"
        " ('enable_nestloop', 'off'), ('plan_cache_mode', 'force_custom_plan'),"
        " ('max_parallel_workers_per_gather', '0')) AS settings (name, value)"
    )
    rows(FORGET, {"minute": minute})
    rows(COUNT, {"minute": minute, "due": due, "first": first, "last": last})
