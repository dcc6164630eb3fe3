"""From facts to silver: each fact once, typed, with its owner and the class of its answer."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline import tables
from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import SILVER_ATTEMPTS, SILVER_DELIVERIES, SILVER_MESSAGES, Table
from analytics.pipeline.transforms.frames import Frames, shaped

UNAVAILABLE: Final = 503
"""The one status with a class of its own: the endpoint asks for a pause."""

OWNER: Final = ("subscriber_id", "subscriber", "subscription_id", "endpoint", "event_type_id", "event_type", "kind")


def with_owner(deliveries: DataFrame, facts: Frames, words: Vocabulary) -> DataFrame:
    """Add `sender`, subscriber, endpoint, event type and kind; unknown ones are null.

    The subscriber is the subscription's, or the line's if the subscription has been deleted. Without a subscription it
    is the reply to a callback. The kind is MAILBOX if a mailbox has handed it out or let it expire unread, or if it was
    never sent and its subscription has a mailbox now. Otherwise it is the subscription's, or the event type's.
    """
    was_in_mailbox = (F.col("fetches") > 0) | F.coalesce("unread", F.lit(False))
    is_pulled = was_in_mailbox | ((F.col("attempts") == 0) & (F.col("delivery_mode") == words.pull_mode))
    kind = (
        F.when(F.isnull("subscription_id"), words.callback_reply_kind)
        .when(is_pulled, words.pulled_kind)
        .otherwise(F.coalesce("subscription_kind", "event_kind"))
    )
    subscribers = name_dimension(facts[tables.SUBSCRIBERS], "subscriber")
    owned = (
        _each_once(facts[tables.SUBSCRIPTIONS])
        .withColumnsRenamed({"id": "subscription_id", "kind": "subscription_kind"})
        .select("subscriber_id", "subscription_id", "subscription_kind", "delivery_mode", "endpoint")
        .join(subscribers, "subscriber_id", "left")
    )
    lines = (
        _each_once(facts[tables.LINES])
        .join(subscribers, "subscriber_id", "left")
        .withColumnsRenamed({"id": "line_id", "subscriber_id": "line_subscriber_id", "subscriber": "line_subscriber"})
        .select("line_id", "sender", "line_subscriber_id", "line_subscriber")
    )
    return (
        deliveries.join(F.broadcast(lines), "line_id", "left")
        .join(F.broadcast(owned), "subscription_id", "left")
        .join(event_type_names(facts[tables.EVENT_TYPES]), "event_type_id", "left")
        .withColumns(
            {
                "subscriber_id": F.coalesce("subscriber_id", "line_subscriber_id"),
                "subscriber": F.coalesce("subscriber", "line_subscriber"),
                "kind": kind,
            }
        )
    )


def event_type_names(event_types: DataFrame) -> DataFrame:
    """Return `event_type_id`, `event_type` and `event_kind`, ready to be joined."""
    return name_dimension(event_types, "event_type", F.col("kind").alias("event_kind"))


def name_dimension(rows: DataFrame, what: str, *others: Column) -> DataFrame:
    """Return the id and name of rows as `<what>_id` and `<what>`, with other columns, ready to be joined."""
    named = _each_once(rows).select(F.col("id").alias(f"{what}_id"), F.col("name").alias(what), *others)
    return F.broadcast(named)


def _each_once(rows: DataFrame) -> DataFrame:
    """Keep one row per id, in one task: they are few, and are broadcast anyway."""
    return rows.coalesce(1).dropDuplicates(["id"])


def error_class(words: Vocabulary) -> Column:
    """Return 2xx, 3xx, 4xx, 503, 5xx or other by `status_code`; without one, the kind of failure by `error`."""
    begins = [F.when(F.col("error").rlike(f"^(?:{pattern})"), kind) for pattern, kind in words.failures]
    status = F.col("status_code")
    hundreds = (status / 100).cast("int")
    return (
        F.when(status.isNull(), F.coalesce(*begins, F.lit(words.unknown_failure)))
        .when(status == UNAVAILABLE, F.lit(str(UNAVAILABLE)))
        .when(hundreds.between(2, 5), F.concat(hundreds, F.lit("xx")))
        .otherwise(F.lit("other"))
    )


def failed() -> Column:
    """Return whether the answer was not 2xx, or there was none."""
    return ~F.coalesce(F.col("status_code").between(200, 299), F.lit(False))


def holds(words: Vocabulary) -> Column:
    """Return whether the attempt holds the line until the delivery's next attempt (contract 4.7, 4.8, 5.1).

    Its retry policy decided then (`meaning`), or else the rules of its `kind`; without a kind it holds nothing.
    """
    has_kind = F.coalesce("kind", F.lit("")) != ""
    return F.coalesce(has_kind & (F.col("meaning") == words.means_hold), _is_among(words.holding))


def ends(words: Vocabulary) -> Column:
    """Return whether the delivery is never sent again after the attempt (contract 4.3 to 4.5, 5.1), as after 2xx.

    Its retry policy decided then (`meaning`), or else the rules of its `kind`.
    """
    return ~failed() | F.coalesce(F.col("meaning") == words.means_end, _is_among(words.ending))


def _is_among(statuses_by_kind: Sequence[tuple[str, Sequence[int]]]) -> Column:
    status = F.coalesce("status_code", F.lit(0))  # 0 stands for no answer
    cases = [(F.col("kind") == kind) & status.isin(*statuses) for kind, statuses in statuses_by_kind if statuses]
    return F.coalesce(reduce(Column.__or__, cases, F.lit(False)), F.lit(False))


def silver(
    facts: Frames, words: Vocabulary, keep: Callable[[Table, DataFrame], DataFrame] = lambda _table, frame: frame
) -> Frames:
    """Return the inputs of hourly summaries; `keep` may store each table of silver, and returns it as stored."""
    owned = keep(SILVER_DELIVERIES, deliveries(facts, words))
    return {
        **facts,
        tables.CALLBACKS: facts[tables.CALLBACKS].dropDuplicates(["id"]),
        SILVER_DELIVERIES: owned,
        SILVER_ATTEMPTS: keep(SILVER_ATTEMPTS, attempts(facts[tables.ATTEMPTS], owned, words)),
        SILVER_MESSAGES: keep(SILVER_MESSAGES, messages(facts, words)),
    }


def deliveries(facts: Frames, words: Vocabulary) -> DataFrame:
    """Return finished and unfinished deliveries, a row each, with their owner and latency.

    A delivery that ended while it was read may be in both; the finished row counts.
    """
    of_delivery = Rows.partitionBy("id").orderBy(F.asc_nulls_first("finished_at"))
    once = (
        facts[tables.DELIVERIES]
        .unionByName(facts[tables.UNFINISHED])
        .withColumn("later", F.lead("id").over(of_delivery))
        .where("later IS NULL")
    )
    due = F.least(F.greatest("created_at", "not_before"), "finished_at")
    latency = F.timestamp_diff("MILLISECOND", due, "finished_at")
    return shaped(with_owner(once, facts, words).withColumn("latency_ms", latency), SILVER_DELIVERIES)


def attempts(made: DataFrame, owned: DataFrame, words: Vocabulary) -> DataFrame:
    """Return the attempts, a row each, with their delivery's owner, their result and when the delivery went on.

    Attempts of unknown deliveries have no owner. Repeated rows of one attempt are equal and adjacent: the last counts.
    """
    in_order = Rows.partitionBy("delivery_id").orderBy("started_at", "id")
    once = (
        made.withColumns({"next_id": F.lead("id").over(in_order), "next_at": F.lead("started_at").over(in_order)})
        .where("next_id IS NULL OR next_id <> id")
        .drop("next_id")
    )
    known = owned.select(F.col("id").alias("delivery_id"), "message_id", "finished_at", *OWNER)
    return shaped(
        once.join(known, "delivery_id", "left").withColumns(
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


def messages(facts: Frames, words: Vocabulary) -> DataFrame:
    """Return the messages, a row each, with the names of their publisher and event type."""
    return shaped(
        facts[tables.MESSAGES]
        .dropDuplicates(["id"])
        .join(event_type_names(facts[tables.EVENT_TYPES]), "event_type_id", "left")
        .join(name_dimension(facts[tables.PUBLISHERS], "publisher"), "publisher_id", "left")
        .withColumn("kind", F.when(F.isnotnull("answers"), words.callback_reply_kind).otherwise(F.col("event_kind"))),
        SILVER_MESSAGES,
    )
