"""The steps of a replay, and what each reads."""

import datetime as dt
from typing import Any

import pytest
from django.db.models.functions import Now

from benchmarks import filling
from delivery.maintenance.partitions import first_id, open_days, today
from delivery.maintenance.retention import drop_past_days
from delivery.models import Delivery, Message, Replay, ReplayKind, ReplayState
from delivery.replay import backfill_job, job_steps, replay_job
from delivery.replay.job_steps import SLICE
from delivery.replay.replay_job import MatchedDelivery, begin, count, go_on
from subscriptions.models import Status, Subscription
from tests.support.api import client_of, problem_of
from tests.support.broker import line_of, publish_numbered
from tests.support.database import database_url, execute
from tests.support.factories import event_type, subscriber, subscription
from tests.support.query_plans import costly_statements, explained_statements
from tests.support.replays import ended, of, repeated, run_replays, some_time_later, start_replay

pytestmark = pytest.mark.behaviour("5.8")

KEEP_DAYS = 3

FINISHED, RECEIVERS, DAYS = 60_000, 20, 5
SLICE_ROWS = 40_000
"""A slice meets a thousand old deliveries, and their messages a few times over."""


EVERY_SECOND_ID = """
UPDATE delivery_replay SET ids = (SELECT range_agg(int8range(n * 2, n * 2 + 1)) FROM generate_series(1, 30000) AS n)
"""


def test_it_is_counted_a_slice_at_a_time(shop: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(shop, 25)
    monkeypatch.setattr(job_steps, "COUNT_SLICE", 10)
    replay = begin(of(shop), pace=None, subscription_id=None, created_by="test")
    totals = []
    while Replay.objects.filter(state=ReplayState.COUNTING).exists():
        go_on()
        replay.refresh_from_db()
        totals.append(replay.total)
    assert (totals, repeated()) == ([10, 20, 25], [])
    monkeypatch.setattr(job_steps, "MAX_COUNTED", 20)
    found = count(of(shop))
    assert (found.by_status, found.complete) == ({"REJECTED": 20}, False)


def test_skipped_deliveries_do_not_count_towards_the_pace(shop: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(shop, 20)
    Delivery.objects.update(created_at=Now() - dt.timedelta(hours=5))
    wanted = ended(shop, 4)[20:]
    monkeypatch.setattr(replay_job, "SLICE", 5)
    start_replay(of(shop, begin=dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)), pace=1)
    Replay.objects.update(sliced_at=Now() - dt.timedelta(hours=1))
    run_replays()
    assert repeated() == [one.pk for one in wanted[:2]]


def test_a_slow_one_looks_not_far_ahead(shop: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    old = ended(shop, 30)
    looked_at: list[int] = []
    real_next_of = replay_job.next_of

    def next_of(*arguments: Any, **options: Any) -> list[MatchedDelivery]:
        met = real_next_of(*arguments, **options)
        looked_at.append(len(met))
        return met

    monkeypatch.setattr(replay_job, "next_of", next_of)
    monkeypatch.setattr(replay_job, "LOOK_AHEAD", 1)
    start_replay(of(shop), pace=1)
    Replay.objects.update(sliced_at=Now() - dt.timedelta(hours=1))
    assert go_on() == 1
    assert (looked_at, repeated()) == ([10], [one.pk for one in old[:2]])


def test_a_pace_is_never_ahead_of_its_time(shop: Subscription) -> None:
    ended(shop, 30)
    replay = start_replay(of(shop), pace=50)
    began = replay.sliced_at
    assert began
    while len(repeated()) < 30:
        go_on()
        replay.refresh_from_db()
        ((now,),) = execute("SELECT clock_timestamp()")
        assert replay.sliced_at
        assert began + dt.timedelta(seconds=len(repeated()) / 50) <= replay.sliced_at <= now


def test_a_failing_replay_goes_behind_and_ends(shop: Subscription) -> None:
    old = ended(shop, 3)
    bad, good = (begin(of(shop), pace=None, subscription_id=None, created_by="test") for _ in range(2))
    Replay.objects.update(state=ReplayState.RUNNING, sliced_at=Now())
    Replay.objects.filter(pk=bad.pk).update(selection={}, updated_at=Now() - dt.timedelta(hours=1))
    with pytest.raises(KeyError):
        go_on()
    assert Replay.objects.get(pk=bad.pk).reason == "it failed: 'from'"
    assert go_on() == 1, "the other has its turn"
    assert repeated() == [one.pk for one in old]
    Replay.objects.filter(pk=good.pk).update(state=ReplayState.DONE, finished_at=Now())
    for _ in range(job_steps.TRIES - 1):
        some_time_later()
        with pytest.raises(KeyError):
            go_on()
    some_time_later()
    assert go_on() == 0
    bad.refresh_from_db()
    assert (bad.state, bad.reason) == (ReplayState.FAILED, "it failed 10 times: 'from'")


def test_a_replay_that_has_just_failed_waits(shop: Subscription) -> None:
    ended(shop, 1)
    start_replay(of(shop))
    Replay.objects.update(failures=job_steps.TRIES - 1, updated_at=Now())
    assert (go_on(), repeated()) == (0, [])
    some_time_later()
    run_replays()
    assert len(repeated()) == 1


@pytest.mark.behaviour("11.4")
def test_a_day_that_is_dropped_between_two_slices_is_said(shop: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    past = today() - dt.timedelta(days=KEEP_DAYS + 2)
    for days in range(KEEP_DAYS + 3):
        open_days(past + dt.timedelta(days=days), ahead=7)
    old = ended(shop, 6)
    gone = [one.pk for one in old[2:4]]
    for number, pk in enumerate(gone):
        new = first_id(past) + number
        Delivery.objects.filter(pk=pk).update(closed_on=past, id=new)
    monkeypatch.setattr(replay_job, "SLICE", 2)
    replay = start_replay(of(shop))
    assert replay.total == 6
    assert past in drop_past_days(today(), keep_days=KEEP_DAYS)
    run_replays()
    replay.refresh_from_db()
    assert (replay.state, replay.filed, replay.skipped, replay.reason[:1]) == (ReplayState.DONE, 4, 0, "2")


@pytest.mark.behaviour("1.8")
@pytest.mark.parametrize("kind", ReplayKind)
def test_its_subscription_is_not_deleted_under_it(shop: Subscription, kind: ReplayKind) -> None:
    ended(shop, 1)
    if kind == ReplayKind.BACKFILL:
        shop = subscription(event_type=shop.event_type, status=Status.INACTIVE)
        replay = backfill_job.begin(shop.pk, since=None, created_by="test")
    else:
        replay = begin(of(shop), pace=None, subscription_id=shop.pk, created_by="test")
    address = f"/api/v1/subscriptions/{shop.pk}"
    refused = client_of().delete(address, headers={"If-Match": "*"})
    assert (problem_of(refused), "under way" in refused.json()["detail"]) == ((409, "still_in_use"), True)
    replay_job.cancel(replay.pk, reason="unwanted")
    assert client_of().delete(address, headers={"If-Match": "*"}).status_code == 204


@pytest.fixture
def history(storage: None) -> list[Subscription]:
    """Sixty thousand deliveries of five days, to twenty subscribers."""
    kind = event_type()
    made = [subscription(subscriber(), kind) for _ in range(RECEIVERS)]
    days = [today() - dt.timedelta(days=number) for number in range(DAYS, 0, -1)]
    for day in days:
        open_days(day, ahead=0)
    url = database_url()
    receivers = [(line_of(one.subscriber).pk, one.pk) for one in made]
    filling.finish(url, receivers, kind.pk, count=FINISHED, days=days)
    filling.settle_down(url)
    return made


@pytest.mark.parametrize(
    ("status", "made", "max_rows"),
    [("DELIVERED", 1_000, SLICE_ROWS), pytest.param("REJECTED", 0, 100, marks=pytest.mark.lengthy)],
)
def test_a_slice_reads_along_indexes(
    history: list[Subscription], monkeypatch: pytest.MonkeyPatch, status: str, made: int, max_rows: int
) -> None:
    begin(of(history[0], statuses=[status]), pace=None, subscription_id=None, created_by="")
    with explained_statements(monkeypatch) as statements:
        go_on()  # counts them
        go_on()
    assert costly_statements(statements, max_rows) == []
    assert Delivery.objects.open().count() == made


@pytest.mark.parametrize(
    "more", [("DELIVERED", "EXPIRED"), pytest.param(("EXPIRED", "FAILED"), marks=pytest.mark.lengthy)]
)
def test_a_slice_of_many_subscriptions_reads_no_more_than_one_of_few(
    history: list[Subscription], monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    start_replay(of(*history, statuses=["REJECTED", *more]), pace=10)
    Replay.objects.update(sliced_at=Now() - dt.timedelta(hours=1))
    with explained_statements(monkeypatch) as statements:
        go_on()
    assert costly_statements(statements, 3 * SLICE) == []
    assert 0 < Delivery.objects.open().count() <= 20, "what its pace has room for, or the first of that"


def test_a_backfill_reads_what_is_asked_for(history: list[Subscription], monkeypatch: pytest.MonkeyPatch) -> None:
    kind = history[0].event_type
    Message.objects.update(published_at=Now() - dt.timedelta(days=3))
    recent = publish_numbered(kind, 10)
    late = subscription(event_type=kind, status=Status.INACTIVE)
    midnight = dt.datetime.combine(today(), dt.time(), dt.UTC)
    backfill = backfill_job.begin(late.pk, since=midnight, created_by="")
    with explained_statements(monkeypatch) as statements:
        while Replay.objects.filter(pk=backfill.pk, finished_at=None).exists():
            backfill_job.go_on()
    assert costly_statements([one for one in statements if "nextval" not in one.statement]) == []
    backfill.refresh_from_db()
    assert (backfill.total, backfill.filed) == (len(recent), len(recent))


def test_ids_are_from_the_first_of_many_ranges(history: list[Subscription], monkeypatch: pytest.MonkeyPatch) -> None:
    late = subscription(event_type=history[0].event_type, status=Status.INACTIVE)
    backfill = backfill_job.begin(late.pk, since=None, created_by="")
    while not Replay.objects.filter(pk=backfill.pk, state="FILING").exists():
        backfill_job.go_on()
    execute(EVERY_SECOND_ID)
    with explained_statements(monkeypatch) as statements:
        backfill_job.go_on()
    (line_up,) = (one for one in statements if "lined_up" in one.statement)
    assert max(node["Actual Rows"] for node in line_up.nodes()) <= SLICE
    given = Delivery.objects.open().filter(subscription=late).order_by("id").values_list("pk", flat=True)
    assert [*given] == [2 * number for number in range(1, SLICE + 1)]
