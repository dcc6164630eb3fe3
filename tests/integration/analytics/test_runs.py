"""Runs of summaries: what is due, processes that fail, days that cannot be sealed."""

import datetime as dt
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client

from analytics import pending, run_records, run_requests, runs
from analytics.models import Run, RunKind, RunState, RunWindow, WindowState
from analytics.pipeline.connections import LOCK, WORKER_LOCK, only_run
from analytics.pipeline.extraction.row_counts import leaf_rows
from analytics.pipeline.job import Job, midnight
from analytics.run_records import AGAIN, INTERRUPTED, KILLED, MAX_STORED_BYTES
from analytics.run_requests import request_days, request_missed_days
from analytics.runs import Application
from analytics.spark_process import End, Ended, GuardedProcess, SparkSettings, spark_settings
from analytics.windows import OpenTransaction
from broker_project.core.db import forget_connection
from broker_project.stack.load.wait import wait_until
from delivery.dispatch import notify
from delivery.maintenance.partitions import first_id, open_days, today
from delivery.models import Message, StorageDay
from subscriptions.models import EventType
from tests.support.broker import publish_bodies, terminate_backends
from tests.support.database import another_connection, execute

PROGRAM = Path(__file__).parents[2] / "support" / "small_application.py"
ROOT = PROGRAM.parents[2]
DAY = dt.timedelta(days=1)
HOUR = dt.timedelta(hours=1)
PASSED, FAILED = WindowState.PASSED, WindowState.FAILED


def small(*behaviour: str) -> Application:
    """Return the small program with this behaviour; without Spark's guard, which gives it the CPU that others leave."""

    def start(
        job: Job, settings: SparkSettings, *, on_report: Any, on_output: Any, is_stopping: Callable[[], bool]
    ) -> Ended:
        file = Path(settings.lake, "job.json")
        file.write_text(job.as_json())
        reading, writing = os.pipe()
        variables = {"DATABASE_URL": settings.database_url, "PYTHONPATH": str(ROOT), "BROKER_REPORT_FD": str(writing)}
        command = (sys.executable, str(PROGRAM), str(file), *behaviour)
        with (file.parent / "log").open("w+b") as printed:
            process = subprocess.Popen(command, stdout=printed, env=variables, pass_fds=[writing])
            os.close(writing)
            end = End.TOO_LONG if settings.minutes <= 0 else End.STOPPED if is_stopping() else End.BY_ITSELF
            if end is not End.BY_ITSELF:
                process.kill()
            with os.fdopen(reading) as reports:
                for line in reports:
                    on_report(counted(json.loads(line)))
            status = process.wait()
            printed.seek(0)
            on_output(printed.read())
        return Ended(end, status if status >= 0 else 128 - status)

    return start


def guarded(folder: Path, *behaviour: str) -> Application:
    """Return the small program with this behaviour, in Spark's place under Spark's guard."""

    def start(
        job: Job, settings: SparkSettings, *, on_report: Any, on_output: Any, is_stopping: Callable[[], bool]
    ) -> Ended:
        scratch = folder / "scratch"
        scratch.mkdir()
        (scratch / "job.json").write_text(job.as_json())
        command = (sys.executable, str(PROGRAM), "job.json", *behaviour)
        variables = {"DATABASE_URL": settings.database_url, "PYTHONPATH": str(ROOT)}
        process = GuardedProcess(
            command, variables, scratch, on_report=lambda one: on_report(counted(one)), on_output=on_output
        )
        return process.wait(seconds=60.0, is_stopping=is_stopping)

    return start


def counted(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let a report say of its window what the leaves hold."""
    if "window" not in report:
        return report
    with another_connection() as other:
        return {**report, "inputs": leaf_rows(other, dt.date.fromisoformat(report["window"]["start"][:10]))}


@pytest.fixture
def sealed(storage: None) -> list[dt.date]:
    """Two days that no longer change, beside yesterday, whose last transaction may not have ended yet."""
    first = today() - 3 * DAY
    open_days(first, ahead=3)
    return [first, first + DAY]


@pytest.fixture
def terms(tmp_path: Path) -> SparkSettings:
    return replace(spark_settings(), lake=str(tmp_path))


@pytest.fixture
def tables_of_long_ago(storage: None) -> Iterator[None]:
    """Let the tables be there since the day before yesterday, so that there were hours to summarize."""
    applied = dict(MigrationRecorder.Migration.objects.values_list("pk", "applied"))
    MigrationRecorder.Migration.objects.update(applied=midnight(today() - 2 * DAY))
    yield
    for pk, at in applied.items():
        MigrationRecorder.Migration.objects.filter(pk=pk).update(applied=at)


def do(run: Run | None, terms: SparkSettings, *behaviour: str, **options: Any) -> Run:
    assert run is not None
    options = {"stopping": threading.Event(), **options}
    done = runs.run(run.pk, terms, application=small(*behaviour), **options)
    assert done is not None
    return done


def range_of(days: list[dt.date], **options: Any) -> Run:
    return run_requests.create_range(midnight(days[0]), midnight(days[-1] + DAY), **options)


def windows_of(run: Run) -> list[tuple[dt.date, str]]:
    return [(window.start.date(), window.state) for window in run.windows.order_by("id")]


def test_sealed_days_are_summarized_once_the_oldest_first(sealed: list[dt.date], terms: SparkSettings) -> None:
    done = do(request_days(), terms)
    assert (done.state, done.error, done.ended_at is None) == (RunState.PASSED, "", False)
    assert windows_of(done)[:2] == [(sealed[0], PASSED), (sealed[1], PASSED)]
    assert set(StorageDay.objects.filter(summarized_at=None).values_list("day", flat=True)).isdisjoint(sealed)
    assert request_days() is None


def test_a_day_with_late_data_is_redone(sealed: list[dt.date], terms: SparkSettings, event_type: EventType) -> None:
    do(request_days(), terms)
    (late,) = publish_bodies(event_type, b"late")
    Message.objects.filter(pk=late.id).update(id=first_id(sealed[1]) + 1)
    execute("SELECT pg_stat_force_next_flush()")  # else PostgreSQL's counters move when they like
    assert windows_of(do(request_days(), terms)) == [(sealed[1], PASSED)]
    assert request_days() is None


def test_late_data_is_looked_for_with_the_time_that_spark_has(
    sealed: list[dt.date], terms: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash of PostgreSQL whole partitions are counted."""
    do(request_days(), terms)
    limits: list[str] = []

    def look(reader: psycopg.Connection[Any], *_: object) -> bool:
        limits.extend(limit for (limit,) in reader.execute("SHOW statement_timeout"))
        return False

    monkeypatch.setattr(pending, "has_grown", look)
    assert request_days() is None
    assert {*limits} == {"2min"}


def pass_time(amount: dt.timedelta) -> None:
    """Move the results of all windows into the past."""
    RunWindow.objects.update(ended_at=F("ended_at") - amount)


def test_a_day_whose_summary_failed_is_due_again_after_an_hour(sealed: list[dt.date], terms: SparkSettings) -> None:
    done = do(request_days(), terms, "fails=1")
    assert done.state == RunState.FAILED
    assert f"{sealed[0]}: a check failed" in done.error
    assert StorageDay.objects.get(day=sealed[0]).summarized_at is None
    assert (request_missed_days(), request_days()) == (None, None)
    pass_time(HOUR)
    assert windows_of(do(request_missed_days(), terms)) == [(sealed[0], PASSED)]


def test_a_day_that_keeps_failing_is_tried_less_and_less_often(sealed: list[dt.date], terms: SparkSettings) -> None:
    do(request_days(), terms, "fails=1")
    waited = []
    for _ in range(7):
        hours = 0
        while (again := request_missed_days()) is None:
            pass_time(HOUR)
            hours += 1
        do(again, terms, "fails=1")
        waited.append(hours)
    assert waited == [1, 2, 4, 8, 16, 24, 24]


def test_a_success_resets_the_back_off_and_a_requested_range_ignores_it(
    sealed: list[dt.date], terms: SparkSettings
) -> None:
    do(request_days(), terms, "fails=1")
    pass_time(HOUR)
    do(request_missed_days(), terms, "fails=1")
    do(range_of(sealed), terms)
    do(range_of(sealed, again=True), terms, "fails=1")
    pass_time(HOUR)
    assert windows_of(do(request_missed_days(), terms)) == [(sealed[0], PASSED)]


def test_a_day_that_takes_too_long_fails_and_lets_others_run(sealed: list[dt.date], terms: SparkSettings) -> None:
    done = do(request_days(), replace(terms, minutes=0), "hangs=1")
    assert done.state == RunState.FAILED
    assert done.error.startswith(f"{sealed[0]} alone takes longer than the 0 minutes of a run.")
    assert "BROKER_SUMMARY_MINUTES" in done.error
    assert windows_of(done) == [(sealed[0], FAILED)]
    assert windows_of(do(request_missed_days(), terms))[0] == (sealed[1], PASSED)


def test_ranges_come_first_then_hours_then_days(storage: None) -> None:
    kinds = (RunKind.DAYS, RunKind.HOURS, RunKind.RANGE)
    range_ = {"start": midnight(today() - DAY), "end": midnight(today())}
    runs = {kind: Run.objects.create(kind=kind, **(range_ if kind == RunKind.RANGE else {})).pk for kind in kinds}
    assert run_records.waiting() == [runs[kind] for kind in (RunKind.RANGE, RunKind.HOURS, RunKind.DAYS)]


def test_closed_hours_are_summarized_once(tables_of_long_ago: None, terms: SparkSettings) -> None:
    open_days(today() - DAY, ahead=1)
    now = run_requests.now()
    closed = (now - dt.timedelta(minutes=2) - midnight(today())) // dt.timedelta(hours=1)
    requested = run_requests.request_hours()
    done = do(requested, terms) if requested else None
    todays = [window for window in (done.windows.all() if done else []) if window.start >= midnight(today())]
    assert len(todays) in {closed, closed + 1}  # an hour may have closed meanwhile
    assert run_requests.request_hours() is None or len(todays) == closed


def test_nothing_is_due_before_the_tables_existed(tables_of_long_ago: None) -> None:
    MigrationRecorder.Migration.objects.update(applied=run_requests.now().replace(minute=0, second=0, microsecond=0))
    assert run_requests.request_hours() is None


def test_an_interrupted_range_resumes(sealed: list[dt.date], terms: SparkSettings) -> None:
    first = do(range_of(sealed), terms, "ends=2")
    assert (first.state, windows_of(first)) == (RunState.FAILED, [(sealed[0], PASSED)])
    assert windows_of(do(range_of(sealed), terms)) == [(sealed[1], PASSED)]
    assert windows_of(do(range_of(sealed), terms)) == []


def test_a_forced_range_repeats_all_and_resumes_when_interrupted(sealed: list[dt.date], terms: SparkSettings) -> None:
    do(range_of(sealed), terms)
    again = range_of(sealed, again=True)
    do(again, terms, "ends=2")
    Run.objects.filter(pk=again.pk).update(state=RunState.ABANDONED)
    RunWindow.objects.filter(run=again).update(lake_bytes=7)
    do(again, terms)
    assert [*again.windows.order_by("start").values_list("lake_bytes", flat=True)] == [7, 1_000]


def test_an_interrupted_window_shows_no_figures_of_an_earlier_try(sealed: list[dt.date], terms: SparkSettings) -> None:
    run = do(range_of(sealed[:1]), terms, "fails=1")
    assert run.windows.get().rows_read == {"deliveries": 3}
    Run.objects.filter(pk=run.pk).update(state=RunState.ABANDONED)
    window = do(run, terms, "dies").windows.get()
    assert (window.error, window.lake_bytes, window.seconds) == (KILLED, 0, 0.0)
    assert (window.inputs, window.rows_read, window.rows_written, window.checks) == ({}, {}, {}, [])


def test_part_of_this_hour_is_replaced_later(storage: None, terms: SparkSettings, tables_of_long_ago: None) -> None:
    now = run_requests.now()
    done = do(run_requests.create_range(now - dt.timedelta(seconds=1), now), terms)
    (piece,) = done.windows.order_by("-start")[:1]
    assert (piece.end, piece.state) == (now, PASSED)
    assert not RunWindow.objects.filter(end__gt=now).exists()


@pytest.mark.parametrize(
    ("from_days", "to_days", "refusal"),
    [(0, -1, "before it begins"), (2, 3, "lies in the future"), (-30, -20, "Nothing of that time is kept any more")],
)
def test_an_empty_range_is_refused(from_days: int, to_days: int, refusal: str, storage: None) -> None:
    start, end = (midnight(today() + number * DAY) for number in (from_days, to_days))
    with pytest.raises(run_requests.NotARange, match=refusal):
        run_requests.request_range(start, end)
    assert not Run.objects.exists()


def test_two_concurrent_beats_create_one_run(sealed: list[dt.date], terms: SparkSettings) -> None:
    barrier, runs = threading.Barrier(2), []

    def beat() -> None:
        barrier.wait()
        runs.append(request_days())
        forget_connection()

    beats = [threading.Thread(target=beat) for _ in range(2)]
    for one in beats:
        one.start()
    for one in beats:
        one.join()
    assert (len(list(filter(None, runs))), Run.objects.count()) == (1, 1)


def test_a_run_waits_for_another_and_is_started_afterwards(sealed: list[dt.date], terms: SparkSettings) -> None:
    waiting = range_of(sealed)
    with only_run(terms.database_url, WORKER_LOCK):
        assert runs.run(waiting.pk, terms, stopping=threading.Event(), application=small()) is None
        runs.start_waiting(terms, stopping=threading.Event(), application=small())
        assert Run.objects.get(pk=waiting.pk).state == RunState.WAITING
    runs.start_waiting(terms, stopping=threading.Event(), application=small())
    assert Run.objects.get(pk=waiting.pk).state == RunState.PASSED


def test_a_range_that_is_requested_meanwhile_is_next(sealed: list[dt.date], terms: SparkSettings) -> None:
    for _ in range(2):
        Run.objects.create(kind=RunKind.DAYS)

    def request_meanwhile(*job: Any, **more: Any) -> Ended:
        if not Run.objects.filter(kind=RunKind.RANGE):
            range_of(sealed)
        return small()(*job, **more)

    runs.start_waiting(terms, stopping=threading.Event(), application=request_meanwhile)
    begun = Run.objects.order_by("started_at").values_list("kind", "state")
    assert [*begun] == [(kind, RunState.PASSED) for kind in (RunKind.DAYS, RunKind.RANGE, RunKind.DAYS)]


def test_a_day_that_was_summarized_stays_whole_while_a_transaction_of_then_writes(
    sealed: list[dt.date], terms: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one of its hours would take its place in the lake."""
    do(request_days(), terms)
    began = midnight(sealed[1]) - HOUR
    monkeypatch.setattr(pending, "OLDEST", f"SELECT 1, 'a report', '{began.isoformat()}'::timestamptz")
    noon = midnight(sealed[1]) + 12 * HOUR
    again = run_requests.create_range(noon, noon + HOUR, again=True)
    (window,) = do(again, terms).windows.all()
    assert (window.start, window.end) == (midnight(sealed[1]), midnight(sealed[1] + DAY))
    assert sealed[1] not in {window.day for window in pending.hours(run_requests.current_calendar())}


@pytest.mark.behaviour("11.10")
def test_a_run_in_progress_is_cancelled_at_any_window(
    sealed: list[dt.date], terms: SparkSettings, tmp_path: Path, management: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_records, "LOOK_SECONDS", 0.0)
    run, ended = range_of(sealed), list[Run | None]()
    address = f"/api/v1/summary-runs/{run.pk}"

    def work() -> None:
        stuck = guarded(tmp_path, "hangs=2")
        ended.append(runs.run(run.pk, terms, stopping=threading.Event(), application=stuck))
        forget_connection()

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: (management.get(address).json()["progress"] or {}).get("number") == 2)
    progress = management.get(address).json()["progress"]
    assert progress.pop("seconds_left") > 0
    assert progress == {"number": 2, "total": 2, "step": "reading"}
    cancelled = management.post(f"{address}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "CANCELLING")
    assert request_days(), "of another kind, which waits for this one"
    worker.join()
    assert [(one.state, one.error, one.progress) for one in ended if one] == [
        (RunState.CANCELLED, run_records.CANCELLED.error, None)
    ]
    assert (windows_of(run), [*tmp_path.glob("scratch")]) == ([(sealed[0], PASSED)], [])
    assert windows_of(do(range_of(sealed), terms)) == [(sealed[1], PASSED)], "its locks are released"


@pytest.mark.behaviour("11.10")
def test_a_run_is_cancelled_whatever_becomes_of_its_worker(sealed: list[dt.date], terms: SparkSettings) -> None:
    of_a_day = {"kind": RunKind.RANGE, "start": midnight(sealed[0]), "end": midnight(sealed[0] + DAY)}
    waiting, killed, failed = range_of(sealed[:1]), vanish(**of_a_day), range_of(sealed[:1])
    for one in (waiting, killed, killed):
        run_records.cancel(one.pk)
    runs.start_waiting(terms, stopping=threading.Event(), application=small("fails=1"))
    stopping = threading.Event()

    def cancel_and_stop(_told: str) -> None:
        run_records.cancel(again.pk)
        stopping.set()

    again = range_of(sealed[:1], again=True)
    do(again, terms, "hangs=1", stopping=stopping, report=cancel_and_stop)
    states = [Run.objects.get(pk=one.pk).state for one in (waiting, killed, failed, again)]
    assert states == [RunState.CANCELLED, RunState.CANCELLED, RunState.FAILED, RunState.CANCELLED]
    assert run_records.waiting() == []
    with pytest.raises(run_records.RunFinished, match="It is FAILED"):
        run_records.cancel(failed.pk)


@pytest.mark.behaviour("11.10")
def test_a_run_that_passes_while_it_is_cancelled_has_passed(sealed: list[dt.date], terms: SparkSettings) -> None:
    run = range_of(sealed)

    def cancel_late(told: str) -> None:
        if told.endswith("is read"):
            run_records.cancel(run.pk)

    done = do(run, terms, report=cancel_late)
    assert (done.state, done.error) == (RunState.PASSED, "")


def test_of_two_runs_clicked_at_once_the_second_repeats_nothing(sealed: list[dt.date], terms: SparkSettings) -> None:
    first, second = (range_of(sealed, again=True) for _ in range(2))
    runs.start_waiting(terms, stopping=threading.Event(), application=small())
    assert [len(windows_of(one)) for one in (first, second)] == [2, 0]
    assert {*Run.objects.values_list("state", flat=True)} == {RunState.PASSED}


def hints() -> int:
    """Return how many tasks the worker of the queue finds."""
    return int(notify.redis_client().llen(run_requests.QUEUE))


def test_the_end_of_a_run_notifies_workers_of_the_next(sealed: list[dt.date], terms: SparkSettings) -> None:
    first, following = range_of(sealed[:1]), range_of(sealed[1:])
    before = hints()
    do(first, terms)
    assert hints() == before + 1
    do(following, terms)
    assert hints() == before + 1


def vanish(**fields: Any) -> Run:
    """Return a run whose worker was killed."""
    return Run.objects.create(state=RunState.RUNNING, started_at=Now(), **fields)


def test_the_range_of_a_killed_worker_is_done_by_the_next(sealed: list[dt.date], terms: SparkSettings) -> None:
    gone = vanish(kind=RunKind.RANGE, start=midnight(sealed[0]), end=midnight(sealed[0] + DAY))
    runs.start_waiting(terms, stopping=threading.Event(), application=small())
    gone.refresh_from_db()
    assert (gone.state, gone.error, windows_of(gone)) == (RunState.PASSED, "", [(sealed[0], PASSED)])


@pytest.mark.behaviour("11.10")
@pytest.mark.parametrize(
    ("state", "becomes", "error"),
    [
        (RunState.RUNNING, RunState.ABANDONED, run_records.VANISHED),
        (RunState.CANCELLING, RunState.CANCELLED, run_records.CANCELLED.error),
    ],
)
def test_what_a_killed_worker_was_doing_on_schedule_comes_due(
    state: str, becomes: str, error: str, sealed: list[dt.date], terms: SparkSettings
) -> None:
    gone = Run.objects.create(kind=RunKind.DAYS, state=state, started_at=Now())
    assert do(request_days(), terms).state == RunState.PASSED
    gone.refresh_from_db()
    assert (gone.state, gone.error, windows_of(gone)) == (becomes, error, [])


@pytest.mark.parametrize("lock", [LOCK, WORKER_LOCK])
def test_a_run_is_alive_while_its_worker_or_spark_has_a_lock(storage: None, terms: SparkSettings, lock: str) -> None:
    alive = vanish(kind=RunKind.HOURS)
    with only_run(terms.database_url, lock):
        run_records.abandon_vanished()
        assert Run.objects.get(pk=alive.pk).state == RunState.RUNNING
    run_records.abandon_vanished()
    assert Run.objects.get(pk=alive.pk).state == RunState.ABANDONED


def test_a_run_does_not_count_as_vanished_while_spark_starts(sealed: list[dt.date], terms: SparkSettings) -> None:
    states = []

    def look(_told: str) -> None:
        run_records.abandon_vanished()
        states.append(Run.objects.get().state)

    do(range_of(sealed), terms, report=look)
    assert states[0] == RunState.RUNNING


def test_reports_are_stored_without_invalid_characters(sealed: list[dt.date], terms: SparkSettings) -> None:
    done = do(range_of(sealed), terms, "fails=1", "quotes")
    failed = done.windows.get(state=FAILED)
    assert (failed.error, failed.checks[0]["found"]) == ("a check failed: café ?",) * 2
    assert do(range_of(sealed), terms, "gives up", "quotes").error == "the lake is not writable: café ?"


def test_a_run_of_a_stopped_worker_is_left_for_the_next(sealed: list[dt.date], terms: SparkSettings) -> None:
    stopping = threading.Event()
    done = do(range_of(sealed), terms, "hangs=1", stopping=stopping, report=lambda _: stopping.set())
    assert (done.state, done.error) == (RunState.ABANDONED, f"Its worker was stopped. {AGAIN}")
    runs.start_waiting(terms, stopping=threading.Event(), application=small())
    assert Run.objects.get(pk=done.pk).state == RunState.PASSED


def test_an_interrupted_command_is_not_resumed_by_workers(sealed: list[dt.date], terms: SparkSettings) -> None:
    stopping = threading.Event()
    done = do(
        range_of(sealed), terms, "hangs=1", stopping=stopping, report=lambda _: stopping.set(), stopped=INTERRUPTED
    )
    assert (done.state, done.error) == (RunState.FAILED, INTERRUPTED.error)
    assert done.pk not in run_records.waiting()


def test_a_run_that_cannot_be_started_says_why(sealed: list[dt.date], terms: SparkSettings) -> None:
    def refuse(*_: object, **__: object) -> Ended:
        raise OSError(28, "No space left on device")

    done = runs.run(range_of(sealed).pk, terms, stopping=threading.Event(), application=refuse)
    assert done
    assert done.error == "Spark cannot be started: [Errno 28] No space left on device."


def test_the_head_and_the_tail_of_the_output_are_kept(sealed: list[dt.date], terms: SparkSettings) -> None:
    assert set(do(range_of(sealed), terms, "prints=1000").log.strip()) == {"x"}
    much = do(range_of(sealed, again=True), terms, f"prints={4 * MAX_STORED_BYTES}").log
    assert f"\n... {2 * MAX_STORED_BYTES + 1} bytes are left out here ...\n" in much


def test_no_connection_of_django_is_held_while_spark_runs(sealed: list[dt.date], terms: SparkSettings) -> None:
    held: list[object] = []
    do(range_of(sealed[:1]), terms, report=lambda _: held.append(connection.connection))
    assert set(held) == {None}


def test_a_run_survives_the_loss_of_every_connection(sealed: list[dt.date], terms: SparkSettings) -> None:
    def cut(_told: str) -> None:
        terminate_backends()
        forget_connection()

    done = do(range_of(sealed), terms, report=cut)
    assert (done.state, windows_of(done)) == (RunState.PASSED, [(day, PASSED) for day in sealed])


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, storage: None) -> dt.datetime:
    """Let it be the day after tomorrow."""
    instant = run_requests.now() + 2 * DAY
    monkeypatch.setattr(run_requests, "now", lambda: instant)
    return instant


def write(elsewhere: psycopg.Connection[Any]) -> None:
    elsewhere.execute("SET LOCAL application_name = 'a report'")
    elsewhere.execute("SELECT pg_current_xact_id()")


def test_a_transaction_that_has_written_delays_sealing(later: dt.datetime, elsewhere: psycopg.Connection[Any]) -> None:
    with elsewhere.transaction():
        [(began,)] = elsewhere.execute("SELECT now()").fetchall()
        assert pending.calendar(later).first_unsealed > began.date()
        assert pending.calendar(later).blocker is None
        write(elsewhere)
        assert pending.calendar(later).first_unsealed == began.date()
        oldest = pending.calendar(later).blocker
        assert oldest == OpenTransaction(elsewhere.info.backend_pid, "a report", began)
        assert pending.calendar(began).blocker is None  # its day is not over
    assert pending.calendar(later).blocker is None


def test_the_transaction_that_delays_sealing_is_logged_and_shown_with_the_runs(
    later: dt.datetime, elsewhere: psycopg.Connection[Any], admin: Client
) -> None:
    def said() -> tuple[int, bool]:
        with structlog.testing.capture_logs() as logged:
            request_days()
        page = admin.get("/admin/analytics/run/").content.decode()
        return sum(event["event"] == "summaries.unsealed" for event in logged), ending in page

    ending = f"SELECT pg_terminate_backend({elsewhere.info.backend_pid})."
    with elsewhere.transaction():
        assert said() == (0, False)
        write(elsewhere)
        assert said() == (1, True)
