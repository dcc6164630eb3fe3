"""How much waited."""

import math
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Window
from analytics.pipeline.tables import BACKLOG
from analytics.pipeline.transforms.facts import Silver
from analytics.pipeline.transforms.shapes import shaped

SECONDS: Final = 300
"""Between two moments at which it is counted."""
OWNER: Final = ("subscriber_id", "subscriber")


def backlog(silver: Silver, window: Window) -> DataFrame:
    """Return a row per fifth minute `at` of the window and subscriber that had something unfinished then.

    `deliveries`: those made by that moment and not ended by then. What a moment adds and takes away is summed
    up first and then added up from moment to moment, so that nothing is looked at once for each moment it waited.
    """
    moments = math.ceil((window.end - window.start).total_seconds() / SECONDS)
    changes = _of_ended(silver.deliveries, window).unionByName(_of_waiting(silver, window))
    in_turn = Rows.partitionBy(*OWNER).orderBy("moment")
    counted = (
        changes.where(F.col("moment") < moments)
        .groupBy(*OWNER, "moment")
        .agg(F.sum("change").alias("change"))
        .withColumns(
            {
                "deliveries": F.sum("change").over(in_turn),
                "last": F.lead("moment", 1, moments).over(in_turn) - 1,
            }
        )
        .where("deliveries > 0")
        .withColumn("moment", F.explode(F.sequence("moment", "last")))
    )
    at = F.timestamp_add("SECOND", F.col("moment") * SECONDS, F.lit(window.start))
    return shaped(counted.withColumn("at", at), BACKLOG)


def _of_ended(deliveries: DataFrame, window: Window) -> DataFrame:
    """Return what those that ended in the window add and take away."""
    came = F.struct(_first_from("created_at", window).alias("moment"), F.lit(1).cast("long").alias("change"))
    went = F.struct(_first_from("finished_at", window).alias("moment"), F.lit(-1).cast("long").alias("change"))
    ended = deliveries.where("finished_at IS NOT NULL")
    return ended.select(*OWNER, F.inline(F.array(came, went)))


def _of_waiting(silver: Silver, window: Window) -> DataFrame:
    """Return what those that wait at the window's end add; of each five minutes there is a number."""
    subscriptions = silver.subscriptions.select(
        F.col("id").alias("subscription_id"), F.col("subscriber_id").alias("of")
    )
    lines = silver.lines.selectExpr("id AS line_id", "subscriber_id AS line_of")
    names = silver.subscribers.selectExpr("id AS subscriber_id", "name AS subscriber")
    return (
        silver.waiting.join(F.broadcast(subscriptions), "subscription_id", "left")
        .join(F.broadcast(lines), "line_id", "left")
        .withColumn("subscriber_id", F.coalesce("of", "line_of"))
        .join(F.broadcast(names), "subscriber_id", "left")
        .fillna("", ["subscriber"])
        .select(*OWNER, _first_from("since", window).alias("moment"), F.col("deliveries").alias("change"))
    )


def _first_from(at: str, window: Window) -> Column:
    """Return the number of the window's first moment that is not before an instant, from 0 on."""
    since = F.timestamp_diff("MICROSECOND", F.lit(window.start), at)
    return F.greatest(F.ceil(since / (SECONDS * 1_000_000)), F.lit(0)).cast("int")
