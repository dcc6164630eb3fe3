"""PostgreSQL as a data source of Spark: slices are planned on the driver and copied on the executors."""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
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

from analytics.pipeline.extraction.connection import reading
from analytics.pipeline.extraction.statements import (
    HAPPENED_TO_THEM,
    SOURCES,
    UNENDED,
    Stretch,
    messages_of,
    reach_of,
    relations_of,
    rows_of,
    selected,
    stretch_of,
    within,
)
from analytics.pipeline.job import Window
from analytics.pipeline.tables import BRONZE, WAITING, Table

BLOCK_BYTES: Final = 2**20

SAMPLE_PAGES: Final = 1000
"""Tables of fewer pages (8 MB) are looked at wholly."""
MIN_PERCENT: Final = 1.0
"""Of bigger ones: a slice of 100,000 rows still has a dozen pages in such a sample."""

MANY_ROWS: Final = 10_000
"""Fewer new ones are read by every slice sooner than an index is told of them."""
LOCK_WAIT: Final = "200ms"
"""Less than `deadlock_timeout`, after which whoever waits for an autovacuum ends it."""


PAGES: Final = "SELECT sum(pg_relation_size(name::regclass)) / 8192 FROM unnest(%s::text[]) AS name"

NAME: Final = "broker"

TYPES: Final = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def copied(address: str, table: Table, query: str) -> Iterator[pa.RecordBatch]:
    """Yield what a query gives, with a table's columns; its transaction has ended before the first of it is yielded.

    So vacuum and retention wait for PostgreSQL and the network, never for whoever uses the rows; a slice fits into
    memory.

    Raises:
        Unreadable: PostgreSQL is away, or what was to be read is not there any more.

    """
    with (
        reading(address) as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)".encode()) as rows,
    ):
        whole = list(blocks(rows))
    for block in whole:
        yield from arrow(block, table)


def blocks(rows: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """Join rows into blocks; the server sends one at a time, however many lines a row has."""
    block, size = list[bytes | bytearray | memoryview](), 0
    for row in rows:
        block.append(row)
        size += len(row)
        if size >= BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def arrow(block: bytes, table: Table) -> list[pa.RecordBatch]:
    """Return whole rows of CSV, as PostgreSQL writes it, with a table's columns: what is not quoted may be null."""
    types = {name: TYPES[kind] for name, kind in (column.split() for column in table.columns.split(", "))}
    read = csv.read_csv(
        pa.py_buffer(block),
        read_options=csv.ReadOptions(column_names=list(types), use_threads=False, block_size=len(block)),
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


UNSUMMARIZED: Final = """
SELECT i.indexrelid::regclass::text
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
 WHERE a.amname = 'brin' AND i.indrelid = ANY (%s::regclass[]) AND pg_has_role(c.relowner, 'USAGE')
   AND pg_stat_get_ins_since_vacuum(i.indrelid) >= %s
"""
"""The newest pages are in no summary yet, and would be read by every slice."""


MARKS: Final = """
SELECT mark::text
  FROM (SELECT r.{by} AS mark, row_number() OVER (ORDER BY r.{by}) - 1 AS number FROM {rows} r WHERE {condition}) AS s
 WHERE number > 0 AND number % {step} = 0
 GROUP BY mark ORDER BY s.mark
"""
"""Every so many-th row of a sample: wherever they are, what lies between two of them is read once."""


def slices(connection: psycopg.Connection[Any], table: Table, window: Window, slice_rows: int) -> list[str]:
    """Return the queries that together give a window's rows, about `slice_rows` each.

    Raises:
        DayGone: some of it has been dropped.

    """
    relations = relations_of(connection, table, window)
    summarize(connection, relations)
    rows, (start, end) = rows_of(table, window, relations), stretch_of(table, window)
    messages = messages_of(connection, relations) if SOURCES[table].joined else ()
    if table in HAPPENED_TO_THEM:
        start = reach_of(connection, window).isoformat()
    marks = _marks(connection, table, window, relations, slice_rows)
    return [selected(table, window, rows, piece, messages) for piece in pieces((start, end), marks)]


def pieces(stretch: Stretch, marks: Sequence[str]) -> list[Stretch]:
    """Return the pieces into which marks, in their order, cut a stretch; each begins with its mark."""
    start, end = stretch
    return list(pairwise([start, *(mark for mark in marks if mark != start), end]))


def summarize(connection: psycopg.Connection[Any], relations: Sequence[str]) -> None:
    """Let the indexes by time know many new pages; where that is not to be had at once, reading takes longer."""
    busy_or_a_copy = psycopg.errors.LockNotAvailable, psycopg.errors.ObjectNotInPrerequisiteState
    for index in unsummarized(connection, relations):
        with suppress(*busy_or_a_copy), connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'".encode())
            connection.execute("SELECT brin_summarize_new_values(%s::regclass)", [index])


def unsummarized(connection: psycopg.Connection[Any], relations: Sequence[str]) -> list[str]:
    """Return the indexes by time of relations that got many rows since they were vacuumed."""
    return [index for (index,) in connection.execute(UNSUMMARIZED, [list(relations), MANY_ROWS])]


def _marks(
    connection: psycopg.Connection[Any], table: Table, window: Window, relations: Sequence[str], slice_rows: int
) -> list[str]:
    pages = connection.execute(PAGES, [relations]).fetchone()
    percent = percent_of(int(pages[0])) if pages else 100.0
    sampled = rows_of(table, window, relations, f" TABLESAMPLE SYSTEM ({percent}) REPEATABLE (0)")
    statement = MARKS.format(
        by=SOURCES[table].by,
        rows=sampled,
        condition="true" if table in UNENDED else within(table, stretch_of(table, window)),  # all are looked at
        step=max(1, round(slice_rows * percent / 100)),
    )
    return [mark for (mark,) in connection.execute(statement.encode())]


def percent_of(pages: int) -> float:
    """Return how many of a hundred pages are looked at to find where slices begin."""
    return min(100.0, max(MIN_PERCENT, 100.0 * SAMPLE_PAGES / max(pages, 1)))


@dataclass(frozen=True, slots=True)
class SliceReader(DataSourceReader):
    """Reads one table of bronze, of one window."""

    address: str = field(repr=False)
    table: Table
    window: Window
    slice_rows: int

    def partitions(self) -> list[InputPartition]:
        """Return the slices, each by its query; on the driver, once for each query that Spark runs."""
        with reading(self.address) as connection:
            queries = slices(connection, self.table, self.window, self.slice_rows)
        return [InputPartition(query) for query in queries]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Copy a slice; on an executor."""
        return copied(self.address, self.table, partition.value)


class Broker(DataSource):
    """The broker's database; what is read of it is said by `read`."""

    address: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return the columns of the table."""
        return self._table.columns

    def reader(self, schema: StructType) -> SliceReader:  # noqa: ARG002 - Spark's signature
        """Return what plans and reads the slices."""
        start, end = (dt.datetime.fromisoformat(self.options[name]) for name in ("start", "end"))
        return SliceReader(self.address, self._table, Window(start, end), int(self.options["slice_rows"]))

    @property
    def _table(self) -> Table:
        return next(table for table in BRONZE if table.name == self.options["table"])


def register(spark: SparkSession, address: str) -> None:
    """Tell a session where the database is.

    The address is part of a class that Spark hands on as bytes, from the driver to its planners and executors: it is
    in no option or setting, which plans, pages and logs may show.
    """
    spark.dataSource.register(type("BrokerThere", (Broker,), {"address": address}))


def read(spark: SparkSession, table: Table, window: Window, *, slice_rows: int) -> DataFrame:
    """Return the rows of one of `tables.BRONZE`, about `slice_rows` a partition; each query reads them anew.

    Whoever uses it gets Spark's exceptions, with the text of `Unreadable` or `DayGone` in them.
    """
    options = {"table": table.name, "start": window.start.isoformat(), "end": window.end.isoformat()}
    frame = spark.read.format(NAME).options(**options, slice_rows=slice_rows).load()
    return _added_up(frame) if table == WAITING else frame


def _added_up(waiting: DataFrame) -> DataFrame:
    """Make one row of what several slices have counted."""
    return waiting.groupBy("subscription_id", "line_id", "since").agg(F.sum("deliveries").alias("deliveries"))
