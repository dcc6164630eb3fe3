"""Runs of the Spark application and the summaries they load: the models of summaries are made of the pipeline's tables.

A new summary needs its table in `pipeline/tables.py` and the migration that `makemigrations` writes.
"""

import datetime as dt
import re
from collections.abc import Callable
from typing import Any, Final, cast

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from analytics.pipeline.tables import GOLD, Table


class Alert(models.Model):
    """One of the alerts, as the last look found it (contract 11.8)."""

    name = models.CharField(max_length=32, primary_key=True)
    met_since = models.DateTimeField(null=True)
    """Since when its condition is met; None while it is not."""
    fired_at = models.DateTimeField(null=True)
    """When it fired, which was published; None while it does not."""
    reason = models.TextField(default="", db_default="")
    """Why the condition is met."""
    looked_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class ClockDifference(models.Model):
    """A process whose own clock differs from the database's by over 30 s, as it last noted."""

    process = models.TextField(primary_key=True)
    """The name of its machine, and its id there."""
    ahead_seconds = models.BigIntegerField()
    """Negative if it is behind."""
    looks = models.SmallIntegerField(default=0)
    """How many looks for alerts have counted it since its process renewed it."""

    def __str__(self) -> str:
        return self.process


class RunKind(models.TextChoices):
    """Why a run was started."""

    HOURS = "HOURS", "Closed hours"
    """By the schedule: the hours of days that still change."""

    DAYS = "DAYS", "Closed days"
    """By the schedule: days that were sealed, or got late data since they were summarized."""

    RANGE = "RANGE", "A range"
    """On request: a backfill, or the latest hours."""


class RunState(models.TextChoices):
    """The state of a run."""

    WAITING = "WAITING", "Waiting for its worker"
    """Requested; a worker of the queue `analytics` starts it."""

    RUNNING = "RUNNING"

    CANCELLING = "CANCELLING"
    """To be cancelled: its worker ends Spark within seconds."""

    PASSED = "PASSED", "Done"
    """All its windows are summarized, all checks passed."""

    FAILED = "FAILED"
    """Some windows failed or were not reached, whose summaries are unchanged; or days after them are not made again."""

    ABANDONED = "ABANDONED", "Worker vanished"
    """Its worker stopped or died. Schedules and abandoned ranges do the remaining windows without a new request."""

    CANCELLED = "CANCELLED"
    """On request. Windows that were done count; the others can be requested again, or come due on schedule."""


UNDER_WAY = (RunState.RUNNING, RunState.CANCELLING)
UNFINISHED_RUNS = (RunState.WAITING, *UNDER_WAY)


class Run(models.Model):
    """One start of the Spark application."""

    kind = models.CharField(max_length=8, choices=RunKind)
    state = models.CharField(max_length=10, choices=RunState, default=RunState.WAITING, db_default=RunState.WAITING)
    start = models.DateTimeField(null=True)
    """Start of a range; scheduled runs find what is due when they start."""
    end = models.DateTimeField(null=True)
    again = models.BooleanField(default=False, db_default=False)
    """Whether it also repeats windows that are summarized already."""
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    requested_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    progress = models.JSONField(null=True)
    """`{number, total, step}`: which window of how many Spark does, and what with it; null before and after."""
    error = models.TextField(default="", db_default="")
    """Why it failed, and what to do."""
    log = models.TextField(default="", db_default="")
    """The head and the tail of what the application printed."""

    class Meta:
        constraints = [
            models.CheckConstraint(name="run_state", condition=Q(state__in=RunState.values)),
            models.CheckConstraint(
                name="run_range", condition=Q(start=None, end=None) | Q(start__lt=F("end"), kind=RunKind.RANGE)
            ),
            models.UniqueConstraint(name="run_alone", fields=["state"], condition=Q(state=RunState.RUNNING)),
        ]
        indexes = [models.Index(name="run_unended", fields=["id"], condition=Q(state__in=UNFINISHED_RUNS))]

    def __str__(self) -> str:
        return f"run {self.pk}"

    @property
    def can_be_cancelled(self) -> bool:
        """Whether it waits or runs, or will be started again."""
        is_restarted = self.state == RunState.ABANDONED and self.kind == RunKind.RANGE
        return self.state in {RunState.WAITING, RunState.RUNNING} or is_restarted

    def seconds_left(self, now: dt.datetime) -> float | None:
        """Return about how long it still takes, as long as windows took so far; None before the first is done."""
        if not self.progress or not self.started_at or self.progress["number"] == 1:
            return None
        done: int = self.progress["number"] - 1
        left: int = self.progress["total"] - done
        return (now - self.started_at).total_seconds() * left / done


class WindowState(models.TextChoices):
    """The result of a window in a run."""

    PASSED = "PASSED", "Done"
    """Summarized, in the lake and in PostgreSQL."""

    FAILED = "FAILED"
    """A check or a step failed. The summaries are unchanged, and so is the lake unless the load failed.

    The window is due again, even if it had passed before.
    """


class RunWindow(models.Model):
    """One hour or day of a run: rows read and written, and checks."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="windows")
    start = models.DateTimeField()
    end = models.DateTimeField()
    state = models.CharField(max_length=8, choices=WindowState)
    inputs = models.JSONField(default=dict)
    """`{partition: rows}` when they were read; a day is due again once a partition has other rows (late data)."""
    rows_read = models.JSONField(default=dict)
    """`{table: rows}` of bronze."""
    rows_written = models.JSONField(default=dict)
    """`{table: rows}` of silver and gold, as `layer/name`."""
    checks = models.JSONField(default=list)
    """`[{name, passed, found}]`."""
    lake_bytes = models.BigIntegerField(default=0)
    seconds = models.FloatField(default=0.0)
    error = models.TextField(default="", db_default="")
    ended_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(name="run_window_state", condition=Q(state__in=WindowState.values)),
            models.UniqueConstraint(name="run_window_once", fields=["run", "start", "end"]),
        ]
        indexes = [models.Index(name="run_window_start", fields=["start", "end", "-id"])]

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} of {self.run}"


OPTIONAL: Final = re.compile(r".*_id|group_of|high_.*")
"""Columns that may be null: ids of what may be unknown, and the audit's high-water marks."""

NUMBERS: Final[dict[str, Callable[..., Any]]] = {
    "int": models.IntegerField,
    "long": models.BigIntegerField,
    "double": models.FloatField,
    "timestamp": models.DateTimeField,
    "date": models.DateField,
}


def summary_model(table: Table) -> type[models.Model]:
    """Return the model of a summary, with the columns of its table and indexes by time and by subscriber."""
    indexes = [models.Index(name=f"{table.name}_{table.time}", fields=[table.time])]
    if "subscriber_id" in table.types:
        indexes.append(models.Index(name=f"{table.name}_subscriber", fields=["subscriber_id", table.time]))
    options = {"db_table": table.db_table, "verbose_name_plural": table.name, "indexes": indexes}
    members: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": table.description,
        "__str__": lambda row: f"{table.name} {getattr(row, table.time)}",
        "Meta": type("Meta", (), options),
    }
    for name, kind in table.types.items():
        if kind.startswith("map<"):
            members[name] = models.JSONField(default=dict)
        elif kind == "string":
            members[name] = models.TextField(default="")
        else:
            members[name] = NUMBERS[kind](null=bool(OPTIONAL.fullmatch(name)))
    return cast("type[models.Model]", type(f"{table.name.title().replace('_', '')}Summary", (models.Model,), members))


MODELS: Final = {table: summary_model(table) for table in GOLD}


def rows_of(table: Table) -> models.Manager[Any]:
    """Return the manager of a summary's rows."""
    return MODELS[table]._default_manager  # noqa: SLF001 - Django's name for it


class HourTotal(models.Model):
    """The summaries of one hour added up over all subscribers, so that the overview reads few rows."""

    hour = models.DateTimeField(primary_key=True)
    deliveries = models.BigIntegerField(default=0)
    delivered = models.BigIntegerField(default=0)
    eligible = models.BigIntegerField(default=0)
    first_attempt = models.BigIntegerField(default=0)
    by_status = models.JSONField(default=dict)
    histogram = models.JSONField(default=dict)
    """Of the time from published to delivered."""
    backlog = models.BigIntegerField(default=0)
    """The most deliveries that were unfinished at one moment."""

    class Meta:
        db_table = "analytics_totals"

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:%M}"
