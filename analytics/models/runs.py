"""Runs of the Spark application, and what each did."""

import datetime as dt

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class RunKind(models.TextChoices):
    """Why a run was started."""

    HOURS = "HOURS", "Closed hours"
    """By the schedule: the hours of days that still grow."""

    DAYS = "DAYS", "Closed days"
    """By the schedule: days that were sealed, or touched since they were summarized."""

    RANGE = "RANGE", "A range"
    """Somebody asked for it: a backfill, or now."""


class RunState(models.TextChoices):
    """Where a run stands."""

    WAITING = "WAITING"
    """Asked for; a worker of the queue `analytics` takes it up."""

    RUNNING = "RUNNING"

    PASSED = "PASSED"
    """All its windows are summarized, all checks passed."""

    FAILED = "FAILED"
    """Something of it failed; the summaries that it did not reach are what they were."""

    ABANDONED = "ABANDONED"
    """It vanished, or its worker was stopped: what it had not done is done again, by itself if it was a range."""


UNENDED = (RunState.WAITING, RunState.RUNNING)


class Run(models.Model):
    """One start of the Spark application."""

    kind = models.CharField(max_length=8, choices=RunKind)
    state = models.CharField(max_length=10, choices=RunState, default=RunState.WAITING, db_default=RunState.WAITING)
    start = models.DateTimeField(null=True)
    """Of a range: from when on; of others what is due is found when it starts."""
    end = models.DateTimeField(null=True)
    again = models.BooleanField(default=False, db_default=False)
    """Whether it also does what is summarized already."""
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    requested_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    error = models.TextField(default="", db_default="")
    """Why it failed, and what to do."""
    log = models.TextField(default="", db_default="")
    """What the application printed: its beginning and its end."""

    class Meta:
        constraints = [
            models.CheckConstraint(name="run_state", condition=Q(state__in=RunState.values)),
            models.CheckConstraint(
                name="run_range", condition=Q(start=None, end=None) | Q(start__lt=F("end"), kind=RunKind.RANGE)
            ),
            models.UniqueConstraint(name="run_alone", fields=["state"], condition=Q(state=RunState.RUNNING)),
        ]
        indexes = [models.Index(name="run_unended", fields=["id"], condition=Q(state__in=UNENDED))]

    def __str__(self) -> str:
        return f"run {self.pk}"

    @property
    def duration(self) -> dt.timedelta | None:
        """How long it took."""
        return self.ended_at - self.started_at if self.ended_at and self.started_at else None


class WindowState(models.TextChoices):
    """What became of a window in a run."""

    PASSED = "PASSED"
    """Summarized; the lake and the summaries have it."""

    FAILED = "FAILED"
    """A check failed, or something broke: the summaries have what they had, and the lake too unless loading failed.

    It is done again, if it had passed before as well.
    """


class RunWindow(models.Model):
    """One hour or day that a run summarized, or failed to: what it read and wrote, and what was checked."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="windows")
    start = models.DateTimeField()
    end = models.DateTimeField()
    state = models.CharField(max_length=8, choices=WindowState)
    inputs = models.JSONField(default=dict)
    """What the leaves held when they were read: `{leaf: rows}`; once they hold something else it is done again."""
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
