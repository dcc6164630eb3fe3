"""What a slice of a replay reads: as much as it is of, however much lies beside and before it."""

import datetime as dt
import os

import pytest
from django.db import connection

from benchmarks import filling
from delivery.again.replaying import begin, go_on
from delivery.again.selecting import Selection
from delivery.models import Delivery, Replay
from delivery.retention.storage_days import open_days, today
from subscriptions.models import Subscription
from tests.driving import line_of
from tests.factories import event_type, subscriber, subscription
from tests.plans import explaining, too_much

FINISHED, RECEIVERS, DAYS = 60_000, 20, 5
SLICE_ROWS = 40_000
"""A slice meets a thousand old deliveries, and their messages a few times over."""


@pytest.fixture
def history(storage: None) -> list[Subscription]:
    """Sixty thousand deliveries of five days, to twenty subscribers."""
    kind = event_type()
    made = [subscription(subscriber(), kind) for _ in range(RECEIVERS)]
    days = [today() - dt.timedelta(days=number) for number in range(DAYS, 0, -1)]
    for day in days:
        open_days(day, ahead=0)
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    url = f"{base}/{connection.settings_dict['NAME']}"
    receivers = [(line_of(one.subscriber).pk, one.pk) for one in made]
    filling.finish(url, receivers, kind.pk, count=FINISHED, days=days)
    filling.settle_down(url)
    return made


def start(one: Subscription, status: str) -> Replay:
    return begin(Selection(one.subscriber_id, [one.pk], [status]), pace=None, subscription_id=one.pk, created_by="")


@pytest.mark.behaviour("5.8")
@pytest.mark.parametrize(("status", "made", "most_rows"), [("DELIVERED", 1_000, SLICE_ROWS), ("REJECTED", 0, 100)])
def test_a_slice_reads_along_indexes(
    history: list[Subscription], monkeypatch: pytest.MonkeyPatch, status: str, made: int, most_rows: int
) -> None:
    start(history[0], status)
    with explaining(monkeypatch) as statements:
        go_on()
    assert too_much(statements, most_rows) == []
    assert Delivery.objects.open().count() == made
