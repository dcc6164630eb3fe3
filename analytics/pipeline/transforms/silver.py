"""Facts made fit for summaries: each one once, with the names that its ids stand for.

Two exchanges: deliveries by their id, attempts by that of their delivery; messages have one of their own. Everything
that is joined besides is small and is sent to where the rows are, so that a busy subscriber makes no skew.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import SILVER_ATTEMPTS, SILVER_DELIVERIES, SILVER_MESSAGES
from analytics.pipeline.transforms import answers
from analytics.pipeline.transforms.facts import Facts, Silver
from analytics.pipeline.transforms.shapes import shaped
from analytics.pipeline.transforms.whose import known_event_types, known_publishers, with_owner

WHOSE: Final = ("subscriber_id", "subscriber", "subscription_id", "endpoint", "event_type_id", "event_type", "kind")


def silver(facts: Facts, words: Vocabulary) -> Silver:
    """Return what hourly summaries are made of."""
    of_deliveries = deliveries(facts, words)
    return Silver(
        deliveries=of_deliveries,
        attempts=attempts(facts.attempts, of_deliveries, words),
        messages=messages(facts, words),
        waiting=facts.waiting,
        callbacks=facts.callbacks.dropDuplicates(["id"]),
        subscribers=facts.subscribers,
        subscriptions=facts.subscriptions,
        event_types=facts.event_types,
        lines=facts.lines,
        status_changes=facts.status_changes,
        releases=facts.releases,
    )


def deliveries(facts: Facts, words: Vocabulary) -> DataFrame:
    """Return the finished and the unfinished deliveries, a row each, with whose they are and how long they took."""
    known = facts.deliveries.unionByName(facts.unfinished).transform(_latest)
    due = F.least(F.greatest("created_at", "not_before"), "finished_at")
    latency = F.timestamp_diff("MILLISECOND", due, "finished_at")
    return shaped(with_owner(known, facts, words).withColumn("latency_ms", latency), SILVER_DELIVERIES)


def attempts(made: DataFrame, of_deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return the attempts, a row each, with their delivery's owner, what they came to and when it went on.

    Those of a delivery that is not known are nobody's.
    """
    known = of_deliveries.select(F.col("id").alias("delivery_id"), "message_id", "finished_at", *WHOSE)
    return shaped(
        made.transform(_with_next)
        .join(known, "delivery_id", "left")
        .withColumns(
            {
                "ended_at": F.timestamp_add("MILLISECOND", "duration_ms", "started_at"),
                "next_at": F.coalesce("next_at", "finished_at"),
                "error_class": answers.error_class(words),
                "failed": answers.failed(),
                "holds": answers.holds(words),
            }
        ),
        SILVER_ATTEMPTS,
    )


def messages(facts: Facts, words: Vocabulary) -> DataFrame:
    """Return the messages, a row each, with the names of their publisher and event type."""
    return shaped(
        facts.messages.dropDuplicates(["id"])
        .join(known_event_types(facts.event_types), "event_type_id", "left")
        .join(known_publishers(facts.publishers), "publisher_id", "left")
        .withColumn("kind", F.when(F.isnotnull("answers"), words.reply_kind).otherwise(F.col("event_kind"))),
        SILVER_MESSAGES,
    )


def _latest(rows: DataFrame) -> DataFrame:
    """Keep one row of a delivery, a finished one if there is: it may have ended while it was read."""
    of_one = Rows.partitionBy("id").orderBy(F.asc_nulls_first("finished_at"))
    return rows.withColumn("later", F.lead("id").over(of_one)).where("later IS NULL")


def _with_next(made: DataFrame) -> DataFrame:
    """Keep one row of an attempt, and add `next_at`, when the next one of its delivery started.

    Rows of one attempt are equal and stand side by side: the last one has another attempt behind it, or none.
    """
    in_order = Rows.partitionBy("delivery_id").orderBy("started_at", "id")
    return (
        made.withColumns({"next_id": F.lead("id").over(in_order), "next_at": F.lead("started_at").over(in_order)})
        .where("next_id IS NULL OR next_id <> id")
        .drop("next_id")
    )
