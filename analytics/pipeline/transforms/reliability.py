"""How reliably deliveries end."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import RELIABILITY
from analytics.pipeline.transforms.counts import counted, how_many
from analytics.pipeline.transforms.shapes import hour_of, shaped

KEYS: Final = ("hour", "subscriber_id", "subscriber", "event_type_id", "event_type", "kind")


def reliability(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, subscriber, event type and kind for the deliveries that ended in the hour.

    - `deliveries`: how many; `by_status`: of which status
    - `attempts`: how often they were sent, or handed out by a mailbox, whenever that was
    - `delivered`: status DELIVERED; `first_attempt`: of these, those for which that was once
    - `eligible`: all but those of a neutral status (REDUNDANT, CANCELLED)

    Success rate: `delivered / eligible`; first-attempt rate: `first_attempt / eligible`.
    """
    status, attempts = F.col("status"), F.col("attempts") + F.col("fetches")
    sums = {
        "deliveries": F.lit(1),
        "delivered": how_many(status == words.delivered),
        "eligible": how_many(~status.isin(*words.neutral)),
        "first_attempt": how_many((status == words.delivered) & (attempts == 1)),
        "attempts": attempts,
    }
    ended = deliveries.where("finished_at IS NOT NULL").withColumn("hour", hour_of("finished_at"))
    return shaped(counted(ended, KEYS, "status", "by_status", sums), RELIABILITY)
