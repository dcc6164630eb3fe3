"""What becomes due by the clock alone is looked after by every worker, and by a task."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now

from broker_project.core.db import rows
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery import endpoint_probe, tasks
from delivery.maintenance import periodic
from delivery.maintenance.periodic import PeriodicJob, PeriodicJobs, run_periodic_jobs
from delivery.models import Announcement, Delivery, Hold, IdempotencyKey, MinuteTotal, Replay
from delivery.replay import backfill_job, replay_job
from delivery.replay.eligibility import Selection
from subscriptions.models import DeliveryMode, PausedBy, Subscription
from tests.support import broker, factories, mailboxes
from tests.support.broker import lone_worker
from tests.support.database import wait_for_time_in_the_minute

ONE_DAY = 86_400.0


@contextmanager
def attending() -> Iterator[None]:
    """Run the periodic jobs in a thread, as a worker does."""
    stopping = threading.Event()
    attendant = PeriodicJobs(stopping, settings.EGRESS_POLICY)
    attendant.start()
    yield
    stopping.set()
    attendant.join(PATIENCE_SECONDS)


def only(monkeypatch: pytest.MonkeyPatch, **jobs: PeriodicJob) -> None:
    """Replace the jobs."""
    monkeypatch.setattr(periodic, "JOBS", jobs)
    monkeypatch.setattr(periodic, "HAS_WORK", {})


def test_a_job_that_fails_stops_no_other(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[str] = []
    only(
        monkeypatch,
        first=lambda: 1,
        defective=lambda: int("a defect"),
        refused=lambda: len(rows("SELECT 1 / 0")),
        last=lambda: len(rows("SELECT 1")),
    )
    assert run_periodic_jobs(on_failure=broken.append) == 2
    assert broken == ["defective"], "that the database refuses is no defect"


HOUR = timedelta(hours=1)


def publish_one(wanted: Subscription, **fields: Any) -> None:
    broker.publish_bodies(wanted.event_type, b"{}", **fields)


def expire_one_later(wanted: Subscription) -> None:
    publish_one(wanted)
    Delivery.objects.update(expires_at=Now() + HOUR)


def fetch_one(wanted: Subscription) -> None:
    """Let a client fetch a message after which the mailbox is switched to push: it is returned to its line."""
    mailboxes.switch_delivery_mode(wanted, DeliveryMode.PULL)
    publish_one(wanted)
    mailboxes.fetch_all(wanted)
    mailboxes.switch_delivery_mode(wanted, DeliveryMode.PUSH)
    mailboxes.time_out_hand_outs()


def hold_one(wanted: Subscription) -> None:
    publish_one(wanted)
    line = broker.line_of(wanted.subscriber)
    Hold.objects.create(delivery_id=Delivery.objects.get().pk, line=line, reason="answered 503")


def remember_key(_wanted: Subscription) -> None:
    IdempotencyKey.objects.create(
        key="k", fingerprint=b"", message_id=1, outcome="ROUTED", deliveries_count=0, expires_at=Now() + HOUR
    )


def count_all_minutes(_wanted: Subscription) -> None:
    """Count the last minute; the next is not over before the test is."""
    wait_for_time_in_the_minute()
    ((minute,),) = rows("SELECT date_trunc('minute', clock_timestamp()) - interval '1 minute'")
    MinuteTotal.objects.create(minute=minute, deliveries=0, delivered=0, eligible=0, buckets=[], bucket_counts=[])


def replay_and_end(wanted: Subscription) -> None:
    replay_job.begin(Selection.among([wanted]), pace=None, subscription_id=None, created_by="")
    end_jobs()


def backfill_and_end(wanted: Subscription) -> None:
    broker.inactivate(wanted)
    backfill_job.begin(wanted.pk, since=None, created_by="")
    end_jobs()


def end_jobs() -> None:
    Replay.objects.update(state="CANCELLED", finished_at=Now())


def go_on_with_jobs(_wanted: Subscription) -> None:
    Replay.objects.update(state="COUNTING", finished_at=None)


def suspend(wanted: Subscription) -> None:
    its = Subscription.objects.filter(pk=wanted.pk)
    its.update(paused_since=Now(), paused_by=PausedBy.POLICY, probe_due_at=Now() + HOUR)


Change = Callable[[Subscription], object]
WORK: dict[str, tuple[Change, Change]] = {
    "begin_delayed": (
        lambda wanted: publish_one(wanted, not_before=datetime.now(UTC) + HOUR),
        lambda _: Delivery.objects.update(not_before=Now()),
    ),
    "expire_overdue": (
        expire_one_later,
        lambda _: Delivery.objects.update(expires_at=Now()),
    ),
    "return_overdue": (publish_one, fetch_one),
    "announce": (publish_one, lambda _: Announcement.objects.create(kind="Broker.Line.Paused")),
    "replay": (replay_and_end, go_on_with_jobs),
    "backfill": (backfill_and_end, go_on_with_jobs),
    "note_floors": (publish_one, lambda _: broker.note_floors_now()),
    "announce_held_lines": (hold_one, lambda _: Hold.objects.update(since=Now() - HOUR)),
    "forget_expired_keys": (remember_key, lambda _: IdempotencyKey.objects.update(expires_at=Now())),
    "count_minutes": (count_all_minutes, lambda _: MinuteTotal.objects.all().delete()),
    periodic.PROBE: (suspend, lambda _: Subscription.objects.update(probe_due_at=Now())),
}
"""By job: what leaves it without work, though not without rows, and what makes them due."""


@pytest.mark.parametrize("name", [*periodic.HAS_WORK])
def test_a_job_is_run_when_there_is_work_for_it_and_not_otherwise(storage: None, name: str) -> None:
    found = partial(endpoint_probe.probe, broker.MONITORS) if name == periodic.PROBE else periodic.JOBS[name]
    wanted = factories.subscription()
    for change, has_work in zip(WORK[name], (False, True), strict=True):
        change(wanted)
        is_run = name not in periodic._without_work([*periodic.HAS_WORK])
        assert (is_run, found() > 0) == (has_work, has_work)


def test_no_job_begins_while_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = threading.Event()

    def first() -> int:
        stopping.set()
        return 1

    only(monkeypatch, first=first, second=lambda: 10)
    assert run_periodic_jobs(is_stopping=stopping.is_set) == 1


def test_jobs_run_again_at_once_while_they_find_work(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = iter([1000, 1000, 17])
    calls: list[int] = []

    def job() -> int:
        monkeypatch.setattr(periodic, "JOB_SECONDS", ONE_DAY)
        calls.append(next(slices, 0))
        return calls[-1]

    only(monkeypatch, job=job)
    with attending():
        wait_until(lambda: len(calls) == 4)
    assert calls == [1000, 1000, 17, 0], "then it waits"


def test_a_worker_attends_until_it_is_stopped(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[threading.Thread] = set()

    def job() -> int:
        seen.add(threading.current_thread())
        return 0

    only(monkeypatch, job=job)
    worker = lone_worker("attends")
    worker.start()
    wait_until(lambda: bool(seen))
    worker.stop()
    assert [one.is_alive() for one in seen] == [False]


def test_a_task_attends_too_where_every_worker_is_stuck(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = iter([7, 8])
    only(monkeypatch, job=lambda: next(slices))
    tasks.do_chores()
    assert next(slices) == 8, "a slice of it was done"


@pytest.mark.parametrize("found", [[], [1000, 17]])
def test_seldom_jobs_with_work_run_again(storage: None, monkeypatch: pytest.MonkeyPatch, found: list[int]) -> None:
    slices, more = iter([3, 2, 1]), iter(found)
    calls: list[str] = []

    def often() -> int:
        calls.append("often")
        return next(slices, 0)

    def seldom() -> int:
        calls.append("seldom")
        return next(more, 0)

    only(monkeypatch, often=often, announce_held_lines=seldom)
    monkeypatch.setattr(periodic, "SELDOM_SECONDS", ONE_DAY)
    with attending():
        wait_until(lambda: calls.count("often") == 4)
    rounds = len(found) + 1
    assert calls[: rounds + 4] == ["often", "seldom"] * rounds + ["often"] * (4 - rounds)


def test_the_attendant_alone_probes_as_it_remembers(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = threading.Event()

    def resume(_monitors: object) -> int:
        probed.set()
        return 0

    monkeypatch.setattr(endpoint_probe, "resume_answered", resume)
    only(monkeypatch)
    tasks.do_chores()
    assert not probed.is_set()
    with attending():
        assert probed.wait(PATIENCE_SECONDS)
