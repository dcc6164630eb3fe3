"""What all subscribers come to, hour by hour: added up by PostgreSQL of what has just been loaded.

A month of 150 subscribers is 100,000 rows a summary, whose histograms have millions of buckets; their totals are 672.
"""

from typing import Any, Final

import psycopg

from analytics.pipeline.job import HOUR, Window
from analytics.pipeline.tables import BACKLOG, LATENCY, RELIABILITY

ADDED_UP: Final = frozenset({BACKLOG, LATENCY, RELIABILITY})

CLEAR: Final = "DELETE FROM analytics_totals WHERE hour >= %(start)s AND hour < %(end)s"
ADD_UP: Final = """
WITH ended AS (
  SELECT hour, sum(deliveries) AS deliveries, sum(delivered) AS delivered, sum(eligible) AS eligible,
         sum(first_attempt) AS first_attempt
    FROM analytics_reliability WHERE hour >= %(start)s AND hour < %(end)s GROUP BY hour),
statuses AS (
  SELECT hour, jsonb_object_agg(status, number) AS by_status
    FROM (SELECT hour, status, sum(number::bigint)::bigint AS number
            FROM analytics_reliability, jsonb_each_text(by_status) AS s (status, number)
           WHERE hour >= %(start)s AND hour < %(end)s GROUP BY hour, status) AS of_status
   GROUP BY hour),
took AS (
  SELECT hour, jsonb_object_agg(bucket, number) AS histogram
    FROM (SELECT hour, bucket, sum(number::bigint)::bigint AS number
            FROM analytics_latency, jsonb_each_text(histogram) AS h (bucket, number)
           WHERE hour >= %(start)s AND hour < %(end)s AND measure = 'delivery' GROUP BY hour, bucket) AS in_bucket
   GROUP BY hour),
waited AS (
  SELECT date_trunc('hour', at, 'UTC') AS hour, max(deliveries) AS backlog
    FROM (SELECT at, sum(deliveries) AS deliveries
            FROM analytics_backlog WHERE at >= %(start)s AND at < %(end)s GROUP BY at) AS moments
   GROUP BY 1)
INSERT INTO analytics_totals (hour, deliveries, delivered, eligible, first_attempt, by_status, histogram, backlog)
SELECT hour, COALESCE(deliveries, 0), COALESCE(delivered, 0), COALESCE(eligible, 0), COALESCE(first_attempt, 0),
       COALESCE(by_status, '{}'), COALESCE(histogram, '{}'), COALESCE(backlog, 0)
  FROM ended FULL JOIN statuses USING (hour) FULL JOIN took USING (hour) FULL JOIN waited USING (hour)
"""


def add_up(cursor: psycopg.Cursor[Any], window: Window) -> None:
    """Replace the totals of the hours that begin in a window; of one in which nothing happened there is none.

    Of a window that ends within an hour too it is all that is there of that hour.
    """
    hours = -((window.start - window.end) // HOUR)
    bounds = {"start": window.start, "end": window.start + hours * HOUR}
    cursor.execute(CLEAR, bounds)
    cursor.execute(ADD_UP, bounds)
