"""Frames with literal rows."""

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from analytics.pipeline.job import Window
from analytics.pipeline.tables import AUDIT, BRONZE, SILVER, Table
from analytics.pipeline.transforms.frames import Frames, schema_of

Row = Mapping[str, Any]

DAY: Final = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
WINDOW: Final = Window(DAY, DAY + dt.timedelta(days=1))


def at(text: str) -> dt.datetime:
    """Return a moment of the day, `10:30`, `10:30:05` or `10:30:05.125`."""
    return dt.datetime.combine(DAY, dt.time.fromisoformat(text), dt.UTC)


def frame(spark: SparkSession, table: Table, rows: Iterable[Row] = ()) -> DataFrame:
    """Return a frame with the columns of `table`; what a row does not name is null."""
    schema = schema_of(table)
    listed = [dict(row) for row in rows]
    assert all(row.keys() <= set(schema.names) for row in listed), f"{table.path} has no such column"
    return spark.createDataFrame(pa.Table.from_pylist(listed, to_arrow_schema(schema, timezone="UTC")), schema)


def facts(spark: SparkSession, **rows: Iterable[Row]) -> Frames:
    """Return the facts in which tables have these rows, and the others none."""
    return {table: frame(spark, table, rows.get(table.name, ())) for table in BRONZE}


def silver_of(spark: SparkSession, **rows: Iterable[Row]) -> Frames:
    """Return silver in which tables have these rows, and the others none."""
    tables = {table.name: table for table in (*BRONZE, *SILVER, AUDIT)}
    return {table: frame(spark, table, rows.get(name, ())) for name, table in tables.items()}


def rows_of(made: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame: instants in UTC, maps as dicts."""
    return [
        {name: dict(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in made.toArrow().to_pylist()
    ]
