"""Error budgets: what may fail, and what did."""

import datetime as dt
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.tables import BUDGETS
from analytics.pipeline.transforms.shapes import shaped

DAYS: Final = 28
"""Over so many, the day itself the last of them, a budget is reckoned: four weeks, whatever day of the week it is."""


def budgets(reliability: DataFrame, day: dt.date, objective: float) -> DataFrame:
    """Return a row per subscriber that had eligible deliveries in the 28 days up to `day`.

    `reliability` is the summary of at least these days; `objective` the share that should be delivered, 0 to 1.

    - `eligible`, `bad`: of the day, how many deliveries were to be DELIVERED, and how many of them were not
    - `eligible_28`, `bad_28`: the same of the 28 days
    - `spent`: which share of what may fail in 28 days has failed: `bad_28 / ((1 - objective) · eligible_28)`; where
      nothing may, as much as has
    """
    first = day - dt.timedelta(days=DAYS - 1)
    failed = F.col("eligible") - F.col("delivered")
    is_today = F.to_date("hour") == F.lit(day)
    sums = {
        "eligible": _sum(F.when(is_today, F.col("eligible"))),
        "bad": _sum(F.when(is_today, failed)),
        "eligible_28": _sum(F.col("eligible")),
        "bad_28": _sum(failed),
    }
    summed = (
        reliability.where(F.to_date("hour").between(first, day) & F.isnotnull("subscriber_id"))
        .groupBy("subscriber_id")
        .agg(F.max_by("subscriber", "hour").alias("subscriber"), *(column.alias(name) for name, column in sums.items()))
        .where("eligible_28 > 0")
    )
    may_fail = F.lit(1 - objective) * F.col("eligible_28")
    spent = F.coalesce(F.try_divide("bad_28", may_fail), F.col("bad_28"))
    return shaped(summed.withColumns({"day": F.lit(day), "objective": F.lit(objective), "spent": spent}), BUDGETS)


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))
