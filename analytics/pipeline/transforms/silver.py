"""From facts to silver: each fact once, typed, with its owner and the class of its answer."""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import SILVER_ATTEMPTS, SILVER_DELIVERIES, SILVER_MESSAGES
from analytics.pipeline.transforms.frames import Facts, Silver, shaped

NO_STATUS: Final = 0
"""What stands for no answer in `Vocabulary.holding`."""
OF_ITS_OWN: Final = 503
"""The one status that is a class by itself: the endpoint asks to be left alone for a while."""
CLASSES: Final = (2, 3, 4, 5)
"""The first digits of the statuses that classes are made of."""

WHOSE: Final = ("subscriber_id", "subscriber", "subscription_id", "endpoint", "event_type_id", "event_type", "kind")


def with_owner(deliveries: DataFrame, facts: Facts, words: Vocabulary) -> DataFrame:
    """Add `sender`, subscriber, endpoint, event type and kind; null is what is not known.

    A delivery is its subscription's subscriber's, or, where that subscription has been deleted, its line's. Without a
    subscription it is the reply to a callback. What a mailbox has handed out, or let expire unread, is of a kind by
    itself, so that the time in there is nobody else's, whatever became of its subscription; so is what
    nobody has sent, of a subscription that is fetched by now. Else its kind is its subscription's, or its event type's.
    """
    was_there = (F.col("fetches") > 0) | F.coalesce("unread", F.lit(False))
    is_fetched = was_there | ((F.col("attempts") == 0) & (F.col("delivery_mode") == words.pull_mode))
    kind = (
        F.when(F.isnull("subscription_id"), words.reply_kind)
        .when(is_fetched, words.pulled_kind)
        .otherwise(F.coalesce("subscription_kind", "event_kind"))
    )
    return (
        deliveries.join(_lines(facts), "line_id", "left")
        .join(_subscriptions(facts), "subscription_id", "left")
        .join(known_event_types(facts.event_types), "event_type_id", "left")
        .withColumns(
            {
                "subscriber_id": F.coalesce("subscriber_id", "line_subscriber_id"),
                "subscriber": F.coalesce("subscriber", "line_subscriber"),
                "kind": kind,
            }
        )
    )


def known_event_types(event_types: DataFrame) -> DataFrame:
    """Return `event_type_id`, `event_type` and `event_kind`, ready to be joined."""
    return F.broadcast(
        _each_once(event_types).select(
            F.col("id").alias("event_type_id"), F.col("name").alias("event_type"), F.col("kind").alias("event_kind")
        )
    )


def known_publishers(publishers: DataFrame) -> DataFrame:
    """Return `publisher_id` and `publisher`, ready to be joined."""
    return F.broadcast(
        _each_once(publishers).select(F.col("id").alias("publisher_id"), F.col("name").alias("publisher"))
    )


def _subscribers(facts: Facts) -> DataFrame:
    return F.broadcast(
        _each_once(facts.subscribers).select(F.col("id").alias("subscriber_id"), F.col("name").alias("subscriber"))
    )


def _subscriptions(facts: Facts) -> DataFrame:
    owned = (
        _each_once(facts.subscriptions)
        .select(
            "subscriber_id",
            F.col("id").alias("subscription_id"),
            F.col("kind").alias("subscription_kind"),
            "delivery_mode",
            "endpoint",
        )
        .join(_subscribers(facts), "subscriber_id", "left")
    )
    return F.broadcast(owned)


def _lines(facts: Facts) -> DataFrame:
    """Return those of subscribers and senders; of callbacks there are as many as replies, and they say nothing."""
    owned = (
        _each_once(facts.lines.where("subscriber_id IS NOT NULL OR sender IS NOT NULL"))
        .join(_subscribers(facts), "subscriber_id", "left")
        .select(
            F.col("id").alias("line_id"),
            "sender",
            F.col("subscriber_id").alias("line_subscriber_id"),
            F.col("subscriber").alias("line_subscriber"),
        )
    )
    return F.broadcast(owned)


def _each_once(rows: DataFrame) -> DataFrame:
    """Keep one row of an id: in one task, since they are few and go to every executor anyway."""
    return rows.coalesce(1).dropDuplicates(["id"])


def error_class(words: Vocabulary) -> Column:
    """Return 2xx, 3xx, 4xx, 503, 5xx or other by `status_code`; without one, the kind of failure by `error`."""
    status = F.col("status_code")
    hundreds = (status / 100).cast("int")
    return (
        F.when(status.isNull(), _failure(words))
        .when(status == OF_ITS_OWN, F.lit(str(OF_ITS_OWN)))
        .when(hundreds.isin(*CLASSES), F.concat(hundreds, F.lit("xx")))
        .otherwise(F.lit("other"))
    )


def failed() -> Column:
    """Return whether the answer was not 2xx, or there was none."""
    return ~F.coalesce(F.col("status_code").between(200, 299), F.lit(False))


def holds(words: Vocabulary) -> Column:
    """Return whether nothing may overtake until the delivery, of this `kind`, is tried again (contract 4.7, 4.8, 5.1).

    As its retry policy said then (`meaning`), or else by the rules of its kind; what is of no kind holds nothing.
    """
    has_kind = F.coalesce("kind", F.lit("")) != ""
    return F.coalesce(has_kind & (F.col("meaning") == words.means_hold), _is_among(words.holding))


def ends(words: Vocabulary) -> Column:
    """Return whether the delivery, of this `kind`, is never sent again (contract 4.3 to 4.5, 5.1); after 2xx none is.

    As its retry policy said then (`meaning`), or else by the rules of its kind.
    """
    return ~failed() | F.coalesce(F.col("meaning") == words.means_end, _is_among(words.ending))


def deferred_with_number(words: Vocabulary) -> Column:
    """Return whether the next one went and the delivery, which has its number by then, stayed.

    What could not be sent at all has none yet where it is set aside, and has one where it is tried again apart.
    """
    is_aside = (F.col("meaning") == words.means_deferred) & F.col("status_code").isNotNull()
    said = (F.col("meaning") == words.means_retry_lane) | is_aside
    return F.coalesce(said, ~holds(words) & ~ends(words))


def _is_among(statuses_of_kinds: Sequence[tuple[str, Sequence[int]]]) -> Column:
    status = F.coalesce("status_code", F.lit(NO_STATUS))
    cases = [(F.col("kind") == kind) & status.isin(*statuses) for kind, statuses in statuses_of_kinds if statuses]
    return F.coalesce(reduce(Column.__or__, cases, F.lit(False)), F.lit(False))


def _failure(words: Vocabulary) -> Column:
    """Return the class of the first failure that the error begins with."""
    begins = [F.when(F.col("error").rlike(f"^(?:{pattern})"), kind) for pattern, kind in words.failures]
    return F.coalesce(*begins, F.lit(words.unknown_failure))


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
                "error_class": error_class(words),
                "failed": failed(),
                "holds": holds(words),
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
