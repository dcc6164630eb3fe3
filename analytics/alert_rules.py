"""When an alert is due: one rule each, for the dashboard, health checks, published alerts and Prometheus."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Final

from delivery.limits import MAX_DUE

BEAT_SEEN: Final = timedelta(minutes=10)
"""Beat stores every three minutes when it last sent what it sends every 30 seconds."""
COUNTED: Final = timedelta(minutes=5)
"""The last minute that was counted is no older, unless something writes for long, or no worker counts."""
MIN_GROWN: Final = 1_000
"""A smaller backlog may grow: it is worked off in seconds."""


class AlertName(StrEnum):
    """The alerts, by the names that their rules have for Prometheus after `Broker`."""

    DELIVERY_WAITS = "DeliveryWaits"
    LINE_BLOCKED = "LineBlocked"
    TLS_FAILS = "TlsFails"
    DELIVERIES_FAIL = "DeliveriesFail"
    BACKLOG_GROWS = "BacklogGrows"
    WITHOUT_WORKERS = "WithoutWorkers"
    WITHOUT_REDIS = "WithoutRedis"
    WITHOUT_BEAT = "WithoutBeat"
    NUMBERS_LATE = "NumbersLate"
    SUMMARY_FAILED = "SummaryFailed"
    CLOCK_JUMPED = "ClockJumped"
    CLOCK_DIFFERS = "ClockDiffers"


SECONDS_BEFORE: Final = {
    AlertName.WITHOUT_WORKERS: 60,
    AlertName.WITHOUT_REDIS: 60,
    AlertName.WITHOUT_BEAT: 60,
    AlertName.NUMBERS_LATE: 60,
}
"""For how long a condition must have been met: a part that is started again is back sooner."""


@dataclass(frozen=True, slots=True)
class AlertThresholds:
    """What is too long, too often or too much."""

    waiting_seconds: int = 300
    blocked_seconds: int = 60
    failed_percent: int = 5
    growing_minutes: int = 10

    def is_late(self, since: datetime, now: datetime) -> bool:
        """Return whether a delivery that waits since then has waited for too long."""
        return now - since > timedelta(seconds=self.waiting_seconds)

    def is_blocked(self, since: datetime, now: datetime) -> bool:
        """Return whether a line that is held since then has been held for too long."""
        return now - since > timedelta(seconds=self.blocked_seconds)

    def is_failing(self, failed: int, eligible: int) -> bool:
        """Return whether too many of a subscriber's deliveries failed."""
        return failed * 100 > self.failed_percent * eligible

    def is_growing(self, due: Sequence[int], *, has_grown: bool = False) -> bool:
        """Return whether each of the last minutes ended with more due deliveries than the one before.

        `due` are the numbers that are known, counted to `MAX_DUE`: one that reaches it counts as growth.
        While some are unknown, a backlog that `has_grown` grows on until a known one says otherwise.
        """
        has_all = has_grown or len(due) > self.growing_minutes
        is_large = bool(due) and due[-1] >= MIN_GROWN
        return has_all and is_large and all(before < after or after >= MAX_DUE for before, after in pairwise(due))


def is_beat_missing(seen: datetime | None, now: datetime) -> bool:
    """Return whether beat has stored nothing for too long."""
    return seen is None or now - seen > BEAT_SEEN


def are_numbers_late(newest: datetime, now: datetime) -> bool:
    """Return whether the last minute that was counted is too old."""
    return now - newest > COUNTED
