"""The statement that stores messages with their deliveries, for those all to be sent and for those with some held."""

from functools import cache
from typing import Final, LiteralString

MESSAGES: Final = """
WITH message AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS id, m.* FROM (
    SELECT * FROM unnest(%(body)b::bytea[]) WITH ORDINALITY AS b (body, position)
      JOIN json_to_recordset(%(messages)s::json)
        AS m (position bigint, event_type_id bigint, publisher_id bigint, content_type text, headers jsonb,
              filter_string text, outcome text, deliveries_count int)
     USING (position) ORDER BY position) m),
stored AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                outcome, deliveries_count, published_at)
  SELECT id, event_type_id, publisher_id, body, octet_length(body), content_type, headers, filter_string, outcome,
         deliveries_count, clock_timestamp() FROM message),
lined_up AS ("""

PENDING: Final = """
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
  SELECT m.id, l.id, d.subscription_id, 'PENDING', octet_length(m.body)
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, place)"""

SOME_HELD: Final = """
  INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, reason, due_at)
  SELECT m.id, l.id, d.subscription_id, CASE d.failure WHEN '' THEN 'PENDING' ELSE 'HELD' END, octet_length(m.body),
         d.failure, CASE WHEN d.failure <> '' THEN '9999-12-31 00:00:00+00'::timestamptz END
    FROM unnest(%(d_position)s::bigint[], %(d_subscription_id)s::bigint[], %(d_subscriber_id)s::bigint[],
                %(d_failure)s::text[])
      WITH ORDINALITY AS d (position, subscription_id, subscriber_id, failure, place)"""

LINES: Final = """
    JOIN message m ON m.position = d.position
    JOIN delivery_line l ON l.subscriber_id = d.subscriber_id AND l.lane = 'main'
   ORDER BY d.place
  RETURNING line_id, status)
SELECT position, id FROM message
UNION ALL
SELECT DISTINCT 0, line_id FROM lined_up WHERE status = 'PENDING'
"""


@cache
def store_statement(*, holds: bool) -> LiteralString:
    """Return the statement for messages of which some filter failed (behaviour 3.6), or none.

    Ids are given out in the order of the messages, and of each one's deliveries; returns both ids and the lines that
    have something to send.
    """
    return MESSAGES + (SOME_HELD if holds else PENDING) + LINES
