"""What was sent before something earlier, and what is known of that (behaviour 4.10)."""

from typing import Final

from pyspark.sql import DataFrame, WindowSpec
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.transforms.answers import sets_aside_numbered
from analytics.pipeline.transforms.explanations import explanation

INVERSION: Final = "inversion"
TWICE: Final = "number given twice"

RELEASED: Final = "RELEASED"
RESUMED: Final = "RESUMED"
"""What histories of lines say of a delivery: see `tables.RELEASES`."""


def with_those_before(numbered: DataFrame) -> DataFrame:
    """Add what each subscriber was sent before: `latest`, the one with the greatest id, and `previous`, the last one.

    And `latest_of_its`, likewise of those of the same subscription, itself among them. Of a subscriber all rows
    are sorted in one task; what does not fit into its memory is spilled.
    """
    in_order = Rows.partitionBy("subscriber_id").orderBy("sequence", "id")
    of_its = Rows.partitionBy("subscriber_id", "subscription_id").orderBy("sequence", "id")
    previous = F.struct("id", "sequence", "finished_at")
    return numbered.withColumns(
        {
            "latest": F.max(F.struct("id", "created_at")).over(_so_far(in_order)),
            "latest_of_its": F.max(F.struct("id", "created_at", "finished_at")).over(_so_far(of_its)),
            "previous": F.lag(previous).over(in_order),
        }
    )


def _so_far(in_order: WindowSpec) -> WindowSpec:
    return in_order.rowsBetween(Rows.unboundedPreceding, Rows.currentRow)


def numbers_given_twice(sent: DataFrame) -> DataFrame:
    """Return those with the number of the one before, if either ended in the window; nothing explains them."""
    return sent.where("previous.sequence = sequence").select(
        F.greatest("finished_at", "previous.finished_at").alias("at"),
        "subscriber_id",
        "subscriber",
        F.lit(TWICE).alias("finding"),
        F.col("id").alias("delivery_id"),
        F.col("previous.id").alias("other_id"),
        F.lit("").alias("explanation"),
    )


def inversions(
    sent: DataFrame, attempts: DataFrame, status_changes: DataFrame, releases: DataFrame, words: Vocabulary
) -> DataFrame:
    """Return those that ended in the window and were first sent after one with a greater id, the greatest of which."""
    return (
        sent.where("finished_at IS NOT NULL AND latest.id > id")
        .join(_let_go(releases), "id", "left")
        .join(_set_aside_numbered(attempts, words), "id", "left")
        .join(_first_sent(attempts), "message_id", "left")
        .join(_changed(status_changes.where("subscription_id IS NOT NULL"), "subscription"), "subscription_id", "left")
        .join(_changed(status_changes.where("subscription_id IS NULL"), "subscriber"), "subscriber_id", "left")
        .select(
            F.col("finished_at").alias("at"),
            "subscriber_id",
            "subscriber",
            F.lit(INVERSION).alias("finding"),
            F.col("id").alias("delivery_id"),
            F.col("latest.id").alias("other_id"),
            explanation().alias("explanation"),
        )
    )


def _let_go(releases: DataFrame) -> DataFrame:
    """Return when each delivery was released, and when what became of it let its subscription go on."""
    return releases.groupBy(F.col("delivery_id").alias("id")).agg(
        F.min(F.when(F.col("kind") == RELEASED, F.col("at"))).alias("released"),
        F.min(F.when(F.col("kind") == RESUMED, F.col("at"))).alias("resumed"),
    )


def _set_aside_numbered(attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Return how often each delivery was set aside, or tried again apart, when it had its number."""
    aside = attempts.where(sets_aside_numbered(words))
    return aside.groupBy(F.col("delivery_id").alias("id")).agg(F.count("*").alias("set_aside_numbered"))


def _first_sent(attempts: DataFrame) -> DataFrame:
    """Return when the first of each message's deliveries, to whomever, was sent: it had been committed by then."""
    return attempts.groupBy("message_id").agg(F.min("started_at").alias("first_sent_at"))


def _changed(changes: DataFrame, whose: str) -> DataFrame:
    """Return when the status of each changed, ready to be joined: one row of each, so that none is multiplied."""
    return F.broadcast(changes.groupBy(f"{whose}_id").agg(F.collect_list("at").alias(f"{whose}_changed")))
