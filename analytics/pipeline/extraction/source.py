"""PostgreSQL as a data source of Spark: slices are planned on the driver and copied on the executors."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from analytics.pipeline.extraction.connection import reading
from analytics.pipeline.extraction.copying import copied
from analytics.pipeline.extraction.slicing import slices
from analytics.pipeline.job import Window
from analytics.pipeline.tables import BRONZE, WAITING, Table

NAME: Final = "broker"


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
