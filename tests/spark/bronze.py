"""What SQL says of a window, for each table of bronze: written apart from what Spark reads it with."""

from typing import Final, LiteralString

from analytics.pipeline import tables
from analytics.pipeline.tables import Table

OF_DELIVERIES: Final = """
  d.id, d.message_id, d.line_id, d.subscription_id, coalesce(s.event_type_id, m.event_type_id), d.group_id, d.status,
  d.size, d.attempts, d.fetches, d.status = 'EXPIRED' AND d.reason LIKE 'unread for %%', d.times_set_aside, d.due_at,
  d.sequence, d.uncertain, d.not_before, d.resubmit_of,
  d.replay_id, d.created_at"""
FROM_DELIVERIES: Final = """
  FROM delivery_delivery d LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
  LEFT JOIN delivery_message m ON m.id = d.message_id"""
UNENDED: Final = "d.created_at < %(end)s AND (d.finished_at IS NULL OR d.finished_at >= %(end)s)"

TRUTH: Final[dict[Table, LiteralString]] = {
    tables.DELIVERIES: f"""
      SELECT {OF_DELIVERIES}, d.finished_at {FROM_DELIVERIES}
       WHERE d.finished_at >= %(start)s AND d.finished_at < %(end)s""",
    tables.UNFINISHED: f"""
      SELECT {OF_DELIVERIES}, NULL {FROM_DELIVERIES}
       WHERE {UNENDED} AND (d.attempts > 0 OR d.sequence IS NOT NULL)""",
    tables.WAITING: f"""
      SELECT subscription_id, line_id, greatest(%(start)s, tick), count(*)
        FROM generate_series(%(start)s::timestamptz - interval '30 days', %(end)s, interval '5 min') tick
        JOIN delivery_delivery d ON d.created_at > tick - interval '5 min' AND d.created_at <= tick
       WHERE {UNENDED} GROUP BY 1, 2, 3""",
    tables.ATTEMPTS: """
      SELECT id, delivery_id, number, started_at, duration_ms, status_code, error, meaning FROM delivery_attempt
       WHERE started_at >= %(start)s AND started_at < %(end)s""",
    tables.MESSAGES: """
      SELECT id, event_type_id, publisher_id, size, outcome, deliveries_count, answers, published_at
        FROM delivery_message WHERE published_at >= %(start)s AND published_at < %(end)s""",
    tables.CALLBACKS: """
      SELECT id, event_type_id, created_at FROM delivery_callback
       WHERE created_at >= %(start)s AND created_at < %(end)s""",
    tables.SUBSCRIBERS: "SELECT id, name FROM subscriptions_subscriber",
    tables.SUBSCRIPTIONS: """
      SELECT id, subscriber_id, event_type_id, event_pattern, kind, delivery_mode, split_part(endpoint, '?', 1)
        FROM subscriptions_subscription""",
    tables.EVENT_TYPES: "SELECT id, name, kind FROM subscriptions_eventtype",
    tables.PUBLISHERS: "SELECT id, name FROM subscriptions_publisher",
    tables.LINES: """
      SELECT id, lane, subscriber_id, sender FROM delivery_line WHERE lane <> 'callback'""",
    tables.STATUS_CHANGES: """
      SELECT subscriber_id, subscription_id, at, status FROM subscriptions_statuschange WHERE at < %(end)s""",
    tables.RELEASES: """
      SELECT delivery_id, at, kind FROM delivery_lineevent
       WHERE kind IN ('RELEASED', 'RESUMED') AND delivery_id > 0 AND at < %(end)s""",
}
