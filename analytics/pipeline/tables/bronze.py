"""Bronze: facts as extracted."""

from typing import Final

from analytics.pipeline.tables.table import Table

DELIVERY_COLUMNS: Final = (
    "id long, message_id long, line_id long, subscription_id long, event_type_id long, group_id long, status string,"
    " size int, attempts int, fetches int, unread boolean, times_set_aside int, due_at timestamp, sequence long,"
    " uncertain boolean, not_before timestamp, resubmit_of long, replay_id long, created_at timestamp,"
    " finished_at timestamp"
)
"""`event_type_id` is the subscription's, or its message's for one by pattern and for the reply to a callback.

`fetches`: how often a mailbox handed it out; `unread`: whether it expired there. `resubmit_of`: the delivery that it
repeats; `replay_id`: the replay that made it, or the backfill if it repeats none.
"""

DELIVERIES: Final = Table("bronze", "deliveries", DELIVERY_COLUMNS, ("id",))
"""Those that ended in the window (by `finished_at`)."""
UNFINISHED: Final = Table("bronze", "unfinished", DELIVERY_COLUMNS, ("id",))
"""Those made before the window's end that had not ended by then, of which something was sent; `finished_at` null."""
ATTEMPTS: Final = Table(
    "bronze",
    "attempts",
    "id long, delivery_id long, number int, started_at timestamp, duration_ms int, status_code int, error string,"
    " meaning string",
    ("id",),
)
"""Those started in the window; `meaning`: what followed under a retry policy of its own, or in a retry line."""
MESSAGES: Final = Table(
    "bronze",
    "messages",
    "id long, event_type_id long, publisher_id long, size int, outcome string, deliveries_count int, answers long,"
    " published_at timestamp",
    ("id",),
)
"""Those published in the window, replies to callbacks among them (`answers`)."""
WAITING: Final = Table("bronze", "waiting", "subscription_id long, line_id long, since timestamp, deliveries long")
"""How many unfinished at the window's end were made in each five minutes, or before its start; the source counts."""
CALLBACKS: Final = Table("bronze", "callbacks", "id long, event_type_id long, created_at timestamp", ("id",))
"""Those made in the window."""
SUBSCRIBERS: Final = Table("bronze", "subscribers", "id long, name string", ("id",))
SUBSCRIPTIONS: Final = Table(
    "bronze",
    "subscriptions",
    "id long, subscriber_id long, event_type_id long, event_pattern string, kind string, delivery_mode string,"
    " endpoint string",
    ("id",),
)
"""`endpoint` without user, password, query and fragment."""
EVENT_TYPES: Final = Table("bronze", "event_types", "id long, name string, kind string", ("id",))
PUBLISHERS: Final = Table("bronze", "publishers", "id long, name string", ("id",))
LINES: Final = Table("bronze", "lines", "id long, lane string, subscriber_id long, sender int", ("id",))
"""Those of subscribers and senders; of callbacks there are as many as replies, and they say nothing."""
STATUS_CHANGES: Final = Table(
    "bronze", "status_changes", "subscriber_id long, subscription_id long, at timestamp, status string"
)
"""When subscriptions (or, without `subscription_id`, whole subscribers) were activated and inactivated.

Also when subscriptions were paused and went on, and when subscribers began or ceased to be sent to in order.
"""
RELEASES: Final = Table("bronze", "releases", "delivery_id long, at timestamp, kind string")
"""When deliveries that were HELD were RELEASED, or what became of one RESUMED its subscription: by lines' histories.

Both up to the window's end, since before the first of its deliveries was made.
"""

BRONZE: Final = (
    DELIVERIES,
    UNFINISHED,
    ATTEMPTS,
    MESSAGES,
    WAITING,
    CALLBACKS,
    SUBSCRIBERS,
    SUBSCRIPTIONS,
    EVENT_TYPES,
    PUBLISHERS,
    LINES,
    STATUS_CHANGES,
    RELEASES,
)
