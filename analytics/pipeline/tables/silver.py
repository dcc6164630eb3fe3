"""Silver: facts typed, deduplicated, joined."""

from typing import Final

from analytics.pipeline.tables.table import Table

WHOSE: Final = (
    "subscriber_id long, subscriber string, subscription_id long, endpoint string, event_type_id long,"
    " event_type string, kind string"
)
"""Names are empty where what they name has been deleted; of a reply to a callback there is no subscriber."""

SILVER_DELIVERIES: Final = Table(
    "silver",
    "deliveries",
    f"id long, message_id long, group_id long, sender int, {WHOSE}, status string, size int, attempts int,"
    " fetches int, times_set_aside int, due_at timestamp, sequence long, uncertain boolean, not_before timestamp,"
    " resubmit_of long, replay_id long, created_at timestamp, finished_at timestamp, latency_ms long",
    ("id",),
)
"""The finished and the unfinished; `finished_at` and `latency_ms` (since made, or due) are null for the latter."""
SILVER_ATTEMPTS: Final = Table(
    "silver",
    "attempts",
    f"id long, delivery_id long, message_id long, number int, {WHOSE}, started_at timestamp, ended_at timestamp,"
    " duration_ms int, next_at timestamp, status_code int, meaning string, error_class string,"
    " failed boolean, holds boolean",
    ("id",),
)
"""`error_class`: 2xx, 3xx, 4xx, 503, 5xx, other, or the kind of failure; `holds`: nothing may overtake meanwhile.

`next_at`: when its delivery was tried again, else when it ended; null where neither is known by the window's end.
"""
SILVER_MESSAGES: Final = Table(
    "silver",
    "messages",
    "id long, event_type_id long, event_type string, kind string, publisher_id long, publisher string, size int,"
    " outcome string, deliveries_count int, answers long, published_at timestamp",
    ("id",),
)

SILVER: Final = (SILVER_DELIVERIES, SILVER_ATTEMPTS, SILVER_MESSAGES)
