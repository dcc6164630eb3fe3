"""Filling the tables as years of use would: finished deliveries of past days, and a backlog of inactive ones."""

import datetime as dt
import os
from collections.abc import Sequence
from typing import Final, LiteralString

import psycopg

FAN_OUT: Final = 5
"""Deliveries of each message."""
BODY_BYTES: Final = 100

MESSAGES: Final = """
INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, outcome,
                              deliveries_count, published_at)
SELECT %(low)s + n, %(event_type)s, NULL, convert_to(repeat('x', %(bytes)s), 'UTF8'), %(bytes)s, 'application/json',
       '[]', 'ROUTED', %(fan_out)s, %(day)s::date + n * interval '1 ms'
  FROM generate_series(0, %(count)s::bigint / %(fan_out)s) n
"""
FINISHED: Final = """
INSERT INTO delivery_delivery (id, message_id, line_id, subscription_id, status, size, attempts, sequence, created_at,
                               finished_at, closed_on)
SELECT %(low)s + n, %(low)s + n / %(fan_out)s, line_id, subscription_id,
       CASE n %% 100 WHEN 7 THEN 'REJECTED' ELSE 'DELIVERED' END, %(bytes)s, 1, n / %(receivers)s + 1,
       %(day)s::date + n * interval '1 ms', %(day)s::date + n * interval '1 ms', %(day)s
  FROM generate_series(0, %(count)s::bigint - 1) n
  JOIN unnest(%(lines)s::bigint[], %(subscriptions)s::bigint[]) WITH ORDINALITY AS r (line_id, subscription_id, number)
    ON r.number = n %% %(receivers)s + 1
"""
ATTEMPTS: Final = """
INSERT INTO delivery_attempt (id, delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                              answer_excerpt)
SELECT %(low)s + n, %(low)s + n, 1, %(day)s::date + n * interval '1 ms', 3, 200, '', 'HTTP/1.1 200 OK', ''
  FROM generate_series(0, %(count)s::bigint - 1) n
"""
OPEN: Final = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, attempts, times_deferred, sequence,
                           waits_for, due_at)
SELECT %(low)s + n / %(fan_out)s, line_id, subscription_id, 'PENDING', %(bytes)s, %(attempts)s, %(attempts)s,
       CASE WHEN %(attempts)s > 0 THEN n / %(receivers)s + 1 END,
       CASE WHEN %(attempts)s > 0 THEN 'RETRY' ELSE 'TURN' END,
       CASE WHEN %(attempts)s > 0 THEN clock_timestamp() + n %% 2 * interval '4 minutes' END
  FROM generate_series(0, %(count)s::bigint - 1) n
  JOIN unnest(%(lines)s::bigint[], %(subscriptions)s::bigint[]) WITH ORDINALITY AS r (line_id, subscription_id, number)
    ON r.number = n %% %(receivers)s + 1
 ORDER BY n
"""
"""Of those that have been attempted one half is due, the other is not."""
MINUTES: Final = """
WITH counted AS (
  INSERT INTO delivery_minutetotal (minute, deliveries, delivered, eligible, buckets, bucket_counts, due)
  SELECT date_trunc('minute', (SELECT clock_timestamp())) - n * interval '1 minute', r, r, r, '{150,200,250}',
         ARRAY[r - 2, 1, 1], 0
    FROM generate_series(1, 48 * 60) n CROSS JOIN CAST(%(subscribers)s AS int) AS r
  RETURNING minute)
INSERT INTO delivery_minutecount (minute, subscriber_id, event_type_id, deliveries, delivered, eligible, buckets,
                                  bucket_counts)
SELECT minute, s.id, %(event_type)s, 1, 1, 1, '{200}', '{1}' FROM counted CROSS JOIN subscriptions_subscriber s
 WHERE minute >= clock_timestamp() - interval '2 hours'
"""

Receivers = Sequence[tuple[int, int]]
"""Lines and their subscriptions."""


def finish(url: str, receivers: Receivers, event_type_id: int, *, count: int, days: Sequence[dt.date]) -> None:
    """Store `count` finished deliveries to `receivers`, with messages and attempts, spread over `days`."""
    for day in days:
        for statement in (MESSAGES, FINISHED, ATTEMPTS):
            _store(statement, url, receivers, event_type_id, count=count // len(days), day=day)


def store_open(
    url: str, receivers: Receivers, event_type_id: int, *, count: int, day: dt.date, attempts: int = 0
) -> None:
    """Store `count` open deliveries of messages of `day` to `receivers`; after attempts, they are in retry lines."""
    _store(OPEN, url, receivers, event_type_id, count=count, day=day, attempts=attempts)


def count_minutes(url: str, event_type_id: int, *, subscribers: int) -> None:
    """Store the live numbers of two days in which a delivery to each of all subscribers ended every minute."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(MINUTES, {"event_type": event_type_id, "subscribers": subscribers})
        connection.execute("VACUUM (ANALYZE) delivery_minutetotal, delivery_minutecount")


def settle_down(url: str) -> None:
    """Vacuum, analyze and checkpoint, as the database would after a while."""
    with psycopg.connect(url, autocommit=True) as connection:
        leaves = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhrelid <> 'delivery_open'::regclass"
            " AND inhrelid IN (SELECT oid FROM pg_class WHERE relkind = 'r')"
        ).fetchall()
        for (leaf,) in leaves:
            connection.execute(f"VACUUM (ANALYZE) {leaf}".encode())
        connection.execute("VACUUM delivery_open")
        connection.execute("CHECKPOINT")
    os.sync()


def _store(
    statement: LiteralString, url: str, receivers: Receivers, event_type_id: int, *, day: dt.date, **numbers: int
) -> None:
    arguments = {
        **numbers,
        "low": int(f"{day:%y%m%d}") * 10**10,
        "day": day,
        "lines": [line_id for line_id, _ in receivers],
        "subscriptions": [subscription_id for _, subscription_id in receivers],
        "receivers": len(receivers),
        "event_type": event_type_id,
        "fan_out": FAN_OUT,
        "bytes": BODY_BYTES,
    }
    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as connection:
        connection.execute(statement, arguments)
