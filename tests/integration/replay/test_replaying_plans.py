"""What a slice of a replay reads: as much as it is of, however much lies beside and before it."""

import datetime as dt
import os

import pytest
from django.db import connection
from django.db.models.functions import Now

from benchmarks import filling
from delivery.maintenance.partitions import open_days, today
from delivery.models import Delivery, Message, Replay, ReplayState
from delivery.replay import backfill_job
from delivery.replay.replay_job import SLICE, begin, go_on
from delivery.replay.selection import Selection
from subscriptions.models import Status, Subscription
from tests.support.factories import event_type, subscriber, subscription
from tests.support.query_plans import explaining, too_much
from tests.support.worker import line_of, publish_numbered

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


def start(*chosen: Subscription, status: str, more: tuple[str, ...] = (), pace: int | None = None) -> None:
    selection = Selection(chosen[0].subscriber_id, [one.pk for one in chosen], [status, *more])
    begin(selection, pace=pace, subscription_id=None, created_by="")


@pytest.mark.behaviour("5.8")
@pytest.mark.parametrize(
    ("status", "made", "most_rows"),
    [("DELIVERED", 1_000, SLICE_ROWS), pytest.param("REJECTED", 0, 100, marks=pytest.mark.lengthy)],
)
def test_a_slice_reads_along_indexes(
    history: list[Subscription], monkeypatch: pytest.MonkeyPatch, status: str, made: int, most_rows: int
) -> None:
    start(history[0], status=status)
    with explaining(monkeypatch) as statements:
        go_on()  # counts them
        go_on()
    assert too_much(statements, most_rows) == []
    assert Delivery.objects.open().count() == made


@pytest.mark.behaviour("5.8")
@pytest.mark.parametrize(
    "more", [("DELIVERED", "EXPIRED"), pytest.param(("EXPIRED", "FAILED"), marks=pytest.mark.lengthy)]
)
def test_a_slice_of_many_subscriptions_reads_no_more_than_one_of_few(
    history: list[Subscription], monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    start(*history, status="REJECTED", more=more, pace=10)
    while Replay.objects.filter(state=ReplayState.COUNTING).exists():
        go_on()
    Replay.objects.update(sliced_at=Now() - dt.timedelta(hours=1))
    with explaining(monkeypatch) as statements:
        go_on()
    assert too_much(statements, 3 * SLICE) == []
    assert 0 < Delivery.objects.open().count() <= 20, "what its pace has room for, or the first of that"


@pytest.mark.behaviour("5.8")
def test_a_backfill_looks_at_what_is_asked_for_alone(
    history: list[Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = history[0].event_type
    Message.objects.update(published_at=Now() - dt.timedelta(days=3))
    recent = publish_numbered(kind, 10)
    late = subscription(event_type=kind, status=Status.INACTIVE)
    backfill = backfill_job.begin(late.pk, since=today_begins(), created_by="")
    with explaining(monkeypatch) as statements:
        while Replay.objects.filter(pk=backfill.pk, finished_at=None).exists():
            backfill_job.go_on()
    assert too_much([one for one in statements if "nextval" not in one.statement]) == []
    backfill.refresh_from_db()
    assert (backfill.total, backfill.filed) == (len(recent), len(recent))


@pytest.mark.behaviour("5.8")
def test_ids_are_taken_from_the_first_of_many_ranges(
    history: list[Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = subscription(event_type=history[0].event_type, status=Status.INACTIVE)
    backfill = backfill_job.begin(late.pk, since=None, created_by="")
    while not Replay.objects.filter(pk=backfill.pk, state="FILING").exists():
        backfill_job.go_on()
    with connection.cursor() as cursor:
        cursor.execute(EVERY_SECOND_ID)
    with explaining(monkeypatch) as statements:
        backfill_job.go_on()
    (line_up,) = (one for one in statements if "lined_up" in one.statement)
    assert max(node["Actual Rows"] for node in line_up.nodes()) <= SLICE
    given = Delivery.objects.open().filter(subscription=late).order_by("id").values_list("pk", flat=True)
    assert [*given] == [2 * number for number in range(1, SLICE + 1)]


EVERY_SECOND_ID = """
UPDATE delivery_replay SET ids = (SELECT range_agg(int8range(n * 2, n * 2 + 1)) FROM generate_series(1, 30000) AS n)
"""


def today_begins() -> dt.datetime:
    return dt.datetime.combine(today(), dt.time(), dt.UTC)
