"""Whose a delivery is: names for its ids, from small tables that every executor is given whole."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.transforms.facts import Facts


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
