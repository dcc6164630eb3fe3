"""Spark counts times into the buckets into which Python does."""

import math
from fractions import Fraction

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics.pipeline.quantiles import GROWTH, LONGEST, bucket_of
from analytics.pipeline.transforms import frames

BUCKETS = 2200
"""Enough for every number of 63 bits."""


def test_spark_and_python_agree_on_every_border(spark: SparkSession) -> None:
    borders = (math.floor(Fraction(str(GROWTH)) ** bucket) for bucket in range(BUCKETS))
    times = sorted({-(2**63), -1, 0, LONGEST, 2**63 - 1, *(ms for longest in borders for ms in (longest, longest + 1))})
    frame = spark.createDataFrame([(ms,) for ms in times], "ms long")
    made = frame.select("ms", frames.bucket_of(F.col("ms")).alias("bucket")).toArrow().to_pylist()
    assert {row["ms"]: row["bucket"] for row in made} == {ms: bucket_of(ms) for ms in times}
