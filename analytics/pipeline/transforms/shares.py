"""How the endpoints of a QUEUE group share the work."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import SHARES
from analytics.pipeline.transforms.counts import how_many
from analytics.pipeline.transforms.shapes import hour_of, shaped

KEYS: Final = ("hour", "group_of", "subscription_id", "subscriber_id", "subscriber", "event_type", "endpoint")


def shares(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, group of like subscriptions and each of them, for what ended in the hour (behaviour 6.3).

    - `group_of`: the first, by id, of the subscriptions among which a message was to find its one; of those with a
      delivery that ended in the window, or of which something had been sent by its end
    - `deliveries`: how many; `delivered`: those that this endpoint took; `redundant`: those that another took
    """
    of_one_message = Rows.partitionBy("group_id")
    status = F.col("status")
    return shaped(
        deliveries.where("group_id IS NOT NULL")
        .withColumn("group_of", F.min("subscription_id").over(of_one_message))
        .where("finished_at IS NOT NULL")
        .withColumn("hour", hour_of("finished_at"))
        .groupBy(*KEYS)
        .agg(
            F.count("*").alias("deliveries"),
            F.sum(how_many(status == words.delivered)).alias("delivered"),
            F.sum(how_many(status == words.redundant)).alias("redundant"),
        ),
        SHARES,
    )
