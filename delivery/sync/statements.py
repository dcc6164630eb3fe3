"""The two statements of a SYNC call: one before its endpoint is asked, one that records all of it (behaviour 7.2).

And the one of a test event, of which nothing is recorded.
"""

from typing import Final

from delivery.due_times import FILE_GONE

CONFIGURED: Final = """s.id, s.version + u.version, s.endpoint, u.id, u.headers, s.headers, s.signing_secret,
       s.overlap_ends_at > clock_timestamp(), s.output, s.script"""
"""Where a subscription's requests go, and how they are signed."""

BEGIN: Final = f"""
WITH taken AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS message_id, nextval('delivery_delivery_id_seq') AS delivery_id),
kept AS MATERIALIZED (
  SELECT message_id, delivery_id, CASE WHEN pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()
                                       THEN pg_logical_emit_message(true, 'ids', '') END
    FROM taken)
SELECT message_id, delivery_id, clock_timestamp(),
       {CONFIGURED}
  FROM kept CROSS JOIN (SELECT %s::bigint) AS wanted (id)
  LEFT JOIN subscriptions_subscription s ON s.id = wanted.id
  LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
"""
"""The ids that the request bears, the time, and where it goes: nulls where there is no subscription, or no more.

Nothing is stored under the ids until there is an answer, and a statement that stores nothing waits for no log: had
PostgreSQL ended before it was written, it would give them to somebody else. So where there is something to be written,
something is stored after all: an empty message for nobody, which waits.
"""

REHEARSED: Final = f"""
SELECT {CONFIGURED}, COALESCE(t.sample, ''), COALESCE(t.content_type, '')
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_eventtype t ON t.id = s.event_type_id
 WHERE s.id = %s
"""
"""Where a test event goes, and what it is, whatever the subscription's status."""

RECORD: Final = f"""
WITH published AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                outcome, deliveries_count, published_at)
  SELECT %(message_id)s, %(event_type_id)s, %(publisher_id)s::bigint, body, octet_length(body), %(content_type)s,
         %(headers)s::jsonb, %(filter_string)s, %(outcome)s, (%(subscription_id)s::bigint IS NOT NULL)::int,
         %(published_at)s
    FROM (SELECT %(body)b::bytea) AS b (body)
  RETURNING id, size),
gone AS (
  SELECT %(delivery_id)s::bigint AS id, id AS message_id, NULL::bigint AS line_id,
         %(subscription_id)s::bigint AS subscription_id, NULL::bigint AS group_id, %(status)s AS status, size,
         %(attempts)s::int AS attempts, 0 AS times_set_aside, NULL::timestamptz AS due_at, NULL::bigint AS sequence,
         %(uncertain)s::bool AS uncertain, false AS cancel_requested, %(reason)s AS reason,
         %(published_at)s::timestamptz AS created_at, NULL::timestamptz AS expires_at,
         NULL::timestamptz AS not_before, NULL::bigint AS resubmit_of, NULL::bigint AS replay_id, 0 AS fetches,
         false AS unreceived
    FROM published WHERE %(subscription_id)s::bigint IS NOT NULL),
filed AS ({FILE_GONE})
INSERT INTO delivery_attempt (delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                              answer_excerpt)
SELECT id, attempts, created_at, %(duration_ms)s, %(status_code)s::int, %(error)s, %(answer_headers)b::bytea,
       %(answer_excerpt)b::bytea
  FROM gone WHERE attempts > 0
"""
"""The message, its delivery, final already, and the attempt: of them what there is."""
