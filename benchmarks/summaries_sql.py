"""The summaries as PostgreSQL computes them, in plain SQL written independently of Spark.

`./broker bench summaries` measures this beside Spark, and tests compare Spark's rows with it. Computed are the columns
that are counts, sums, maxima and maps; not the quantiles, the explanations of the ordering audit, and anomalies.
"""

from dataclasses import asdict
from typing import Any, Final

import psycopg

from analytics.pipeline import tables
from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.quantiles import GROWTH, MAX_MS, ZERO_BUCKET


def parameters(words: Vocabulary, window: Window, *, objective: float) -> dict[str, Any]:
    """Return the parameters of the statements."""
    return {
        **asdict(words),
        "start": window.start,
        "end": window.end,
        "neutral": list(words.neutral),
        "callback_reply_kind": words.callback_reply_kind,
        "holding": [f"{kind} {status}" for kind, statuses in words.holding for status in statuses],
        "ending": [f"{kind} {status}" for kind, statuses in words.ending for status in statuses],
        "patterns": [rf"(?p)^(?:{pattern})".replace(r"\b", r"\y") for pattern, _ in words.failures],
        "classes": [kind for _, kind in words.failures],
        "growth": GROWTH,
        "longest": MAX_MS,
        "no_time": ZERO_BUCKET,
        "objective": objective,
    }


KNOWN: Final = r"""
CREATE TEMP TABLE known AS
SELECT d.*, coalesce(e.name, '') AS event_type,
       CASE WHEN d.subscription_id IS NULL THEN %(callback_reply_kind)s
            WHEN d.fetches > 0 OR d.unread OR d.attempts = 0 AND d.delivery_mode = %(pull_mode)s THEN %(pulled_kind)s
            ELSE coalesce(d.own_kind, e.kind, '') END AS kind
  FROM (SELECT d.id, d.group_id, d.subscription_id, d.status, d.attempts, d.fetches, d.sequence, d.uncertain,
               d.status = 'EXPIRED' AND starts_with(d.reason, 'unread for ') AS unread,
               d.created_at, CASE WHEN d.finished_at < %(end)s THEN d.finished_at END AS finished_at,
               trunc(extract(epoch FROM d.finished_at - least(greatest(d.created_at, d.not_before), d.finished_at))
                     * 1000)::bigint AS ms,
               CASE WHEN coalesce((SELECT c.processing_before FROM subscriptions_statuschange c
                                    WHERE c.subscriber_id = b.id AND c.subscription_id IS NULL
                                      AND c.at > CASE WHEN d.finished_at < %(end)s THEN d.finished_at END
                                    ORDER BY c.at LIMIT 1), b.processing, 'KEYED') = 'KEYED'
                    THEN coalesce(d.ordering_key, CASE WHEN b.keyless_until > 0 AND d.group_id IS NULL THEN '' END)
                    END AS ordering_key,
               l.sender, b.id AS subscriber_id, coalesce(b.name, '') AS subscriber, s.kind AS own_kind,
               s.delivery_mode,
               coalesce(regexp_replace(substring(s.endpoint, '^[^?#]*'), '//[^/]*@', '//'), '') AS endpoint,
               coalesce(s.event_type_id, (SELECT m.event_type_id FROM delivery_message m WHERE m.id = d.message_id))
               AS event_type_id
          FROM delivery_delivery d
          LEFT JOIN delivery_line l ON l.id = d.line_id
          LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
          LEFT JOIN subscriptions_subscriber b ON b.id = coalesce(s.subscriber_id, l.subscriber_id)
         WHERE d.closed_on >= %(start)s::date - 1
           AND (d.finished_at >= %(start)s AND d.finished_at < %(end)s
                OR d.created_at < %(end)s AND (d.finished_at >= %(end)s OR d.finished_at IS NULL))) d
  LEFT JOIN subscriptions_eventtype e ON e.id = d.event_type_id
"""
"""With deliveries that have not been sent yet, which are in the backlog."""

TRIED: Final = """
CREATE TEMP TABLE tried AS
SELECT a.delivery_id, a.number, a.started_at, a.duration_ms,
       k.subscriber_id, coalesce(k.subscriber, '') AS subscriber, k.subscription_id,
       coalesce(k.endpoint, '') AS endpoint, k.event_type_id, coalesce(k.event_type, '') AS event_type,
       coalesce(k.kind, '') AS kind,
       a.status_code IS NULL OR a.status_code NOT BETWEEN 200 AND 299 AS failed,
       coalesce(k.kind <> '' AND a.meaning = %(means_hold)s,
                k.kind || ' ' || coalesce(a.status_code, 0) = ANY (%(holding)s)) AS holds,
       a.status_code BETWEEN 200 AND 299
       OR coalesce(a.meaning = %(means_end)s, k.kind || ' ' || coalesce(a.status_code, 0) = ANY (%(ending)s)) AS ends,
       CASE WHEN a.status_code IS NULL
            THEN coalesce((SELECT class FROM unnest(%(patterns)s::text[], %(classes)s::text[])
                                             WITH ORDINALITY AS f (pattern, class, place)
                            WHERE a.error ~ pattern ORDER BY place LIMIT 1), %(unknown_failure)s)
            WHEN a.status_code = 503 THEN '503'
            WHEN a.status_code BETWEEN 200 AND 599 THEN a.status_code / 100 || 'xx'
            ELSE 'other' END AS error_class,
       coalesce(lead(a.started_at) OVER (PARTITION BY a.delivery_id ORDER BY a.started_at, a.id), k.finished_at)
       AS next_at
  FROM delivery_attempt a LEFT JOIN known k ON k.id = a.delivery_id
 WHERE a.started_at >= %(start)s AND a.started_at < %(end)s
"""

RELIABILITY: Final = """
SELECT hour, subscriber_id, subscriber, event_type_id, event_type, kind, sum(deliveries) AS deliveries,
       sum(delivered) AS delivered, sum(eligible) AS eligible, sum(first_attempt) AS first_attempt,
       sum(attempts) AS attempts, jsonb_object_agg(status, deliveries) AS by_status
  FROM (SELECT date_trunc('hour', finished_at) AS hour, subscriber_id, subscriber, event_type_id, event_type, kind,
               status, count(*) AS deliveries, count(*) FILTER (WHERE status = %(delivered)s) AS delivered,
               count(*) FILTER (WHERE status <> ALL (%(neutral)s)) AS eligible,
               count(*) FILTER (WHERE status = %(delivered)s AND attempts + fetches = 1) AS first_attempt,
               sum(attempts + fetches) AS attempts
          FROM known WHERE finished_at IS NOT NULL GROUP BY 1, 2, 3, 4, 5, 6, 7) d
 GROUP BY 1, 2, 3, 4, 5, 6
"""
LATENCY: Final = """
SELECT hour, subscriber_id, subscriber, event_type_id, event_type, kind, measure, sum(many) AS count,
       max(longest) AS max_ms, jsonb_object_agg(bucket, many) AS histogram
  FROM (SELECT date_trunc('hour', at) AS hour, subscriber_id, subscriber, event_type_id, event_type, kind, measure,
               CASE WHEN ms > 0 THEN ceil(ln(least(ms, %(longest)s)::float8) / ln(%(growth)s::float8))::int
                    ELSE %(no_time)s END AS bucket,
               count(*) AS many, max(ms) AS longest
          FROM (SELECT finished_at AS at, subscriber_id, subscriber, event_type_id, event_type, kind,
                       CASE kind WHEN %(pulled_kind)s THEN 'mailbox' ELSE 'delivery' END AS measure, ms
                  FROM known WHERE status = %(delivered)s AND finished_at IS NOT NULL
                 UNION ALL
                SELECT started_at, subscriber_id, subscriber, event_type_id, event_type, kind, 'attempt', duration_ms
                  FROM tried) t
         GROUP BY 1, 2, 3, 4, 5, 6, 7, 8) b
 GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
ENDPOINTS: Final = """
SELECT hour, subscription_id, subscriber_id, subscriber, event_type, endpoint, kind, sum(attempts) AS attempts,
       sum(retries) AS retries, sum(failures) AS failures, sum(held_ms)::float8 / 1000 AS held_seconds,
       coalesce(jsonb_object_agg(error_class, attempts) FILTER (WHERE attempts > 0), '{}') AS by_class
  FROM (SELECT hour, subscription_id, subscriber_id, subscriber, event_type, endpoint, kind, error_class,
               count(*) FILTER (WHERE own) AS attempts, count(*) FILTER (WHERE own AND number > 1) AS retries,
               count(*) FILTER (WHERE own AND failed) AS failures,
               sum(CASE WHEN holds THEN greatest(0, trunc(1000 * extract(epoch FROM
                     least(next_at, %(end)s, hour + interval '1 hour')
                     - greatest(started_at + duration_ms * interval '1 ms', hour)))) ELSE 0 END) AS held_ms
          FROM (SELECT t.*, h.hour, h.hour <= started_at AS own
                  FROM tried t, generate_series(
                         date_trunc('hour', started_at),
                         CASE WHEN holds THEN greatest(started_at, least(next_at, %(end)s) - interval '1 us')
                              ELSE started_at END, interval '1 hour') AS h (hour)) b
         GROUP BY 1, 2, 3, 4, 5, 6, 7, 8) a
 GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
BACKLOG: Final = """
SELECT at, subscriber_id, subscriber, count(*) AS deliveries
  FROM known, generate_series(
         greatest(%(start)s, date_bin('5 min', created_at + interval '5 min' - interval '1 us', 'epoch')),
         least(finished_at, %(end)s) - interval '1 us', interval '5 min') AS at
 GROUP BY 1, 2, 3
"""
"""Each delivery counts at the moments before it ended."""
VOLUME: Final = """
SELECT hour, publisher_id, publisher, event_type_id, event_type, kind, sum(messages) AS messages, sum(bytes) AS bytes,
       sum(deliveries) AS deliveries, jsonb_object_agg(outcome, messages) AS by_outcome
  FROM (SELECT date_trunc('hour', m.published_at) AS hour, m.publisher_id, coalesce(p.name, '') AS publisher,
               m.event_type_id, coalesce(e.name, '') AS event_type, coalesce(e.kind, '') AS kind, m.outcome,
               count(*) AS messages, sum(m.size) AS bytes, sum(m.deliveries_count) AS deliveries
          FROM delivery_message m
          LEFT JOIN subscriptions_publisher p ON p.id = m.publisher_id
          LEFT JOIN subscriptions_eventtype e ON e.id = m.event_type_id
         WHERE m.published_at >= %(start)s AND m.published_at < %(end)s AND m.answers IS NULL
         GROUP BY 1, 2, 3, 4, 5, 6, 7) m
 GROUP BY 1, 2, 3, 4, 5, 6
"""
SENDERS: Final = """
SELECT hour, sender, sum(deliveries) FILTER (WHERE status = %(delivered)s) AS messages,
       sum(deliveries) AS deliveries, jsonb_object_agg(status, deliveries) AS by_status
  FROM (SELECT date_trunc('hour', finished_at) AS hour, sender, status, count(*) AS deliveries
          FROM known WHERE sender IS NOT NULL AND finished_at IS NOT NULL GROUP BY 1, 2, 3) d
 GROUP BY 1, 2
"""
SHARES: Final = """
SELECT date_trunc('hour', finished_at) AS hour, group_of, subscription_id, subscriber_id, subscriber, event_type,
       endpoint, count(*) AS deliveries, count(*) FILTER (WHERE status = %(delivered)s) AS delivered,
       count(*) FILTER (WHERE status = %(redundant)s) AS redundant
  FROM (SELECT *, min(subscription_id) OVER (PARTITION BY group_id) AS group_of FROM known
         WHERE group_id IS NOT NULL AND (finished_at IS NOT NULL OR attempts > 0 OR sequence IS NOT NULL)) d
 WHERE finished_at IS NOT NULL
 GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
CALLBACKS: Final = """
SELECT date_trunc('hour', at) AS hour, event_type_id, coalesce(e.name, '') AS event_type, sum(asked) AS asked,
       sum(answered) AS answered, sum(forwarded) AS forwarded
  FROM (SELECT created_at AS at, event_type_id, 1 AS asked, 0 AS answered, 0 AS forwarded FROM delivery_callback
         UNION ALL
        SELECT published_at, event_type_id, 0, 1, 0 FROM delivery_message
         WHERE published_at >= %(start)s AND published_at < %(end)s AND answers IS NOT NULL
         UNION ALL
        SELECT finished_at, event_type_id, 0, 0, 1 FROM known
         WHERE kind = %(callback_reply_kind)s AND status = %(delivered)s) c
  LEFT JOIN subscriptions_eventtype e ON e.id = event_type_id
 WHERE at >= %(start)s AND at < %(end)s
 GROUP BY 1, 2, 3
"""
AUDIT: Final = """
WITH numbered AS (
  SELECT *, max(id) OVER (PARTITION BY subscriber_id, ordering_key ORDER BY sequence, id) AS latest,
         lag(sequence) OVER in_order AS before, lag(finished_at) OVER in_order AS before_ended
    FROM known WHERE sequence IS NOT NULL AND subscriber_id IS NOT NULL
  WINDOW in_order AS (PARTITION BY subscriber_id ORDER BY sequence, id)),
found (at, subscriber_id, subscriber, checked, inversions, duplicates) AS (
  SELECT finished_at, subscriber_id, subscriber, 1, (latest > id)::int, 0 FROM numbered WHERE finished_at IS NOT NULL
   UNION ALL
  SELECT greatest(finished_at, before_ended), subscriber_id, subscriber, 0, 0, 1 FROM numbered WHERE before = sequence
   UNION ALL
  SELECT finished_at, subscriber_id, subscriber, 0, 0, 1 FROM known
   WHERE uncertain AND (coalesce(sequence, group_id) IS NOT NULL OR kind NOT IN (%(sync_kind)s, ''))
   UNION ALL
  SELECT finished_at, subscriber_id, subscriber, 0, 0, 1
    FROM (SELECT *, row_number() OVER (PARTITION BY group_id ORDER BY finished_at, id) AS place FROM known
           WHERE group_id IS NOT NULL AND status = %(delivered)s AND finished_at IS NOT NULL) d
   WHERE place > 1
   UNION ALL
  SELECT max(started_at), subscriber_id, subscriber, 0, 0, 1 FROM tried GROUP BY delivery_id, subscriber_id, subscriber
  HAVING max(number) > min(number) FILTER (WHERE ends) OR count(*) > max(number) - min(number) + 1)
SELECT date_trunc('hour', at) AS hour, subscriber_id, subscriber, sum(checked) AS checked,
       sum(inversions) AS inversions, sum(duplicates) AS duplicates
  FROM found WHERE at IS NOT NULL AND subscriber_id IS NOT NULL
 GROUP BY 1, 2, 3
"""
"""Without explanations."""

BUDGETS: Final = """
SELECT %(start)s::date AS day, subscriber_id, subscriber, eligible, bad, %(objective)s::float8 AS objective,
       eligible_28, bad_28, bad_28 / ((1 - %(objective)s::float8) * eligible_28::float8) AS spent
  FROM (SELECT subscriber_id, subscriber, sum(eligible) AS eligible_28, sum(eligible - delivered) AS bad_28,
               coalesce(sum(eligible) FILTER (WHERE hour >= %(start)s::date), 0) AS eligible,
               coalesce(sum(eligible - delivered) FILTER (WHERE hour >= %(start)s::date), 0) AS bad
          FROM pg_temp.reliability
         WHERE hour >= %(start)s::date - 27 AND hour < %(end)s AND subscriber_id IS NOT NULL
         GROUP BY 1, 2) r
 WHERE eligible_28 > 0
"""

SUMMARIES: Final = {
    tables.RELIABILITY: RELIABILITY,
    tables.LATENCY: LATENCY,
    tables.ENDPOINTS: ENDPOINTS,
    tables.BACKLOG: BACKLOG,
    tables.VOLUME: VOLUME,
    tables.SENDERS: SENDERS,
    tables.SHARES: SHARES,
    tables.CALLBACKS_SUMMARY: CALLBACKS,
    tables.AUDIT: AUDIT,
    tables.BUDGETS: BUDGETS,
}


def sum_up(connection: psycopg.Connection[Any], window: Window, words: Vocabulary, *, objective: float) -> None:
    """Add a window, the next in time, to the summaries in temporary tables of a connection, and recompute its day's."""
    values = parameters(words, window, objective=objective)
    with connection.transaction(), psycopg.ClientCursor(connection) as cursor:
        cursor.execute("SET LOCAL work_mem = '64MB'; SET LOCAL timezone = 'UTC'; SET LOCAL jit = off")
        for statement in (
            "DROP TABLE IF EXISTS pg_temp.known, pg_temp.tried",
            KNOWN,
            "ANALYZE known",
            TRIED,
            "ANALYZE tried",
        ):
            cursor.execute(statement, values)
        for table, query in SUMMARIES.items():
            cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS {table.name} AS {query} WITH NO DATA".encode(), values)
            if table is tables.BUDGETS:
                cursor.execute("DELETE FROM pg_temp.budgets WHERE day = %(start)s::date", values)
            cursor.execute(f"INSERT INTO pg_temp.{table.name} {query}".encode(), values)
