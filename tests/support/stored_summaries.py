"""Summaries as a run would have loaded them."""

import datetime as dt
import math
from typing import Any

from django.db import connection

from analytics.models import rows_of
from analytics.pipeline.job import Window
from analytics.pipeline.load import add_up
from analytics.pipeline.quantiles import GROWTH, MAX_MS, ZERO_BUCKET
from analytics.pipeline.tables import (
    ANOMALIES,
    AUDIT,
    BACKLOG,
    BUDGETS,
    CALLBACKS_SUMMARY,
    ENDPOINTS,
    FINDINGS,
    LATENCY,
    RELIABILITY,
    SENDERS,
    SHARES,
    VOLUME,
)
from analytics.windows import Range

NOON = dt.datetime(2026, 5, 4, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
TODAY = Range(NOON - 12 * HOUR, NOON + 12 * HOUR)

BILLING: dict[str, Any] = {"subscriber_id": 1, "subscriber": "Billing"}
MAILER: dict[str, Any] = {"subscriber_id": 2, "subscriber": "Mailer"}
CREATED: dict[str, Any] = {"event_type_id": 7, "event_type": "Created"}


def bucket_of(ms: int) -> int:
    return math.ceil(math.log(min(ms, MAX_MS)) / math.log(GROWTH)) if ms > 0 else ZERO_BUCKET


def reliability(hour: dt.datetime, owner: dict[str, Any], **by_status: int) -> None:
    ended, delivered = sum(by_status.values()), by_status.get("DELIVERED", 0)
    eligible = ended - by_status.get("REDUNDANT", 0)
    counts = {"deliveries": ended, "eligible": eligible, "delivered": delivered, "first_attempt": delivered // 2}
    row = {"hour": hour, **owner, **CREATED, "kind": "TOPIC", "attempts": ended, "by_status": by_status}
    rows_of(RELIABILITY).create(**row, **counts)
    _add_up(hour)


def latency(
    hour: dt.datetime, histogram: dict[int, int], measure: str = "delivery", owner: dict[str, Any] = BILLING
) -> None:
    quantiles = dict.fromkeys(("p50_ms", "p90_ms", "p95_ms", "p99_ms"), 0.0)
    counts = {"count": sum(histogram.values()), "max_ms": 0, "histogram": histogram}
    rows_of(LATENCY).create(hour=hour, **owner, **CREATED, kind="TOPIC", measure=measure, **quantiles, **counts)
    _add_up(hour)


def backlog(at: dt.datetime, owner: dict[str, Any], deliveries: int) -> None:
    rows_of(BACKLOG).create(at=at, **owner, deliveries=deliveries)
    _add_up(at.replace(minute=0))


def endpoint(hour: dt.datetime, subscription_id: int | None, held_seconds: float = 0.0, **by_class: int) -> None:
    attempts = sum(by_class.values())
    row = {"hour": hour, **BILLING, "subscription_id": subscription_id, "event_type": "Created", "kind": "TOPIC"}
    failures = attempts - by_class.get("2xx", 0)
    counts = {"attempts": attempts, "retries": 1, "failures": failures, "held_seconds": held_seconds}
    rows_of(ENDPOINTS).create(**row, **counts, endpoint=f"https://{subscription_id}.example", by_class=by_class)


def _add_up(hour: dt.datetime) -> None:
    with connection.cursor() as cursor:
        add_up(cursor.cursor, Window(hour, hour + HOUR))


def store_one_row_of_each() -> None:
    """Give every summary a row of noon."""
    reliability(NOON, BILLING, DELIVERED=8, REJECTED=1, REDUNDANT=1)
    latency(NOON, {0: 1, 100: 9})
    endpoint(NOON, 4, 90.0, **{"2xx": 8, "503": 2})
    backlog(NOON, BILLING, 3)
    rows_of(VOLUME).create(hour=NOON, publisher="shop", **CREATED, messages=5, bytes=2048, deliveries=9)
    rows_of(SENDERS).create(hour=NOON, sender=0, messages=3, deliveries=3)
    row = {"hour": NOON, "group_of": 4, "subscription_id": 4, **BILLING, "event_type": "Render"}
    rows_of(SHARES).create(**row, endpoint="https://four.example", deliveries=2, delivered=1, redundant=1)
    rows_of(CALLBACKS_SUMMARY).create(hour=NOON, **CREATED, asked=3, answered=2, forwarded=1)
    rows_of(AUDIT).create(
        **{"hour": NOON, **BILLING, "checked": 10, "inversions": 2, "explained_inversions": 1},
        duplicates=1,
        explained_duplicates=1,
    )
    rows_of(FINDINGS).create(hour=NOON, at=NOON, **BILLING, finding="inversion", delivery_id=5, other_id=6)
    budget = {"eligible": 9, "bad": 1, "objective": 0.999, "eligible_28": 5000, "bad_28": 2, "spent": 0.4}
    rows_of(BUDGETS).create(day=NOON.date(), **BILLING, **budget)
    unusual = {"value": 0.25, "median": 0.01, "spread": 0.01, "score": 16.2, "past": 28}
    rows_of(ANOMALIES).create(hour=NOON, **BILLING, metric="failure_rate", **unusual)
