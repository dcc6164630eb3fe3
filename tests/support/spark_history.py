"""Histories that Spark reads: rows of one day, and what SQL says about them."""

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, LiteralString

import psycopg
from django.db import connection
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame

from analytics.pipeline import tables
from analytics.pipeline.extraction.source import copied, slices
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table
from delivery.maintenance import partitions
from delivery.models import Attempt, Delivery, Lane, Line, Message, MessageOutcome
from delivery.statuses import DeliveryStatus
from subscriptions.models import Publisher, Subscription
from tests.support import factories

OF_DELIVERIES: Final = """
  d.id, d.message_id, d.line_id, d.subscription_id, coalesce(s.event_type_id, m.event_type_id), d.group_id, d.status,
  d.size, d.attempts, d.fetches, d.status = 'EXPIRED' AND d.reason LIKE 'unread for %%', d.times_deferred, d.due_at,
  d.sequence,
  CASE WHEN u.processing = 'KEYED'
       THEN md5(coalesce(d.ordering_key, CASE WHEN u.keyless_until > 0 AND d.group_id IS NULL THEN '' END)) END,
  d.uncertain, d.not_before, d.resubmit_of, d.replay_id, d.created_at"""
FROM_DELIVERIES: Final = """
  FROM delivery_delivery d LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
  LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN delivery_message m ON m.id = d.message_id"""
UNFINISHED: Final = "d.created_at < %(end)s AND (d.finished_at IS NULL OR d.finished_at >= %(end)s)"

UNTIL: Final = dt.datetime(2026, 5, 3, 2, 20, tzinfo=dt.UTC)
MIDNIGHT: Final = dt.datetime(2026, 5, 3, tzinfo=dt.UTC)
HOUR: Final = dt.timedelta(hours=1)
ONE_DAY: Final = dt.timedelta(days=1)

SLICE_ROWS: Final = 400

DAY: Final = dt.date(2026, 3, 2)
MORNING: Final = dt.datetime(2026, 3, 2, 7, 15, tzinfo=dt.UTC)
"""In the middle of an hour, and far from another day."""
SECOND: Final = dt.timedelta(seconds=1)

TRUTH: Final[dict[Table, LiteralString]] = {
    tables.DELIVERIES: f"""
      SELECT {OF_DELIVERIES}, d.finished_at {FROM_DELIVERIES}
       WHERE d.finished_at >= %(start)s AND d.finished_at < %(end)s""",
    tables.UNFINISHED: f"""
      SELECT {OF_DELIVERIES}, NULL {FROM_DELIVERIES}
       WHERE {UNFINISHED} AND (d.attempts > 0 OR d.sequence IS NOT NULL)""",
    tables.WAITING: f"""
      SELECT subscription_id, line_id, greatest(%(start)s, tick), count(*)
        FROM generate_series(%(start)s::timestamptz - interval '30 days', %(end)s, interval '5 min') tick
        JOIN delivery_delivery d ON d.created_at > tick - interval '5 min' AND d.created_at <= tick
       WHERE {UNFINISHED} GROUP BY 1, 2, 3""",
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

WINDOWS: Final = (
    Window(MIDNIGHT - ONE_DAY, MIDNIGHT),
    Window(MIDNIGHT - HOUR, MIDNIGHT),
    Window(MIDNIGHT, MIDNIGHT + HOUR),
    Window(MIDNIGHT + 2 * HOUR, MIDNIGHT + 3 * HOUR),
)
OVER_MIDNIGHT: Final = """
INSERT INTO delivery_attempt (id, delivery_id, number, started_at, duration_ms, error, answer_headers, answer_excerpt)
VALUES (2605030000000001, 1, 1, '2026-05-02 23:59:59.999999+00', 10, '', '', '');
INSERT INTO delivery_delivery (id, message_id, status, size, attempts, created_at, finished_at, closed_on)
VALUES (2605020000000001, 1, 'DELIVERED', 7, 1, '2026-05-02 23:59:58+00', '2026-05-03 00:00:00+00', '2026-05-02');
"""
"""An attempt settled after midnight, and a call filed on the day before."""


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in frame.toArrow().to_pylist())


def truth(connection: psycopg.Connection[Any], table: Table, window: Window) -> Counter[tuple[Any, ...]]:
    return Counter(connection.execute(TRUTH[table], {"start": window.start, "end": window.end}).fetchall())


def record_attempt(connection: psycopg.Connection[Any], id_: int, at: dt.datetime) -> None:
    connection.execute(
        "INSERT INTO delivery_attempt (id, number, started_at, duration_ms, error, answer_headers, answer_excerpt)"
        " VALUES (%s, 1, %s, 1, '', '', '')",
        [id_, at],
    )


def record_message(connection: psycopg.Connection[Any], id_: int, at: dt.datetime) -> None:
    connection.execute(
        "INSERT INTO delivery_message (id, body, size, content_type, headers, outcome, deliveries_count, published_at)"
        " VALUES (%s, '', 0, 'text/plain', '[]', 'ROUTED', 0, %s)",
        [id_, at],
    )


def record_delivery(
    connection: psycopg.Connection[Any],
    id_: int,
    ended: dt.datetime,
    closed_on: dt.date,
    made: dt.datetime | None = None,
) -> None:
    connection.execute(
        "INSERT INTO delivery_delivery (id, status, size, attempts, created_at, finished_at, closed_on)"
        " VALUES (%s, 'DELIVERED', 7, 1, %s, %s, %s)",
        [id_, made or ended, ended, closed_on],
    )


def read_here(connection: psycopg.Connection[Any], table: Table, window: Window) -> Counter[tuple[Any, ...]]:
    """Return the rows of a window's slices, without Spark."""
    queries = slices(connection, table, window, SLICE_ROWS)
    batches = (batch for query in queries for batch in copied(database_address(), table, query))
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())


@dataclass
class Traffic:
    """One publisher, one subscription, and what went from the one to the other."""

    publisher: Publisher = field(default_factory=factories.publisher)
    subscription: Subscription = field(default_factory=factories.subscription)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        partitions.open_days(DAY, ahead=1)
        self.line, _ = Line.objects.get_or_create(subscriber=self.subscription.subscriber, lane=Lane.MAIN)

    def delivered(self, at: dt.datetime = MORNING, *, answers: tuple[int, ...] = (200,)) -> Delivery:
        """Store a message published at an instant, and its attempts, a second apart; the last answer ends it."""
        number = partitions.first_id(at.date()) + next(self._numbers)
        message = Message.objects.create(
            id=number,
            body=b"{}",
            size=2,
            content_type="application/json",
            deliveries_count=1,
            event_type=self.subscription.event_type,
            publisher=self.publisher,
            outcome=MessageOutcome.ROUTED,
            published_at=at,
        )
        status = DeliveryStatus.DELIVERED if answers[-1] == 200 else DeliveryStatus.REJECTED
        ended = at + SECOND * len(answers)
        delivery = Delivery.objects.create(
            id=number,
            message=message,
            line=self.line,
            subscription=self.subscription,
            status=status,
            size=message.size,
            attempts=len(answers),
            sequence=number,
            created_at=at,
            finished_at=ended,
            closed_on=ended.date(),
        )
        for nth, answer in enumerate(answers):
            made = {"id": partitions.first_id(at.date()) + next(self._numbers), "started_at": at + SECOND * nth}
            Attempt.objects.create(**made, delivery=delivery, number=nth + 1, duration_ms=20, status_code=answer)
        return delivery


def empty_day() -> None:
    for model in (Attempt, Delivery, Message):
        model.objects.all().delete()


def database_address() -> str:
    there = connection.settings_dict
    address = {name.lower(): there[name] for name in ("USER", "PASSWORD", "HOST", "PORT")}
    return make_conninfo(dbname=there["NAME"], **address)
