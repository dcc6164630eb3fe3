"""What was sent before something earlier, and what of that the contract allows (behaviour 4.10)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.transforms.answers import ends

INVERSION: Final = "inversion"
TWICE: Final = "number given twice"

OVERLAP_SECONDS: Final = 2
"""So long a publish takes at worst, from its statement's start to its commit; on an idle machine it is milliseconds.

No row tells when one was committed. Two that began so close together may therefore have overlapped, unless something
of the earlier one had been sent before the later one began.
"""
CLOCKS_MS: Final = 100
"""So far the clock of a worker, which tells when a request starts, may be from PostgreSQL's, which tells the rest."""

RELEASED: Final = "released"
SET_ASIDE: Final = "set aside before it was sent"
NOT_ACTIVE: Final = "not active"
SAME_TIME: Final = "published at the same time"


def with_those_before(numbered: DataFrame) -> DataFrame:
    """Add what each subscriber was sent before: `latest`, the one with the greatest id, and `previous`, the last one.

    Of a subscriber all rows are sorted in one task; what does not fit into its memory is spilled.
    """
    in_order = Rows.partitionBy("subscriber_id").orderBy("sequence", "id")
    so_far = in_order.rowsBetween(Rows.unboundedPreceding, Rows.currentRow)
    previous = F.struct("id", "sequence", "finished_at")
    return numbered.withColumns(
        {"latest": F.max(F.struct("id", "created_at")).over(so_far), "previous": F.lag(previous).over(in_order)}
    )


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
        .join(_released(releases), "id", "left")
        .join(_answered_aside(attempts, words), "id", "left")
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
            _explanation().alias("explanation"),
        )
    )


def _explanation() -> Column:
    """Return the first that explains an inversion; what was done to it comes before what may have been.

    - released: it was HELD when its turn came, by its filter or its script
    - set aside before it was sent: it was set aside more often than its answers in the window account for, so its
      script was lost (8.3)
    - not active: its subscription or its subscriber changed its status between its publish and its end
    - published at the same time: they began within 2 s, and nothing shows that the earlier one was committed before
      the later one began: lines read what is committed, oldest first
    """
    explained = {
        RELEASED: F.isnotnull("released"),
        SET_ASIDE: F.col("times_set_aside") > F.coalesce("answered_aside", F.lit(0)),
        NOT_ACTIVE: _has_one_between("subscription_changed") | _has_one_between("subscriber_changed"),
        SAME_TIME: F.col("latest.created_at") <= _committed_by(),
    }
    return F.coalesce(*(F.when(holds, word) for word, holds in explained.items()), F.lit(""))


def _released(releases: DataFrame) -> DataFrame:
    return releases.groupBy(F.col("delivery_id").alias("id")).agg(F.min("at").alias("released"))


def _answered_aside(attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Return how often each delivery was answered so that the next one went, and it stayed."""
    aside = attempts.where(~F.col("holds") & ~ends(words))
    return aside.groupBy(F.col("delivery_id").alias("id")).agg(F.count("*").alias("answered_aside"))


def _first_sent(attempts: DataFrame) -> DataFrame:
    """Return when the first of each message's deliveries, to whomever, was sent: it had been committed by then."""
    return attempts.groupBy("message_id").agg(F.min("started_at").alias("first_sent_at"))


def _committed_by() -> Column:
    """Return when the publish of what was overtaken had been committed at the latest."""
    return F.least(
        F.timestamp_add("SECOND", F.lit(OVERLAP_SECONDS), "created_at"),
        F.timestamp_add("MILLISECOND", F.lit(CLOCKS_MS), "first_sent_at"),
    )


def _changed(changes: DataFrame, whose: str) -> DataFrame:
    """Return when the status of each changed, ready to be joined: one row of each, so that none is multiplied."""
    return F.broadcast(changes.groupBy(f"{whose}_id").agg(F.collect_list("at").alias(f"{whose}_changed")))


def _has_one_between(changed: str) -> Column:
    """Return whether one of the changes lies between the delivery's publish and its end."""
    return F.coalesce(F.exists(changed, lambda at: at.between(F.col("created_at"), F.col("finished_at"))), F.lit(False))
