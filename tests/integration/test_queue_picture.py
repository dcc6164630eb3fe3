"""The planner's picture of the queues is that of the migration, whoever has them analysed later, and when."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from delivery.models import Delivery, QueueGroup
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.driving import publish_bodies

QUEUES = [
    "delivery_open",
    "delivery_queuegroup",
    "delivery_pageread",
    "delivery_announcement",
    "delivery_open_expiring",
]
PICTURE = """
SELECT tablename, attname, round(null_frac::numeric, 1) FROM pg_stats WHERE tablename = ANY (%s) ORDER BY 1, 2
"""
ONE_KIND = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, due_at, fetches, fetched_until)
SELECT n, %(line)s, %(subscription)s, 'IN_FLIGHT', 2, timestamptz '9999-12-28 00:00:00+00', 1, now()
  FROM generate_series(1, 5000) n
"""


def asked(statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments)
        answer: list[tuple[Any, ...]] = cursor.fetchall()
        return answer


@pytest.fixture
def jobs(storage: None) -> EventType:
    kind = factories.event_type(kind=EventKind.QUEUE)
    factories.subscription(event_type=kind)
    publish_bodies(kind, b"1", b"2")
    return kind


def analysed() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE delivery_open, delivery_queuegroup, delivery_pageread, delivery_announcement")


def forgotten_and_taken_again() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT delivery_gather_statistics(-1)")
        cursor.execute("ANALYZE delivery_open, delivery_queuegroup, delivery_pageread")
        cursor.execute("SELECT delivery_picture_queues()")


@pytest.mark.behaviour("11.4")
@pytest.mark.parametrize("what", [analysed, forgotten_and_taken_again], ids=lambda one: one.__name__)
def test_the_queues_are_planned_for_as_they_were_pictured_once(jobs: EventType, what: Callable[[], None]) -> None:
    before = asked(PICTURE, QUEUES)
    waiting = [(one.id, one.due_at) for one in Delivery.objects.open().order_by("id")]
    subscription = Subscription.objects.get()
    line = asked("SELECT min(id) FROM delivery_line")[0][0]
    with connection.cursor() as cursor:
        cursor.execute(ONE_KIND, {"line": line, "subscription": subscription.pk})
        analysed()
        cursor.execute("DELETE FROM delivery_open WHERE status = 'IN_FLIGHT'")
    what()
    assert {table for table, *_ in before} >= {"delivery_open", "delivery_queuegroup", "delivery_pageread"}
    assert asked(PICTURE, QUEUES) == before
    assert [(one.id, one.due_at) for one in Delivery.objects.open().order_by("id")] == waiting
    assert QueueGroup.objects.count() == len(waiting) == 2
    with pytest.raises(IntegrityError), transaction.atomic():
        asked("DELETE FROM subscriptions_subscription RETURNING id")
