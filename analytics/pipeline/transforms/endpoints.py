"""How endpoints answer, and how long they hold up what waits for them."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import Window
from analytics.pipeline.tables import ENDPOINTS
from analytics.pipeline.transforms.counts import counted, how_many
from analytics.pipeline.transforms.shapes import shaped

KEYS: Final = ("hour", "subscription_id", "subscriber_id", "subscriber", "event_type", "endpoint", "kind")


def endpoints(attempts: DataFrame, window: Window) -> DataFrame:
    """Return a row per hour, subscription, event type and kind for the attempts that started in the hour.

    - `attempts`: how many; `by_class`: of which `error_class`
    - `retries`: those whose `number` is above 1; `failures`: those not answered 2xx
    - `held_seconds`: for each attempt that holds, from its end to the start of its delivery's next attempt, to the
      delivery's end or to the window's, whichever comes first; of that, what lies in the hour
    """
    is_own = F.col("place") == 0
    sums = {
        "attempts": how_many(is_own),
        "retries": how_many(is_own & (F.col("number") > 1)),
        "failures": how_many(is_own & F.col("failed")),
        "held_ms": F.when(F.col("holds"), _held_ms()).otherwise(0),
    }
    summed = counted(_by_hour(attempts, window), KEYS, "error_class", "by_class", sums, counts=sums["attempts"])
    return shaped(summed.withColumn("held_seconds", F.col("held_ms") / 1000), ENDPOINTS)


def _by_hour(attempts: DataFrame, window: Window) -> DataFrame:
    """Return each attempt in the hour in which it started, at place 0, and in each other one in which it held."""
    end = F.lit(window.end)
    went_on = F.least(F.coalesce("next_at", end), end)
    last = F.when(F.col("holds"), F.timestamp_add("MICROSECOND", F.lit(-1), "went_on")).otherwise(F.col("started_at"))
    hours = F.sequence(
        F.date_trunc("hour", "started_at"),
        F.date_trunc("hour", F.greatest("started_at", last)),
        F.expr("INTERVAL 1 HOUR"),
    )
    return attempts.withColumn("went_on", went_on).select("*", F.posexplode(hours).alias("place", "hour"))


def _held_ms() -> Column:
    """Return how long of the hour nothing went on, in whole milliseconds: their sums depend on no order."""
    since = F.greatest("ended_at", "hour")
    until = F.least("went_on", F.timestamp_add("HOUR", F.lit(1), "hour"))
    return F.greatest(F.timestamp_diff("MILLISECOND", since, until), F.lit(0))
