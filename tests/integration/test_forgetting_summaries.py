"""What is older than it is kept goes: summaries, runs, and days of the lake."""

import datetime as dt
from pathlib import Path

from django.apps import apps
from structlog.testing import capture_logs

from analytics.models import Backlog, ErrorBudget, HourTotal, Reliability, Run, RunKind, RunState
from analytics.pipeline.tables import GOLD
from analytics.retention_of_summaries import forget
from analytics.windows import midnight
from delivery.maintenance.partitions import today

KEEP_DAYS = 400
FIRST = dt.timedelta(days=KEEP_DAYS)
SECOND = dt.timedelta(seconds=1)


def test_summaries_and_runs_of_days_past_their_time_are_removed(db: None) -> None:
    first = midnight(today() - FIRST)
    for at in (first - SECOND, first):
        Reliability.objects.create(hour=at, deliveries=1, delivered=1, eligible=1, first_attempt=1, attempts=1)
        Backlog.objects.create(at=at, deliveries=1)
        ErrorBudget.objects.create(
            day=at.date(), eligible=1, bad=0, objective=0.999, eligible_28=1, bad_28=0, spent=0.0
        )
        HourTotal.objects.create(hour=at)
        Run.objects.create(kind=RunKind.HOURS, state=RunState.PASSED, ended_at=at)
    with capture_logs() as told:
        forget("", keep_days=KEEP_DAYS)
    assert [(one["rows"], one["runs"]) for one in told] == [(4, 1)], "each table had one row too old"
    assert [*Reliability.objects.values_list("hour", flat=True)] == [first]
    assert [*Backlog.objects.values_list("at", flat=True)] == [first]
    assert [*HourTotal.objects.values_list("hour", flat=True)] == [first]
    assert [*ErrorBudget.objects.values_list("day", flat=True)] == [first.date()]
    assert [*Run.objects.values_list("ended_at", flat=True)] == [first]


def test_every_summary_is_asked(db: None) -> None:
    tables = {model._meta.db_table for model in apps.get_app_config("analytics").get_models()}
    others = {"analytics_run", "analytics_runwindow", "analytics_totals"}
    assert {f"analytics_{table.name}" for table in GOLD} == tables - others


def test_days_of_the_lake_past_their_time_are_removed_with_their_manifests(db: None, tmp_path: Path) -> None:
    kept, gone = today() - FIRST, today() - FIRST - dt.timedelta(days=1)
    for day in (kept, gone):
        folder = tmp_path / f"gold/reliability/dt={day}/hours=00-24/run=7"
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").touch()
        (tmp_path / "manifests").mkdir(exist_ok=True)
        (tmp_path / f"manifests/dt={day}.json").touch()
    (tmp_path / "manifests/touched").mkdir()
    (tmp_path / f"manifests/touched/dt={gone}").touch()
    foreign = {tmp_path / f"manifests/dt={gone}.json.new", tmp_path / "gold/reliability/notes.txt"}
    for file in foreign:
        file.touch()
    forget(str(tmp_path), keep_days=KEEP_DAYS)
    kept_files = {path for path in tmp_path.rglob("*") if path.is_file()} - foreign
    files = sorted(str(path.relative_to(tmp_path)) for path in kept_files)
    assert [name for name in files if "touched" not in name] == [
        f"gold/reliability/dt={kept}/hours=00-24/run=7/part-0.parquet",
        f"manifests/dt={kept}.json",
    ]
