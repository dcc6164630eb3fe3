"""The statement that stores messages with their deliveries: all to be sent, some to wait, or some in QUEUE groups."""

from functools import cache
from typing import Final, LiteralString

from delivery.due_times_ import DUE_LATER, RELEASED

MESSAGES: Final = """
WITH message AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS id, m.*, clock_timestamp() + make_interval(secs => m.ttl) AS expires_at
    FROM (
    SELECT * FROM unnest(%(body)b::bytea[]) WITH ORDINALITY AS b (body, position)
      JOIN json_to_recordset(%(messages)s::json)
        AS m (position bigint, event_type_id bigint, publisher_id bigint, content_type text, headers jsonb,
              filter_string text, destination text, ttl float8, not_before timestamptz, copy_of bigint,
              outcome text, deliveries_count int)
     USING (position) ORDER BY position) m),
stored AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                destination, expires_at, not_before, copy_of, outcome, deliveries_count, published_at)
  SELECT id, event_type_id, publisher_id, body, octet_length(body), content_type, headers, filter_string, destination,
         expires_at, not_before, copy_of, outcome, deliveries_count, clock_timestamp() FROM message),"""

PENDING: Final = """
lined_up AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
  SELECT m.id, l.id, d.subscription_id, 'PENDING', octet_length(m.body)
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, place)"""

SOME_WAIT: Final = f"""
lined_up AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, reason, due_at, expires_at, not_before)
  SELECT m.id, l.id, d.subscription_id, CASE d.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END, octet_length(m.body),
         d.failure,
         CASE WHEN d.failure <> '' THEN {RELEASED} WHEN m.not_before > clock_timestamp() THEN {DUE_LATER} END,
         m.expires_at, m.not_before
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[],
                %(d_failure)s::text[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, failure, place)"""

LINES: Final = """
    JOIN message m ON m.position = d.position
    JOIN delivery_line l ON l.subscriber_id = d.subscriber_id AND l.lane = 'main'
   ORDER BY d.place
  RETURNING line_id, subscription_id, status)"""

SOME_GROUPED: Final = f"""
placed AS MATERIALIZED (
  SELECT nextval('delivery_delivery_id_seq') AS id, p.* FROM (
    SELECT m.id AS message_id, d.subscription_id, d.failure, d.number, octet_length(m.body) AS size,
           m.expires_at, m.not_before,
           CASE d.number
             WHEN 0 THEN (SELECT id FROM delivery_line WHERE subscriber_id = d.subscriber_id AND lane = 'main')
             ELSE (%(senders)s::bigint[])[1 + m.id %% cardinality(%(senders)s::bigint[])] END AS line_id,
           CASE WHEN d.failure <> '' THEN {RELEASED}
                WHEN m.not_before > clock_timestamp() THEN CASE d.number WHEN 0 THEN {DUE_LATER} ELSE m.not_before END
           END AS due_at
      FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[],
                  %(d_failure)s::text[], %(d_group)s::bigint[])
        WITH ORDINALITY AS d (position, subscription_id, subscriber_id, failure, number, place)
      JOIN message m ON m.position = d.position
     ORDER BY d.place) p),
grouped AS MATERIALIZED (
  SELECT min(id) AS id, number, message_id, line_id, size, due_at, array_agg(id ORDER BY id) AS delivery_ids
    FROM placed WHERE number > 0 GROUP BY number, message_id, line_id, size, due_at),
kept AS (
  INSERT INTO delivery_queuegroup (id, message_id, line_id, delivery_ids, size, due_at)
  SELECT id, message_id, line_id, delivery_ids, size, due_at FROM grouped ORDER BY id),
lined_up AS (
  INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, reason, due_at,
                             expires_at, not_before)
  SELECT p.id, p.message_id, p.line_id, p.subscription_id, g.id, CASE p.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END,
         p.size, p.failure, CASE WHEN p.number = 0 OR p.failure <> '' THEN p.due_at END, p.expires_at, p.not_before
    FROM placed p LEFT JOIN grouped g ON g.number = p.number
   ORDER BY p.id
  RETURNING line_id, subscription_id, status)"""
"""The ids first, since deliveries and groups name each other: a group has the id of its first delivery.

A group is delayed as a whole: order does not count there, so that it is simply due later.
"""

RESULT: Final = """
SELECT position, id FROM message
UNION ALL
SELECT DISTINCT 0, line_id FROM lined_up WHERE status = 'PENDING' AND subscription_id <> ALL (%(pulled)s::bigint[])
"""


@cache
def store_statement(*, waits: bool, groups: bool = False) -> LiteralString:
    """Return the statement for messages of which some are not just to be sent, or none; or some are QUEUE's.

    Some wait: their filter failed (behaviour 3.6), or they have a time to live or are delayed (behaviour 2.10, 2.13).

    Ids are given out in the order of the messages, and of each one's groups and deliveries; returns the messages' ids
    by position, and at 0 the lines that have something to send: those `pulled`
    are fetched from mailboxes.
    """
    if groups:
        return MESSAGES + SOME_GROUPED + RESULT
    return MESSAGES + (SOME_WAIT if waits else PENDING) + LINES + RESULT
