"""The tables of the lake: bronze (facts as extracted), silver (typed and joined), gold (summaries).

The Django model, the API resource and the downloads of a summary are made of its table here. What its columns mean is
said in docs/reference/summaries.md.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one layer."""

    path: str
    """The folder below the lake's root: `layer/name`."""
    columns: str
    """A Spark DDL schema."""
    key: tuple[str, ...] = ()
    """The columns that are unique within a window, or within a day for daily tables; empty: not checked."""
    description: str = ""
    """What one row is; of summaries, the API shows it."""

    @property
    def name(self) -> str:
        """The name, which another layer may have too."""
        return self.path.partition("/")[2]

    @property
    def types(self) -> dict[str, str]:
        """The Spark type of each column, in order."""
        return dict(column.split(" ", 1) for column in self.columns.split(", "))

    @property
    def time(self) -> str:
        """The first column, which in summaries says which window or day a row belongs to."""
        return self.columns.partition(" ")[0]

    @property
    def db_table(self) -> str:
        """The table of PostgreSQL that a summary is loaded into."""
        return f"analytics_{self.name}"


OWNER_COLUMNS: Final = (
    "subscriber_id long, subscriber string, subscription_id long, endpoint string, event_type_id long,"
    " event_type string, kind string"
)
"""Names are empty where what they name has been deleted; the reply to a callback has no subscriber."""

DELIVERY_COLUMNS: Final = (
    "id long, message_id long, line_id long, subscription_id long, event_type_id long, group_id long, status string,"
    " size int, attempts int, fetches int, unread boolean, times_deferred int, due_at timestamp, sequence long,"
    " ordering_key string, uncertain boolean, not_before timestamp, resubmit_of long, replay_id long,"
    " created_at timestamp, finished_at timestamp"
)
"""`event_type_id` is the subscription's; of pattern subscriptions and replies to callbacks, the message's.

`fetches`: how often a mailbox handed it out; `unread`: whether it expired there. `resubmit_of`: the delivery that it
repeats; `replay_id`: the replay that made it, or the backfill if it repeats none. `ordering_key`: a hash of
the key within which its order counts; null unless its subscriber was KEYED when it ended.
"""

DELIVERIES: Final = Table("bronze/deliveries", DELIVERY_COLUMNS, ("id",))
"""Those that ended in the window (by `finished_at`)."""
UNFINISHED: Final = Table("bronze/unfinished", DELIVERY_COLUMNS, ("id",))
"""Those created before the window's end, unfinished then, and attempted at least once; `finished_at` null."""
ATTEMPTS: Final = Table(
    "bronze/attempts",
    "id long, delivery_id long, number int, started_at timestamp, duration_ms int, status_code int, error string,"
    " meaning string",
    ("id",),
)
"""Those started in the window; `meaning`: what followed under a retry policy of its own, or in a retry lane."""
MESSAGES: Final = Table(
    "bronze/messages",
    "id long, event_type_id long, publisher_id long, size int, outcome string, deliveries_count int, answers long,"
    " published_at timestamp",
    ("id",),
)
"""Those published in the window, with the replies to callbacks (`answers`)."""
WAITING: Final = Table("bronze/waiting", "subscription_id long, line_id long, since timestamp, deliveries long")
"""How many deliveries unfinished at the window's end were created in each five minutes, or before its start."""
CALLBACKS: Final = Table("bronze/callbacks", "id long, event_type_id long, created_at timestamp", ("id",))
"""Those created in the window."""
SUBSCRIBERS: Final = Table("bronze/subscribers", "id long, name string", ("id",))
SUBSCRIPTIONS: Final = Table(
    "bronze/subscriptions",
    "id long, subscriber_id long, event_type_id long, event_pattern string, kind string, delivery_mode string,"
    " endpoint string",
    ("id",),
)
"""`endpoint` without user, password, query and fragment."""
EVENT_TYPES: Final = Table("bronze/event_types", "id long, name string, kind string", ("id",))
PUBLISHERS: Final = Table("bronze/publishers", "id long, name string", ("id",))
LINES: Final = Table("bronze/lines", "id long, lane string, subscriber_id long, sender int", ("id",))
"""Those of subscribers and senders. Callbacks have one each, which says nothing."""
STATUS_CHANGES: Final = Table(
    "bronze/status_changes", "subscriber_id long, subscription_id long, at timestamp, status string"
)
"""When subscriptions (or, without `subscription_id`, whole subscribers) were activated, inactivated, paused or resumed.

Also when subscribers changed between serial, concurrent and keyed delivery.
"""
RELEASES: Final = Table("bronze/releases", "delivery_id long, at timestamp, kind string")
"""When HELD deliveries were RELEASED, and when the end of a delivery RESUMED its subscription (from line histories).

Both up to the window's end, from before the first of its deliveries was created.
"""

SILVER_DELIVERIES: Final = Table(
    "silver/deliveries",
    f"id long, message_id long, group_id long, sender int, {OWNER_COLUMNS}, status string, size int, attempts int,"
    " fetches int, times_deferred int, due_at timestamp, sequence long, ordering_key string, uncertain boolean,"
    " not_before timestamp, resubmit_of long, replay_id long, created_at timestamp, finished_at timestamp,"
    " latency_ms long",
    ("id",),
)
"""Finished and unfinished; `finished_at` and `latency_ms` (since created, or due) are null for unfinished ones."""
SILVER_ATTEMPTS: Final = Table(
    "silver/attempts",
    f"id long, delivery_id long, message_id long, number int, {OWNER_COLUMNS}, started_at timestamp,"
    " ended_at timestamp, duration_ms int, next_at timestamp, status_code int, meaning string, error_class string,"
    " failed boolean, holds boolean",
    ("id",),
)
"""`error_class`: 2xx, 3xx, 4xx, 503, 5xx, other, or the kind of failure; `holds`: nothing may overtake meanwhile.

`next_at`: when its delivery was tried again, else when it ended; null where neither is known by the window's end.
"""
SILVER_MESSAGES: Final = Table(
    "silver/messages",
    "id long, event_type_id long, event_type string, kind string, publisher_id long, publisher string, size int,"
    " outcome string, deliveries_count int, answers long, published_at timestamp",
    ("id",),
)

RELIABILITY: Final = Table(
    "gold/reliability",
    "hour timestamp, subscriber_id long, subscriber string, event_type_id long, event_type string, kind string,"
    " deliveries long, delivered long, eligible long, first_attempt long, attempts long, by_status map<string,long>",
    ("hour", "subscriber_id", "event_type_id", "kind"),
    "How one subscriber's deliveries of one event type ended in one hour.",
)
LATENCY: Final = Table(
    "gold/latency",
    "hour timestamp, subscriber_id long, subscriber string, event_type_id long, event_type string, kind string,"
    " measure string, count long, p50_ms double, p90_ms double, p95_ms double, p99_ms double, max_ms long,"
    " histogram map<int,long>",
    ("hour", "subscriber_id", "event_type_id", "kind", "measure"),
    "How long deliveries or attempts of one subscriber and event type took in one hour.",
)
ENDPOINTS: Final = Table(
    "gold/endpoints",
    "hour timestamp, subscription_id long, subscriber_id long, subscriber string, event_type string, endpoint string,"
    " kind string, attempts long, retries long, failures long, held_seconds double, by_class map<string,long>",
    ("hour", "subscription_id", "subscriber_id", "event_type", "kind"),
    "What one subscription's endpoint answered in one hour.",
)
BACKLOG: Final = Table(
    "gold/backlog",
    "at timestamp, subscriber_id long, subscriber string, deliveries long",
    ("at", "subscriber_id"),
    "How many of one subscriber's deliveries were unfinished at one moment.",
)
VOLUME: Final = Table(
    "gold/volume",
    "hour timestamp, publisher_id long, publisher string, event_type_id long, event_type string, kind string,"
    " messages long, bytes long, deliveries long, by_outcome map<string,long>",
    ("hour", "publisher_id", "event_type_id"),
    "What one publisher published of one event type in one hour.",
)
SENDERS: Final = Table(
    "gold/senders",
    "hour timestamp, sender int, messages long, deliveries long, by_status map<string,long>",
    ("hour", "sender"),
    "What one QUEUE sender ended in one hour.",
)
SHARES: Final = Table(
    "gold/shares",
    "hour timestamp, group_of long, subscription_id long, subscriber_id long, subscriber string, event_type string,"
    " endpoint string, deliveries long, delivered long, redundant long",
    ("hour", "group_of", "subscription_id"),
    "What one endpoint took of its QUEUE group in one hour.",
)
CALLBACKS_SUMMARY: Final = Table(
    "gold/callbacks",
    "hour timestamp, event_type_id long, event_type string, asked long, answered long, forwarded long",
    ("hour", "event_type_id"),
    "Callbacks of one event type in one hour: asked for, answered, their replies forwarded.",
)
AUDIT: Final = Table(
    "gold/audit",
    "hour timestamp, subscriber_id long, subscriber string, checked long, inversions long, explained_inversions long,"
    " duplicates long, explained_duplicates long, high_id long, high_sequence long, high_created_at timestamp",
    ("hour", "subscriber_id"),
    "What the ordering audit found among one subscriber's deliveries that ended in one hour.",
)
FINDINGS: Final = Table(
    "gold/findings",
    "hour timestamp, at timestamp, subscriber_id long, subscriber string, finding string, delivery_id long,"
    " other_id long, explanation string",
    ("finding", "delivery_id", "other_id"),
    "One delivery sent before an earlier one, or twice; `explanation` is empty where the contract has none.",
)
BUDGETS: Final = Table(
    "gold/budgets",
    "day date, subscriber_id long, subscriber string, eligible long, bad long, objective double,"
    " eligible_28 long, bad_28 long, spent double",
    ("day", "subscriber_id"),
    "One subscriber's error budget on one day, and of the 28 days up to it.",
)
ANOMALIES: Final = Table(
    "gold/anomalies",
    "hour timestamp, subscriber_id long, subscriber string, metric string, value double, median double,"
    " spread double, score double, past int",
    ("hour", "subscriber_id", "metric"),
    "One measure of one subscriber that is far from the same hour of the last four weeks.",
)

BRONZE: Final = (
    *(DELIVERIES, UNFINISHED, ATTEMPTS, MESSAGES, WAITING, CALLBACKS, SUBSCRIBERS),
    *(SUBSCRIPTIONS, EVENT_TYPES, PUBLISHERS, LINES, STATUS_CHANGES, RELEASES),
)
SILVER: Final = (SILVER_DELIVERIES, SILVER_ATTEMPTS, SILVER_MESSAGES)
HOURLY: Final = (
    *(RELIABILITY, LATENCY, ENDPOINTS, BACKLOG, VOLUME, SENDERS),
    *(SHARES, CALLBACKS_SUMMARY, AUDIT, FINDINGS),
)
"""Computed from one window each."""
DAILY: Final = (BUDGETS, ANOMALIES)
"""Computed from all that is known of a day and of the 28 days before."""
GOLD: Final = HOURLY + DAILY
