"""Gold: summaries."""

from typing import Final

from analytics.pipeline.tables.table import Table

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
BACKLOG: Final = Table(
    "gold", "backlog", "at timestamp, subscriber_id long, subscriber string, deliveries long", ("at", "subscriber_id")
)
"""Unfinished deliveries at every fifth minute, where there were any."""
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
"""The ordering audit of what ended in an hour, in the order in which it was first sent (behaviour 4.10, 4.11).

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
