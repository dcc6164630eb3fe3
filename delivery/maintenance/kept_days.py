"""Days that are past their time and kept, because they have not been summarized: said once a day, and shown."""

import datetime as dt
from typing import Final

import structlog
from django.db.models import Q

from delivery.models import StorageDay

HINT: Final = (
    "past their time, but kept until they are summarized: the runs in the admin say why they are not; `manage.py"
    " summarize` tries again, BROKER_SUMMARIES=0 drops them without"
)

log = structlog.get_logger(__name__)


def warn_of(waiting: list[dt.date], today: dt.date) -> None:
    """Warn of those that wait for their own summary, of each once a day, whoever and how many look."""
    missing = StorageDay.objects.filter(day__in=waiting, summarized_at=None)
    unsaid = missing.filter(Q(kept_on=None) | ~Q(kept_on=today)).order_by("day")
    days = [day for day in unsaid.values_list("day", flat=True) if unsaid.filter(day=day).update(kept_on=today)]
    if days:
        log.warning("storage_day.waits_for_summary", days=[str(day) for day in days], hint=HINT)


def days_kept() -> list[dt.date]:
    """Return the days that are kept so, the oldest first."""
    kept = StorageDay.objects.filter(kept_on__isnull=False, summarized_at=None, dropped_at=None)
    return [*kept.order_by("day").values_list("day", flat=True)]
