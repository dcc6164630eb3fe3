"""What becomes due by the clock alone is looked after by every worker, and by a task."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.conf import settings

from broker_project.core.db import rows
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery import endpoint_probe, tasks
from delivery.maintenance import periodic
from delivery.maintenance.periodic import PeriodicJob, PeriodicJobs, run_periodic_jobs
from tests.support.broker import lone_worker

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
