"""The rows of summaries: read within a range, written as CSV and Parquet files, deleted after their retention."""

import csv
import datetime as dt
import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import IO, Any, Final

import structlog
from django.db.models import Model, QuerySet

from analytics.models import HourTotal, Run, rows_of
from analytics.pipeline.job import DAY, midnight
from analytics.pipeline.manifests import FOLDER, day_of
from analytics.pipeline.tables import BRONZE, GOLD, SILVER, Table
from analytics.windows import Range
from delivery.believed_clock import BELIEVED_CLOCK

SUMMARIES: Final = {table.name: table for table in GOLD}

FILTERS: Final = ("subscriber", "event_type", "publisher", "kind")
"""Columns that rows can be filtered by, in the summaries that have them."""

BATCH_ROWS: Final = 5_000
IN_MEMORY_BYTES: Final = 8 * 1024 * 1024
"""A longer file is written to disk before it is sent."""

MAX_FILE_ROWS: Final = 100_000
"""Rows of a file: the web server holds it whole while it is sent, about 40 MB."""

log = structlog.get_logger(__name__)


def rows_between(table: Table, between: Range, values: Mapping[str, Any]) -> QuerySet[Model]:
    """Return the rows of a range whose columns have these values, the oldest first.

    A day is in a range that begins during it.
    """
    start: dt.date = between.start
    end: dt.date = between.end
    if table.types[table.time] == "date":
        start, end = between.start.date(), (between.end + DAY - dt.timedelta.resolution).date()
    times = {f"{table.time}__gte": start, f"{table.time}__lt": end}
    return rows_of(table).filter(**times, **values).order_by(table.time, "pk")


def refusal_of_file(rows: QuerySet[Any]) -> str | None:
    """Return why these rows are no file, None if they are one."""
    if rows.order_by()[MAX_FILE_ROWS : MAX_FILE_ROWS + 1].exists():
        return f"A file has {MAX_FILE_ROWS:,} rows at most. Give a shorter range, or a subscriber or event type."
    return None


def csv_lines(table: Table, rows: QuerySet[Model]) -> Iterator[bytes]:
    """Return a CSV file piece by piece: a header, instants as ISO 8601 in UTC, maps as JSON."""

    def written(value: Any) -> Any:
        if isinstance(value, dict):
            return json.dumps(value, sort_keys=True)
        return value.isoformat() if hasattr(value, "isoformat") else value

    header: Iterable[Iterable[Any]] = [[*table.types]]
    for batch in chain([header], _batches(table, rows)):
        text = io.StringIO()
        csv.writer(text).writerows([written(value) for value in row] for row in batch)
        yield text.getvalue().encode()


def parquet_file(table: Table, rows: QuerySet[Model]) -> IO[bytes]:
    """Return a Parquet file, positioned at its beginning; it is deleted when it is closed."""
    # Not at the top: it takes 60 MB, and most web processes never write a file.
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    types = {
        "timestamp": pa.timestamp("us", tz="UTC"),
        "date": pa.date32(),
        "string": pa.string(),
        "int": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "map<string,long>": pa.map_(pa.string(), pa.int64()),
        "map<int,long>": pa.map_(pa.int32(), pa.int64()),
    }

    def mapped(value: Any, kind: str) -> Any:
        """Return a map as Arrow takes it, its keys as numbers where they are: JSON has only texts."""
        if not isinstance(value, dict):
            return value
        key_of = int if kind.startswith("map<int") else str
        return sorted((key_of(key), number) for key, number in value.items())

    schema = pa.schema([(name, types[kind]) for name, kind in table.types.items()])
    file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115 - the response closes it
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in _batches(table, rows):
            columns = zip(schema.types, table.types.values(), zip(*batch, strict=True), strict=True)
            arrays = [pa.array([mapped(value, kind) for value in column], type_) for type_, kind, column in columns]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    file.seek(0)
    return file


def _batches(table: Table, rows: QuerySet[Model]) -> Iterator[list[tuple[Any, ...]]]:
    found = rows.values_list(*table.types).iterator(chunk_size=BATCH_ROWS)
    while batch := list(islice(found, BATCH_ROWS)):
        yield batch


def apply_retention(lake: str, *, keep_days: int) -> None:
    """Delete summaries, run logs and lake files of days that ended `keep_days` or more days ago.

    `lake` is a path or URL; empty without a lake. Deletes nothing while the database's clock is not believed.

    Raises:
        OSError: the lake cannot be reached; everything else is deleted.
    """
    if (now := BELIEVED_CLOCK.now()) is None:
        return
    first = now.date() - keep_days * DAY
    deleted, _ = HourTotal.objects.filter(hour__lt=midnight(first)).delete()
    for table in GOLD:
        limit = first if table.types[table.time] == "date" else midnight(first)
        deleted += rows_of(table).filter(**{f"{table.time}__lt": limit}).delete()[0]
    runs, _ = Run.objects.filter(ended_at__lt=midnight(first)).delete()
    log.info("summaries.expired", before=str(first), rows=deleted, runs=runs)
    if lake:
        _delete_lake_days(lake, first)


def _delete_lake_days(lake: str, first: dt.date) -> None:
    # Not at the top: it imports Arrow, 60 MB that most workers never need.
    from analytics.pipeline.lake_files import LakeFiles  # noqa: PLC0415

    def expired(folder: str) -> Iterator[str]:
        for name in storage.entries(folder):
            day = day_of(name)
            if day and day < first:
                yield f"{folder}/{name}"

    storage = LakeFiles.at(lake)
    for path in expired(FOLDER):
        if path.endswith(".json"):
            storage.files.delete_file(path)  # before the data: files that no manifest names do not count
    for table in BRONZE + SILVER + GOLD:
        for path in expired(table.path):
            storage.files.delete_dir(path)
