"""The scheduler of Celery beat, with the schedule in the database, where admins change it.

In addition to django-celery-beat: missing entries of the settings are added, and existing ones stay as they are; a
broken entry or an unreachable database does not stop the others; an entry that was due while beat was down is run; and
one that ran while the machine's clock was ahead waits no longer for that than for its next time (contract 5.9).
"""

from collections.abc import Iterator

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections
from django.db.models import QuerySet
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

log = structlog.get_logger(__name__)

SUMMARIES = "analytics."
"""Prefix of the tasks that are not sent while summaries are switched off."""


class Entry(ModelEntry):  # type: ignore[misc]
    """An entry of the schedule, with its row."""

    def save(self) -> None:
        """Store when it last ran. Other columns are left alone, because an admin may be editing them."""
        last = {"last_run_at": self.model.last_run_at, "total_run_count": self.model.total_run_count}
        PeriodicTask.objects.filter(pk=self.model.pk).update(**last)


class Schedule(DatabaseScheduler):  # type: ignore[misc]
    """All enabled entries."""

    Entry = Entry

    def setup_schedule(self) -> None:
        """Do nothing yet: the first read does it, and the database may be unreachable now."""

    def all_as_schedule(self) -> dict[str, ModelEntry]:
        """Add missing entries and return all; if the database is unreachable, return the last known ones."""
        try:
            declared = self.app.conf.beat_schedule
            existing = set(PeriodicTask.objects.filter(name__in=declared).values_list("name", flat=True))
            for name in declared.keys() - existing:
                fields = Entry._unpack_fields(**declared[name])  # noqa: SLF001 - as its own `from_entry` does
                PeriodicTask.objects.get_or_create(name=name, defaults=fields)
            self._last_timestamp = self.Changes.last_change()  # before the read, so that no change is missed
            return dict(self._entries())
        except (DatabaseError, InterfaceError) as failure:
            log.warning("beat.database_failed", reason=failure)
            self._initial_read = True
            return self._schedule or {}

    def schedule_changed(self) -> bool:
        """Tell whether the schedule has changed since the last call, or is to be read again since the clock was ahead.

        False if the database is unreachable.
        """
        try:
            close_old_connections()
            last, self._last_timestamp = self._last_timestamp, self.Changes.last_change()
        except (DatabaseError, InterfaceError) as failure:
            log.warning("beat.database_failed", reason=failure)
            return False
        return bool(last != self._last_timestamp) or any(map(_was_ahead, (self._schedule or {}).values()))

    def enabled_models_qs(self) -> "QuerySet[PeriodicTask]":
        """Return all enabled entries.

        django-celery-beat would leave out entries that are not due soon, and with them the runs that were missed.
        """
        enabled: QuerySet[PeriodicTask] = PeriodicTask.objects.enabled()
        return enabled if settings.SUMMARIES else enabled.exclude(task__startswith=SUMMARIES)

    def _entries(self) -> Iterator[tuple[str, ModelEntry]]:
        for model in self.enabled_models():
            try:
                entry = Entry(model, app=self.app)
                if _was_ahead(entry):
                    entry.last_run_at = model.last_run_at = timezone.now()
                    self._dirty.add(entry.name)
                yield entry.name, entry
            except (DatabaseError, InterfaceError):
                raise
            except Exception:
                log.exception("beat.entry_broken", entry=model.name)


def _was_ahead(entry: ModelEntry) -> bool:
    """Tell whether an entry ran at a time that is yet to come."""
    return bool(entry.model.last_run_at > timezone.now())
