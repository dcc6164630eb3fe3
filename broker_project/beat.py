"""Celery's clock, with the schedule in the database, where admins change it.

Beyond what django-celery-beat does by itself: entries that are not there yet are added, and those that are stay as an
admin left them; one that is broken, or a database that is away, stops nothing; and an entry that was due while beat
was away is made up for, whatever its hour.
"""

from collections.abc import Iterator
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections
from django.db.models import QuerySet
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

log = structlog.get_logger(__name__)

SUMMARIES = "analytics."
"""What the names of the tasks begin with that nobody sends where there are no summaries."""


class Entry(ModelEntry):  # type: ignore[misc]
    """An entry, and its row in the database."""

    def save(self) -> None:
        """Note when it ran last, and nothing else: an admin may be changing the rest."""
        last = {"last_run_at": self.model.last_run_at, "total_run_count": self.model.total_run_count}
        PeriodicTask.objects.filter(pk=self.model.pk).update(**last)

    @classmethod
    def add(cls, name: str, **fields: Any) -> None:
        """Add it as the settings describe it, if nobody has done so meanwhile."""
        PeriodicTask.objects.get_or_create(name=name, defaults=cls._unpack_fields(**fields))


class Schedule(DatabaseScheduler):  # type: ignore[misc]
    """Every entry that is switched on."""

    Entry = Entry

    def setup_schedule(self) -> None:
        """Leave it to the first look: the database may be away."""

    def all_as_schedule(self) -> dict[str, ModelEntry]:
        """Return the entries as they stand; where the database cannot tell, those there were, until the next look."""
        try:
            self._add_missing()
            self._last_timestamp = self.Changes.last_change()  # before the look, so that nothing falls between
            return dict(self._entries())
        except (DatabaseError, InterfaceError) as failure:
            log.warning("beat.database_failed", reason=failure)
            self._initial_read = True
            return self._schedule or {}

    def schedule_changed(self) -> bool:
        """Say whether an admin has changed something since the last look; where the database cannot tell, no."""
        try:
            close_old_connections()
            last, self._last_timestamp = self._last_timestamp, self.Changes.last_change()
        except (DatabaseError, InterfaceError) as failure:
            log.warning("beat.database_failed", reason=failure)
            return False
        return bool(last != self._last_timestamp)

    def enabled_models_qs(self) -> "QuerySet[PeriodicTask]":
        """Return all of them.

        django-celery-beat leaves those aside whose hour is far, so that nobody sends what was missed meanwhile.
        """
        enabled: QuerySet[PeriodicTask] = PeriodicTask.objects.enabled()
        return enabled if settings.SUMMARIES else enabled.exclude(task__startswith=SUMMARIES)

    def _add_missing(self) -> None:
        described = self.app.conf.beat_schedule
        there = set(PeriodicTask.objects.filter(name__in=described).values_list("name", flat=True))
        for name in described.keys() - there:
            Entry.add(name, **described[name])

    def _entries(self) -> Iterator[tuple[str, ModelEntry]]:
        for model in self.enabled_models():
            try:
                yield model.name, Entry(model, app=self.app)
            except (DatabaseError, InterfaceError):
                raise
            except Exception:
                log.exception("beat.entry_broken", entry=model.name)
