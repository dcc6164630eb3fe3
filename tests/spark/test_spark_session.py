"""Spark starts where the tests run, with what the project brings along."""

import datetime as dt

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def test_spark_counts(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10


def test_numbers_that_are_too_large_are_an_error(spark: SparkSession) -> None:
    with pytest.raises(ArithmeticException, match="overflow"):
        spark.range(1).select(F.lit(2**62) * F.lit(4)).collect()


def test_instants_are_read_in_utc(spark: SparkSession) -> None:
    (row,) = spark.range(1).select(F.unix_seconds(F.lit("2026-07-01 00:00:00").cast("timestamp"))).collect()
    assert row[0] == dt.datetime(2026, 7, 1, tzinfo=dt.UTC).timestamp()
