"""The ordering audit: whether each subscriber was sent everything in order, and once (behaviour 4.10, 4.11)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import AUDIT, FINDINGS
from analytics.pipeline.transforms.counts import how_many
from analytics.pipeline.transforms.duplicates import duplicates
from analytics.pipeline.transforms.facts import Silver
from analytics.pipeline.transforms.inversions import INVERSION, inversions, numbers_given_twice, with_those_before
from analytics.pipeline.transforms.shapes import hour_of, shaped

HIGH: Final = ("id", "sequence", "created_at")
"""What is kept of the one with the greatest id."""
EXAMPLES: Final = 100
"""So many of a subscriber's findings of a kind are kept for an hour: a subscription that was inactive has millions."""
OWNER: Final = ("hour", "subscriber_id", "subscriber")


def audit(silver: Silver, words: Vocabulary) -> DataFrame:
    """Return a row per hour and subscriber that had something checked, or found.

    - `checked`: deliveries with a number in its line that ended in the hour
    - `inversions`, `duplicates`: how many were found; `explained_…`: those of them that the contract allows
    - `high_id`, `high_sequence`, `high_created_at`: of those checked the one with the greatest id; null if none was
    """
    is_inversion, is_explained = F.col("finding") == INVERSION, F.col("explanation") != ""
    sums = {
        "inversions": is_inversion,
        "explained_inversions": is_inversion & is_explained,
        "duplicates": ~is_inversion,
        "explained_duplicates": ~is_inversion & is_explained,
    }
    ended = _numbered(silver.deliveries).where("finished_at IS NOT NULL")
    counted = ended.select(
        hour_of("finished_at"), *OWNER[1:], F.lit(1).alias("checked"), *_none_of(*sums), F.struct(*HIGH).alias("high")
    )
    found = _found(silver, words).select(
        *OWNER, F.lit(0).alias("checked"), *(how_many(holds).alias(name) for name, holds in sums.items())
    )
    totals = (F.sum(name).alias(name) for name in ("checked", *sums))
    audited = (
        counted.unionByName(found, allowMissingColumns=True).groupBy(*OWNER).agg(*totals, F.max("high").alias("high"))
    )
    return shaped(audited.withColumns({f"high_{name}": F.col(f"high.{name}") for name in HIGH}), AUDIT)


def findings(silver: Silver, words: Vocabulary) -> DataFrame:
    """Return what was found, at most a hundred of a subscriber's in an hour of one kind and with one explanation.

    - `at`: when the later of two ended; of what was sent again, when that began
    - `delivery_id`: what was sent late, or twice; `other_id`: what went before it, if that is another delivery
    """
    of_a_kind = Rows.partitionBy(*OWNER, "finding", "explanation").orderBy("at", "delivery_id")
    numbered = _found(silver, words).withColumn("place", F.row_number().over(of_a_kind))
    return shaped(numbered.where(F.col("place") <= EXAMPLES), FINDINGS)


def _found(silver: Silver, words: Vocabulary) -> DataFrame:
    """Return every finding."""
    attempts = silver.attempts.where("subscriber_id IS NOT NULL")
    sent = with_those_before(_with_earlier(_numbered(silver.deliveries), silver.audit))
    return (
        inversions(sent, attempts, silver.status_changes, silver.releases, words)
        .unionByName(numbers_given_twice(sent))
        .unionByName(duplicates(silver.deliveries.where("subscriber_id IS NOT NULL"), attempts, words))
        .where("at IS NOT NULL")
        .withColumn("hour", hour_of("at"))
    )


def _numbered(deliveries: DataFrame) -> DataFrame:
    """Return what has a number in a subscriber's line; QUEUE, SYNC and replies have none."""
    return deliveries.where("sequence IS NOT NULL AND subscriber_id IS NOT NULL")


def _with_earlier(numbered: DataFrame, audit: DataFrame | None) -> DataFrame:
    """Add of each hour before the window the one with the greatest id: to be compared with, and not to be found."""
    if audit is None:
        return numbered
    high = (F.col(f"high_{name}").alias(name) for name in HIGH)
    earlier = audit.where("high_id IS NOT NULL").select("subscriber_id", "subscriber", *high)
    return numbered.unionByName(earlier, allowMissingColumns=True)


def _none_of(*names: str) -> tuple[Column, ...]:
    return tuple(F.lit(0).cast("long").alias(name) for name in names)
