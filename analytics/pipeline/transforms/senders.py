"""How the QUEUE senders share the work."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import SENDERS
from analytics.pipeline.transforms.counts import counted, how_many
from analytics.pipeline.transforms.shapes import hour_of, shaped

KEYS: Final = ("hour", "sender")


def senders(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour and QUEUE sender for the deliveries of groups that ended in the hour (behaviour 6.2).

    - `deliveries`: how many; `by_status`: of which status
    - `messages`: the groups that an endpoint took; a message that goes to two groups counts twice

    A group has one that is DELIVERED, so these are counted. One that has two is for the ordering audit.
    """
    sums = {"deliveries": F.lit(1), "messages": how_many(F.col("status") == words.delivered)}
    ended = deliveries.where("sender IS NOT NULL AND finished_at IS NOT NULL").withColumn(
        "hour", hour_of("finished_at")
    )
    return shaped(counted(ended, KEYS, "status", "by_status", sums), SENDERS)
