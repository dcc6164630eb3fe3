"""PostgreSQL as a data source of Spark: slices are planned on the driver and copied on the executors."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Final

import psycopg
import pyarrow as pa
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from analytics.pipeline.connections import fetch, reading
from analytics.pipeline.extraction import statements
from analytics.pipeline.extraction.statements import SOURCES, UNFINISHED_TABLES, Bounds, bounds_of, within
from analytics.pipeline.job import Window
from analytics.pipeline.tables import BRONZE, WAITING, Table

NAME: Final = "broker"

BLOCK_BYTES: Final = 2**24
"""Parsed at a time; no row is longer. Rows of one instant stay in one slice, however many they are."""
SAMPLE_PAGES: Final = 1000
"""Tables of fewer pages (8 MB) are sampled completely."""
MIN_SAMPLE_PERCENT: Final = 1.0
"""Of larger tables: a slice of 100,000 rows still has a dozen pages in such a sample."""
MIN_NEW_ROWS: Final = 10_000
"""With fewer new rows, reading them in every slice is faster than updating the index."""
LOCK_TIMEOUT: Final = "200ms"
"""Less than `deadlock_timeout`, after which a waiting session ends an autovacuum."""

ARROW_TYPES: Final = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}

COUNT_PAGES: Final = "SELECT sum(pg_relation_size(name::regclass)) / 8192 FROM unnest(%s::text[]) AS name"

STALE_INDEXES: Final = """
SELECT i.indexrelid::regclass::text
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
 WHERE a.amname = 'brin' AND i.indrelid = ANY (%s::regclass[]) AND pg_has_role(c.relowner, 'USAGE')
   AND pg_stat_get_ins_since_vacuum(i.indrelid) >= %s
"""
"""Every slice would read the pages that a BRIN index does not cover yet."""

MARKS: Final = """
SELECT mark::text
  FROM (SELECT r.{by} AS mark, row_number() OVER (ORDER BY r.{by}) - 1 AS number FROM {rows} r WHERE {condition}) AS s
 WHERE number > 0 AND number % {step} = 0
 GROUP BY mark ORDER BY s.mark
"""
"""Every n-th value of a sample; rows between two marks are read once, wherever they are stored."""


def copied(address: str, table: Table, query: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query with a table's columns; its transaction ends before the first is yielded.

    So vacuum and retention wait for PostgreSQL and the network, never for Spark; a slice fits into memory.

    Raises:
        Unreadable: PostgreSQL is away, or the rows no longer exist.

    """
    with (
        reading(address) as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)".encode()) as rows,
    ):
        text = bytearray()
        for row in rows:
            text += row
    yield from arrow(text, table)


def arrow(text: bytes | bytearray, table: Table) -> list[pa.RecordBatch]:
    """Parse PostgreSQL's CSV into a table's columns; unquoted empty values are null."""
    if not text:
        return []
    types = {name: ARROW_TYPES[kind] for name, kind in table.types.items()}
    read = csv.read_csv(
        pa.py_buffer(text),
        read_options=csv.ReadOptions(column_names=list(types), use_threads=False, block_size=BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return list(read.to_batches())


def slices(connection: psycopg.Connection[Any], table: Table, window: Window, slice_rows: int) -> list[str]:
    """Return the queries that together return a window's rows, about `slice_rows` each.

    Raises:
        Unreadable: some of the rows have been dropped.

    """
    relations = statements.relations_of(connection, table, window)
    update_indexes(connection, relations)
    rows, (start, end) = statements.rows_of(connection, table, window, relations), bounds_of(table, window)
    messages = statements.messages_of(connection, relations) if SOURCES[table].joined else ()
    if table in statements.EVENTS:
        start = statements.earliest_event(connection, window).isoformat()
    marks = _marks(connection, table, window, relations, slice_rows)
    return [statements.selected(table, window, rows, piece, messages) for piece in pieces((start, end), marks)]


def pieces(bounds: Bounds, marks: Sequence[str]) -> list[Bounds]:
    """Return the pieces into which ordered marks cut the bounds; each begins with its mark."""
    start, end = bounds
    return list(pairwise([start, *(mark for mark in marks if mark != start), end]))


def update_indexes(connection: psycopg.Connection[Any], relations: Sequence[str]) -> None:
    """Add new pages to the BRIN indexes by time; without the lock, reading just takes longer."""
    busy_or_a_copy = psycopg.errors.LockNotAvailable, psycopg.errors.ObjectNotInPrerequisiteState
    for index in stale_indexes(connection, relations):
        with suppress(*busy_or_a_copy), connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
            connection.execute("SELECT brin_summarize_new_values(%s::regclass)", [index])


def stale_indexes(connection: psycopg.Connection[Any], relations: Sequence[str]) -> list[str]:
    """Return the BRIN indexes of relations that got many rows since they were vacuumed."""
    return [index for (index,) in fetch(connection, STALE_INDEXES, list(relations), MIN_NEW_ROWS)]


def _marks(
    connection: psycopg.Connection[Any], table: Table, window: Window, relations: Sequence[str], slice_rows: int
) -> list[str]:
    [(pages,)] = fetch(connection, COUNT_PAGES, list(relations))
    percent = sample_percent(int(pages))
    sampling = f" TABLESAMPLE SYSTEM ({percent}) REPEATABLE (0)"
    sampled = statements.rows_of(connection, table, window, relations, sampling)
    statement = MARKS.format(
        by=SOURCES[table].by,
        rows=sampled,
        condition="true" if table in UNFINISHED_TABLES else within(table, bounds_of(table, window)),
        step=max(1, round(slice_rows * percent / 100)),
    )
    return [mark for (mark,) in fetch(connection, statement)]


def sample_percent(pages: int) -> float:
    """Return the percentage of a table's pages that is sampled for marks."""
    return min(100.0, max(MIN_SAMPLE_PERCENT, 100.0 * SAMPLE_PAGES / max(pages, 1)))


@dataclass(frozen=True, slots=True)
class SliceReader(DataSourceReader):
    """Reads one bronze table of one window."""

    address: str = field(repr=False)
    table: Table
    window: Window
    slice_rows: int

    def partitions(self) -> list[InputPartition]:
        """Return the slices, each with its query; called on the driver, once for each query that Spark runs."""
        with reading(self.address) as connection:
            queries = slices(connection, self.table, self.window, self.slice_rows)
        return [InputPartition(query) for query in queries]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Copy a slice; called on an executor."""
        return copied(self.address, self.table, partition.value)


class Broker(DataSource):
    """The broker's database; `read` sets its options."""

    address: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return the columns of the table."""
        return self._table.columns

    def reader(self, schema: StructType) -> SliceReader:  # noqa: ARG002 - Spark's signature
        """Return the reader of a window."""
        return SliceReader(self.address, self._table, Window.from_json(self.options), int(self.options["slice_rows"]))

    @property
    def _table(self) -> Table:
        return next(table for table in BRONZE if table.name == self.options["table"])


def register(spark: SparkSession, address: str) -> None:
    """Register the database as a data source.

    The address is an attribute of a class that Spark pickles for its planners and executors. It is in no option or
    setting, which plans, pages and logs may show.
    """
    spark.dataSource.register(type("BoundBroker", (Broker,), {"address": address}))


def read(spark: SparkSession, table: Table, window: Window, *, slice_rows: int) -> DataFrame:
    """Return the rows of a bronze table, about `slice_rows` a partition; each query reads them again.

    Failures are Spark's exceptions, with the text of `Unreadable` in them.
    """
    options = {"table": table.name, **window.as_json()}
    frame = spark.read.format(NAME).options(**options, slice_rows=slice_rows).load()
    if table == WAITING:  # add up what several slices have counted
        return frame.groupBy("subscription_id", "line_id", "since").agg(F.sum("deliveries").alias("deliveries"))
    return frame
