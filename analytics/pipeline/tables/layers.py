"""The tables of each layer: bronze (facts as extracted), silver (typed and joined), gold (summaries)."""

from typing import Final

from analytics.pipeline.tables.table import Table

WAITING: Final = Table("bronze", "waiting", "subscription_id long, line_id long, since timestamp, deliveries long")
"""How many unfinished at the window's end were made in each five minutes, or before its start; the source counts."""
CALLBACKS: Final = Table("bronze", "callbacks", "id long, event_type_id long, created_at timestamp", ("id",))
"""Those made in the window."""
SUBSCRIBERS: Final = Table("bronze", "subscribers", "id long, name string", ("id",))


EVENT_TYPES: Final = Table("bronze", "event_types", "id long, name string, kind string", ("id",))
PUBLISHERS: Final = Table("bronze", "publishers", "id long, name string", ("id",))
LINES: Final = Table("bronze", "lines", "id long, lane string, subscriber_id long, sender int", ("id",))
"""Those of subscribers and senders; of callbacks there are as many as replies, and they say nothing."""


RELEASES: Final = Table("bronze", "releases", "delivery_id long, at timestamp, kind string")
"""When deliveries that were HELD were RELEASED, or what became of one RESUMED its subscription: by lines' histories.

Both up to the window's end, since before the first of its deliveries was made.
"""

WHOSE: Final = (
    "subscriber_id long, subscriber string, subscription_id long, endpoint string, event_type_id long,"
    " event_type string, kind string"
)
"""Names are empty where what they name has been deleted; of a reply to a callback there is no subscriber."""

BACKLOG: Final = Table(
    "gold", "backlog", "at timestamp, subscriber_id long, subscriber string, deliveries long", ("at", "subscriber_id")
)
"""Unfinished deliveries at every fifth minute, where there were any."""

DELIVERY_COLUMNS: Final = (
    "id long, message_id long, line_id long, subscription_id long, event_type_id long, group_id long, status string,"
    " size int, attempts int, fetches int, unread boolean, times_deferred int, due_at timestamp, sequence long,"
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


SUBSCRIPTIONS: Final = Table(
    "bronze",
    "subscriptions",
    "id long, subscriber_id long, event_type_id long, event_pattern string, kind string, delivery_mode string,"
    " endpoint string",
    ("id",),
)
"""`endpoint` without user, password, query and fragment."""


STATUS_CHANGES: Final = Table(
    "bronze", "status_changes", "subscriber_id long, subscription_id long, at timestamp, status string"
)
"""When subscriptions (or, without `subscription_id`, whole subscribers) were activated and inactivated.

Also when subscriptions were paused and went on, and when subscribers began or ceased to be sent to in order.
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

SILVER_DELIVERIES: Final = Table(
    "silver",
    "deliveries",
    f"id long, message_id long, group_id long, sender int, {WHOSE}, status string, size int, attempts int,"
    " fetches int, times_deferred int, due_at timestamp, sequence long, uncertain boolean, not_before timestamp,"
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

RELIABILITY: Final = Table(
    "gold",
    "reliability",
    "hour timestamp, subscriber_id long, subscriber string, event_type_id long, event_type string, kind string,"
    " deliveries long, delivered long, eligible long, first_attempt long, attempts long, by_status map<string,long>",
    ("hour", "subscriber_id", "event_type_id", "kind"),
)
"""Deliveries by the hour they ended: `eligible` are all but the neutral, `first_attempt` those delivered at once."""
LATENCY: Final = Table(
    "gold",
    "latency",
    "hour timestamp, subscriber_id long, subscriber string, event_type_id long, event_type string, kind string,"
    " measure string, count long, p50_ms double, p90_ms double, p95_ms double, p99_ms double, max_ms long,"
    " histogram map<int,long>",
    ("hour", "subscriber_id", "event_type_id", "kind", "measure"),
)
"""`measure`: `delivery` (published to delivered), `mailbox` (to acknowledged) or `attempt` (how long an endpoint took).

Quantiles of `histogram`.
"""
ENDPOINTS: Final = Table(
    "gold",
    "endpoints",
    "hour timestamp, subscription_id long, subscriber_id long, subscriber string, event_type string, endpoint string,"
    " kind string, attempts long, retries long, failures long, held_seconds double, by_class map<string,long>",
    ("hour", "subscription_id", "subscriber_id", "event_type", "kind"),
)
"""Attempts by the hour they started; `held_seconds`: how long in the hour nothing could overtake before the next."""


VOLUME: Final = Table(
    "gold",
    "volume",
    "hour timestamp, publisher_id long, publisher string, event_type_id long, event_type string, kind string,"
    " messages long, bytes long, deliveries long, by_outcome map<string,long>",
    ("hour", "publisher_id", "event_type_id"),
)
"""What was published (replies to callbacks are not)."""
SENDERS: Final = Table(
    "gold",
    "senders",
    "hour timestamp, sender int, messages long, deliveries long, by_status map<string,long>",
    ("hour", "sender"),
)
"""What each QUEUE sender ended: `messages` that were taken by somebody."""
SHARES: Final = Table(
    "gold",
    "shares",
    "hour timestamp, group_of long, subscription_id long, subscriber_id long, subscriber string, event_type string,"
    " endpoint string, deliveries long, delivered long, redundant long",
    ("hour", "group_of", "subscription_id"),
)
"""What each endpoint took of its QUEUE group; a group goes by its first subscription, `group_of`."""
CALLBACKS_SUMMARY: Final = Table(
    "gold",
    "callbacks",
    "hour timestamp, event_type_id long, event_type string, asked long, answered long, forwarded long",
    ("hour", "event_type_id"),
)
AUDIT: Final = Table(
    "gold",
    "audit",
    "hour timestamp, subscriber_id long, subscriber string, checked long, inversions long, explained_inversions long,"
    " duplicates long, explained_duplicates long, high_id long, high_sequence long, high_created_at timestamp",
    ("hour", "subscriber_id"),
)
"""The ordering audit of what ended in an hour, in the order in which it was first sent (contract 4.10, 4.11).

`high_…`: of those the one with the greatest id, which what ends in later windows is compared with.
"""
FINDINGS: Final = Table(
    "gold",
    "findings",
    "hour timestamp, at timestamp, subscriber_id long, subscriber string, finding string, delivery_id long,"
    " other_id long, explanation string",
    ("finding", "delivery_id", "other_id"),
)
"""Each inversion and duplicate of it; `explanation` is empty where there is none, which must not be."""
BUDGETS: Final = Table(
    "gold",
    "budgets",
    "day date, subscriber_id long, subscriber string, eligible long, bad long, objective double,"
    " eligible_28 long, bad_28 long, spent double",
    ("day", "subscriber_id"),
)
"""Error budgets: of the day, and of the 28 days up to it; `spent`: share of what may fail, 1.0 when all is spent."""
ANOMALIES: Final = Table(
    "gold",
    "anomalies",
    "hour timestamp, subscriber_id long, subscriber string, metric string, value double, median double,"
    " spread double, score double, past int",
    ("hour", "subscriber_id", "metric"),
)
"""Hours far from the same hour of the last four weeks: `score` is the robust z."""

HOURLY: Final = (
    RELIABILITY,
    LATENCY,
    ENDPOINTS,
    BACKLOG,
    VOLUME,
    SENDERS,
    SHARES,
    CALLBACKS_SUMMARY,
    AUDIT,
    FINDINGS,
)
"""Made of one window each."""
DAILY: Final = (BUDGETS, ANOMALIES)
"""Made of all that is known of a day, and of the days before."""

GOLD: Final = HOURLY + DAILY
