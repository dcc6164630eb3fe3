"""The command `summarize`: its times, its refusals, what it prints."""

import datetime as dt
import logging
import signal
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from analytics import run_requests
from analytics.management.commands.summarize import NOTHING_DUE, end_of, interruptible, start_of, table_of
from analytics.models import Run, RunKind, RunState, RunWindow, WindowState
from analytics.pipeline.connections import WORKER_LOCK, only_run
from analytics.pipeline.extraction.row_counts import leaf_rows
from analytics.pipeline.job import midnight, whole
from analytics.spark_process import spark_settings
from analytics.windows import hours_of
from delivery.maintenance.partitions import open_days, today
from tests.support.database import another_connection

DAY = dt.timedelta(days=1)


@pytest.fixture
def lake(settings: Any, tmp_path: Path, storage: None) -> None:
    settings.LAKE = str(tmp_path)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-03-05", "2026-03-05T00:00:00+00:00", "2026-03-06T00:00:00+00:00"),
        ("2026-03-05T14:00", "2026-03-05T14:00:00+00:00", "2026-03-05T14:00:00+00:00"),
        ("2026-03-05T14:00+02:00", "2026-03-05T12:00:00+00:00", "2026-03-05T12:00:00+00:00"),
    ],
)
def test_a_range_includes_its_last_day_and_ends_at_an_instant(text: str, start: str, end: str) -> None:
    assert (start_of(text).isoformat(), end_of(text).isoformat()) == (start, end)


@pytest.mark.parametrize(
    "text", ["yesterday", "2026-02-30", "2026-03-05T25:00", "", "9999-12-31", "9999-12-31T23:00-02:00"]
)
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is no day such as 2026-11-20"):
        end_of(text)


def test_the_last_two_minutes_are_refused(lake: None) -> None:
    just_now = (run_requests.now() - dt.timedelta(seconds=30)).isoformat()
    with pytest.raises(CommandError, match="less than 2 minutes ago is not summarized yet"):
        call_command("summarize", "--from", just_now)


def test_the_command_refuses_while_another_run_is_in_progress(lake: None) -> None:
    other = Run.objects.create(kind=RunKind.HOURS, state=RunState.RUNNING, started_at=Now())
    with (
        only_run(spark_settings().database_url, WORKER_LOCK),
        pytest.raises(CommandError, match=rf"Another run is under way \(run {other.pk}, since .* UTC\)\. Try again"),
    ):
        call_command("summarize", "--from", f"{today() - DAY}")
    assert [*Run.objects.values_list("pk", flat=True)] == [other.pk]


def test_without_a_lake_it_says_what_to_set(settings: Any, storage: None) -> None:
    settings.LAKE = ""
    with pytest.raises(CommandError, match="set BROKER_LAKE"):
        call_command("summarize", "--from", f"{today()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_run_in_order(number: signal.Signals) -> None:
    said: list[str] = []
    before = signal.getsignal(number)
    with interruptible(said.append) as stopping:
        signal.raise_signal(number)
        assert stopping.is_set()
    assert (said, signal.getsignal(number)) == (["Interrupted: Spark ends ..."], before)


@pytest.mark.parametrize("disabled", [logging.NOTSET, logging.ERROR])
def test_the_command_logs_only_warnings_and_then_as_before(disabled: int) -> None:
    logging.disable(disabled)
    try:
        with interruptible(print):
            assert logging.root.manager.disable == max(disabled, logging.INFO)
        assert logging.root.manager.disable == disabled
    finally:
        logging.disable(logging.NOTSET)


def test_the_table_has_rows_read_written_and_checks_of_each_window(db: None) -> None:
    run = Run.objects.create(kind=RunKind.HOURS)
    day = dt.date(2026, 3, 5)
    for window, state, passed in (
        (hours_of(day)[14], WindowState.FAILED, False),
        (whole(day - DAY), WindowState.PASSED, True),
    ):
        RunWindow.objects.create(
            run=run,
            start=window.start,
            end=window.end,
            state=state,
            rows_read={"deliveries": 1_200, "attempts": 34},
            rows_written={"gold/reliability": 7},
            checks=[{"name": "one", "passed": True, "found": ""}, {"name": "other", "passed": passed, "found": ""}],
            seconds=12.34,
        )
    assert [" ".join(line.split()) for line in table_of(run.windows.order_by("start"))] == [
        "window state rows read rows written checks seconds",
        "2026-03-04 PASSED 1,234 7 2 of 2 12.3",
        "2026-03-05 14:00 FAILED 1,234 7 1 of 2 12.3",
    ]


def test_with_nothing_due_the_command_says_so_and_nothing_else(
    lake: None, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    day = today() - 2 * DAY
    open_days(day, ahead=0)
    passed = Run.objects.create(kind=RunKind.DAYS, state=RunState.PASSED, started_at=Now())
    with another_connection() as other:
        known = leaf_rows(other, day)
    whole_day = {"start": midnight(day), "end": midnight(day + DAY), "inputs": known}
    RunWindow.objects.create(run=passed, **whole_day, state=WindowState.PASSED)
    summarize(day)
    assert capsys.readouterr() == (f"{NOTHING_DUE}\n", "")
    assert caplog.messages == []


def test_a_problem_at_the_start_is_the_only_output(
    storage: None, settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day = today() - 2 * DAY
    open_days(day, ahead=0)
    (tmp_path / "file").touch()
    settings.LAKE = str(tmp_path / "file")
    with pytest.raises(CommandError, match="cannot be written to"):
        summarize(day)
    assert capsys.readouterr() == ("", "")


def summarize(day: dt.date) -> None:
    call_command("summarize", "--from", f"{day}", "--to", f"{day}")
