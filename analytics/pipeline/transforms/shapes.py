"""The shape of a frame: exactly a table's columns; hours."""

from typing import Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from analytics.pipeline.tables import Table

NAMES: Final = ("subscriber", "endpoint", "event_type", "publisher", "kind")
"""Empty, never null, where what they name is not known."""


def shaped(frame: DataFrame, table: Table) -> DataFrame:
    """Return the frame with the columns of `table`, in its order and of its types; names are filled in.

    Raises:
        AnalysisException: a column is missing, or is of a type that cannot become the table's without loss.

    """
    schema = cast("StructType", StructType.fromDDL(table.columns))
    return frame.fillna("", [name for name in schema.names if name in NAMES]).to(schema)


def hour_of(column: str) -> Column:
    """Return the hour that an instant lies in; the session's time zone is UTC."""
    return F.date_trunc("hour", column).alias("hour")
