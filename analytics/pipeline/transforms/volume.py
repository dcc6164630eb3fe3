"""How much is published."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.tables import VOLUME
from analytics.pipeline.transforms.counts import counted
from analytics.pipeline.transforms.shapes import hour_of, shaped

KEYS: Final = ("hour", "publisher_id", "publisher", "event_type_id", "event_type", "kind")


def volume(messages: DataFrame) -> DataFrame:
    """Return a row per hour, publisher and event type for what was published in the hour, replies left out.

    `messages`: how many; `by_outcome`: what became of them; `bytes`: of their bodies; `deliveries`: made of them then.
    """
    published = messages.where("answers IS NULL").withColumn("hour", hour_of("published_at"))
    sums = {"messages": F.lit(1), "bytes": F.col("size"), "deliveries": F.col("deliveries_count")}
    return shaped(counted(published, KEYS, "outcome", "by_outcome", sums), VOLUME)
