"""`manage.py summarize`: what it takes, and what it refuses. What it does is told where Spark is."""

import datetime as dt
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from analytics.management.commands.summarize import end_of, start_of
from analytics.models import Run, RunKind, RunState
from delivery.retention.storage_days import today

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
def test_a_day_is_included_and_an_instant_is_where_it_ends(text: str, start: str, end: str) -> None:
    assert (start_of(text).isoformat(), end_of(text).isoformat()) == (start, end)


@pytest.mark.parametrize("text", ["yesterday", "2026-02-30", "2026-03-05T25:00", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is no day such as 2026-11-20"):
        start_of(text)


@pytest.mark.parametrize(
    ("start", "end", "refusal"),
    [
        (DAY, DAY, "before it begins"),
        (0 * DAY, -2 * DAY, "before it begins"),
        (-40 * DAY, -30 * DAY, "Nothing of that time is kept any more; what is kept begins on"),
    ],
)
def test_a_range_of_nothing_is_refused(start: dt.timedelta, end: dt.timedelta, refusal: str, lake: None) -> None:
    with pytest.raises(CommandError, match=refusal):
        call_command("summarize", "--from", f"{today() + start}", "--to", f"{today() + end}")
    assert not Run.objects.exists()


def test_nothing_is_begun_while_another_run_is_under_way(lake: None) -> None:
    other = Run.objects.create(kind=RunKind.HOURS, state=RunState.RUNNING, started_at=Now())
    with pytest.raises(CommandError, match=rf"Another run is under way \(run {other.pk}, since .* UTC\)\. Try again"):
        call_command("summarize", "--from", f"{today()}")
    assert [*Run.objects.values_list("pk", flat=True)] == [other.pk]


def test_without_a_lake_it_says_what_to_set(settings: Any, storage: None) -> None:
    settings.LAKE = ""
    with pytest.raises(CommandError, match="set BROKER_LAKE"):
        call_command("summarize", "--from", f"{today()}")
