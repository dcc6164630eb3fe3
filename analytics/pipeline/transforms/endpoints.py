"""How endpoints answer, and how long they hold up what waits for them."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import Window
from analytics.pipeline.tables import ENDPOINTS
from analytics.pipeline.transforms.counts import counted, how_many
from analytics.pipeline.transforms.shapes import hour_of, shaped

KEYS: Final = ("hour", "subscription_id", "subscriber_id", "subscriber", "event_type", "endpoint", "kind")


def endpoints(attempts: DataFrame, window: Window) -> DataFrame:
    """Return a row per hour, subscription, event type and kind for the attempts that started in the hour.

    - `attempts`: how many; `by_class`: of which `error_class`
    - `retries`: those whose `number` is above 1; `failures`: those not answered 2xx
    - `held_seconds`: for each attempt that holds, from its end to the start of its delivery's next attempt, to the
      delivery's end or to the window's, whichever comes first; all of it in the hour in which the attempt started
    """
    sums = {
        "attempts": F.lit(1),
        "retries": how_many(F.col("number") > 1),
        "failures": how_many(F.col("failed")),
        "held_ms": F.when(F.col("holds"), _held_ms(window)).otherwise(0),
    }
    made = attempts.withColumn("hour", hour_of("started_at"))
    summed = counted(made, KEYS, "error_class", "by_class", sums)
    return shaped(summed.withColumn("held_seconds", F.col("held_ms") / 1000), ENDPOINTS)


def _held_ms(window: Window) -> Column:
    """Return how long it was until the delivery went on, in whole milliseconds: their sums depend on no order."""
    end = F.lit(window.end)
    went_on = F.least(F.coalesce("next_at", end), end)
    return F.greatest(F.timestamp_diff("MILLISECOND", "ended_at", went_on), F.lit(0))
