"""Delete summaries, days of the lake and run logs that are past their retention."""

import datetime as dt
from typing import Final

import structlog
from django.db import connection

from analytics.models import HourTotal, Run
from analytics.pipeline.job import DAY
from analytics.pipeline.lake.manifests import FOLDER, day_of
from analytics.pipeline.tables import BRONZE, GOLD, SILVER, Table
from analytics.windows import midnight
from delivery.maintenance import partitions

TABLES: Final = BRONZE + SILVER + GOLD

log = structlog.get_logger(__name__)


def forget(lake: str, *, keep_days: int) -> None:
    """Remove what is of days that ended `keep_days` or more days ago; `lake` is a path or URL, empty if there is none.

    Raises:
        OSError: the lake cannot be reached; the rest is done.

    """
    first = partitions.today() - keep_days * DAY
    totals, _ = HourTotal.objects.filter(hour__lt=midnight(first)).delete()
    rows = totals + sum(_forget_rows(table, first) for table in GOLD)
    runs, _ = Run.objects.filter(ended_at__lt=midnight(first)).delete()
    log.info("summaries.forgotten", before=str(first), rows=rows, runs=runs)
    if lake:
        _forget_days(lake, first)


def _forget_rows(table: Table, first: dt.date) -> int:
    """Delete the rows of a summary; its first column says when they are of."""
    time, *_ = table.columns.split()
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM analytics_{table.name} WHERE {time} < %s", [midnight(first)])
        return int(cursor.rowcount)


def _forget_days(lake: str, first: dt.date) -> None:
    # Not at the top: it brings Arrow with it, 60 MB that most workers never need.
    from analytics.pipeline.lake.places import Place  # noqa: PLC0415

    place = Place.at(lake)
    for name in place.entries(FOLDER):
        if name.endswith(".json") and _is_before(first, name):
            place.forget(f"{FOLDER}/{name}")  # first: what no manifest names counts for nobody
    for table in TABLES:
        for name in place.entries(table.path):
            if _is_before(first, name):
                place.remove(f"{table.path}/{name}")


def _is_before(first: dt.date, name: str) -> bool:
    day = day_of(name)
    return day is not None and day < first
