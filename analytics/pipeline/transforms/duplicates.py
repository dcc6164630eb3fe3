"""What may have been received twice, and what of that the contract allows (behaviour 4.11, 6.4)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.transforms.answers import ends

SENT_AGAIN: Final = "sent again"
TAKEN_TWICE: Final = "taken twice"
POSSIBLE: Final = "possible duplicate"

FLAGGED: Final = "the outcome of a request was unknown; flagged"


def duplicates(deliveries: DataFrame, attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Return each delivery that was, or may have been, received twice.

    - sent again: it has an attempt after one whose answer ended it, or two of the same number; nothing explains it
    - taken twice: another delivery of its QUEUE group was DELIVERED before it; nothing explains it
    - possible duplicate: a request of it was, or may have been, sent and its outcome is unknown, as the next was told
    """
    again = _sent_again(attempts, words)
    return again.unionByName(_taken_twice(deliveries, words)).unionByName(_possible(deliveries, words))


def _sent_again(attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Numbers rise by one: where there are more attempts than numbers, two have the same."""
    first, last = F.min("number"), F.max("number")
    of_each = attempts.groupBy("delivery_id", "subscriber_id", "subscriber").agg(
        F.max("started_at").alias("at"),
        (last > F.min(F.when(ends(words), F.col("number")))).alias("went_on"),
        (F.count("*") > last - first + 1).alias("repeats"),
    )
    return of_each.where("went_on OR repeats").select(*_found(SENT_AGAIN, F.col("delivery_id"), F.lit(None)))


def _taken_twice(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    in_turn = Rows.partitionBy("group_id").orderBy("finished_at", "id")
    of_groups = deliveries.where("group_id IS NOT NULL AND finished_at IS NOT NULL")
    taken = of_groups.where(F.col("status") == words.delivered)
    return (
        taken.withColumns({"at": F.col("finished_at"), "before": F.lag("id").over(in_turn)})
        .where("before IS NOT NULL")
        .select(*_found(TAKEN_TWICE, F.col("id"), F.col("before")))
    )


def _possible(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """A SYNC call is asked once. It has neither number nor group; nor has what is sent in no order (behaviour 4.13)."""
    may_be_repeated = F.expr("coalesce(sequence, group_id) IS NOT NULL") | ~F.col("kind").isin(words.sync_kind, "")
    flagged = deliveries.where("uncertain AND finished_at IS NOT NULL").where(may_be_repeated)
    return flagged.withColumn("at", F.col("finished_at")).select(
        *_found(POSSIBLE, F.col("id"), F.lit(None), explanation=FLAGGED)
    )


def _found(finding: str, delivery: Column, other: Column, explanation: str = "") -> tuple[Column, ...]:
    return (
        F.col("at"),
        F.col("subscriber_id"),
        F.col("subscriber"),
        F.lit(finding).alias("finding"),
        delivery.alias("delivery_id"),
        other.cast("long").alias("other_id"),
        F.lit(explanation).alias("explanation"),
    )
