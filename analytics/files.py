"""Summaries as files that other tools read: CSV, and Parquet with the columns of the lake."""

import csv
import io
import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any, Final

from django.db.models import Model, QuerySet

from analytics.summaries import Summary

ROWS_AT_A_TIME: Final = 5_000
IN_MEMORY_BYTES: Final = 8 * 1024 * 1024
"""A longer file is written to disk before it is sent."""


def csv_lines(summary: Summary, rows: QuerySet[Model]) -> Iterator[bytes]:
    """Return a CSV file piece by piece: a header, instants as ISO 8601 in UTC, maps as JSON."""
    yield _csv([[*summary.columns]])
    for some in _batches(summary, rows):
        yield _csv([[_written(value) for value in row] for row in some])


def parquet_file(summary: Summary, rows: QuerySet[Model]) -> IO[bytes]:
    """Return a Parquet file, read from its beginning; it is gone when it is closed."""
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
    schema = pa.schema([(name, types[kind]) for name, kind in summary.columns.items()])
    file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115 - whoever sends it closes it
    with parquet.ParquetWriter(file, schema) as writer:
        for some in _batches(summary, rows):
            columns = zip(summary.columns.values(), zip(*some, strict=True), strict=True)
            values = [[_mapped(value, kind) for value in column] for kind, column in columns]
            arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    file.seek(0)
    return file


def _batches(summary: Summary, rows: QuerySet[Model]) -> Iterator[list[tuple[Any, ...]]]:
    found = rows.values_list(*summary.columns).iterator(chunk_size=ROWS_AT_A_TIME)
    while some := list(islice(found, ROWS_AT_A_TIME)):
        yield some


def _csv(lines: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue().encode()


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _mapped(value: Any, kind: str) -> Any:
    """Return a map as Arrow takes it, its keys as numbers where they are: JSON has only texts."""
    if not isinstance(value, dict):
        return value
    key_of = int if kind.startswith("map<int") else str
    return sorted((key_of(key), number) for key, number in value.items())
