"""The hourly summaries: reliability, latency, volume, endpoints, backlog, callbacks, QUEUE balance."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline import tables
from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.tables import Table
from analytics.pipeline.transforms.audit import audit, findings
from analytics.pipeline.transforms.frames import Frames, as_count, counted, hour_of, shaped, with_quantiles
from analytics.pipeline.transforms.silver import event_type_names

BACKLOG_SECONDS: Final = 300
"""Between two moments at which the backlog is counted."""
SUBSCRIBER: Final = ("subscriber_id", "subscriber")
OWNER: Final = (*SUBSCRIBER, "event_type_id", "event_type", "kind")


def backlog(silver: Frames, window: Window) -> DataFrame:
    """Return a row per fifth minute `at` of the window and subscriber that had unfinished deliveries then.

    The changes of each moment are summed first and then accumulated, so no delivery is counted once for each moment
    that it waited.
    """
    moments = math.ceil((window.end - window.start).total_seconds() / BACKLOG_SECONDS)

    def first_moment(at: str) -> Column:
        """Return the number of the window's first moment that is not before an instant, from 0 on."""
        since = F.timestamp_diff("MICROSECOND", F.lit(window.start), at)
        return F.greatest(F.ceil(since / (BACKLOG_SECONDS * 1_000_000)), F.lit(0)).cast("int")

    created, ended = (
        F.struct(first_moment(at).alias("moment"), F.lit(change).cast("long").alias("change"))
        for at, change in (("created_at", 1), ("finished_at", -1))
    )
    deliveries = silver[tables.SILVER_DELIVERIES]
    ended_deliveries = deliveries.where("finished_at IS NOT NULL").withColumn(
        "created_at",
        F.least("created_at", "finished_at"),  # the clock may have been set back in between
    )
    of_ended = ended_deliveries.select(*SUBSCRIBER, F.inline(F.array(created, ended)))
    of_waiting = _waiting(silver).select(
        *SUBSCRIBER, first_moment("since").alias("moment"), F.col("deliveries").alias("change")
    )
    in_order = Rows.partitionBy(*SUBSCRIBER).orderBy("moment")
    waiting = (
        of_ended.unionByName(of_waiting)
        .where(F.col("moment") < moments)
        .groupBy(*SUBSCRIBER, "moment")
        .agg(F.sum("change").alias("change"))
        .withColumns(
            {
                "deliveries": F.sum("change").over(in_order),
                "last": F.lead("moment", 1, moments).over(in_order) - 1,
            }
        )
        .where("deliveries > 0")
        .withColumn("moment", F.explode(F.sequence("moment", "last")))
    )
    at = F.timestamp_add("SECOND", F.col("moment") * BACKLOG_SECONDS, F.lit(window.start))
    return shaped(waiting.withColumn("at", at), tables.BACKLOG)


def _waiting(silver: Frames) -> DataFrame:
    """Return the counts of deliveries unfinished at the window's end, with their subscriber."""
    owners = silver[tables.SUBSCRIPTIONS].selectExpr("id AS subscription_id", "subscriber_id AS subscription_owner")
    lines = silver[tables.LINES].selectExpr("id AS line_id", "subscriber_id AS line_owner")
    names = silver[tables.SUBSCRIBERS].selectExpr("id AS subscriber_id", "name AS subscriber")
    return (
        silver[tables.WAITING]
        .join(F.broadcast(owners), "subscription_id", "left")
        .join(F.broadcast(lines), "line_id", "left")
        .withColumn("subscriber_id", F.coalesce("subscription_owner", "line_owner"))
        .join(F.broadcast(names), "subscriber_id", "left")
        .fillna("", ["subscriber"])
    )


def callbacks(silver: Frames, words: Vocabulary) -> DataFrame:
    """Return a row per hour and event type of the message whose publisher asked for a callback."""
    replies = silver[tables.SILVER_DELIVERIES].where(
        F.isnotnull("finished_at") & (F.col("kind") == words.callback_reply_kind)
    )
    steps = {
        "asked": (silver[tables.CALLBACKS], "created_at"),
        "answered": (silver[tables.SILVER_MESSAGES].where("answers IS NOT NULL"), "published_at"),
        "forwarded": (replies.where(F.col("status") == words.delivered), "finished_at"),
    }
    asked, answered, forwarded = (
        rows.select(hour_of(at), "event_type_id", F.lit(step).alias("step")) for step, (rows, at) in steps.items()
    )
    counts = (
        asked.unionByName(answered)
        .unionByName(forwarded)
        .groupBy("hour", "event_type_id")
        .agg(*(F.count_if(F.col("step") == step).alias(step) for step in steps))
        .join(event_type_names(silver[tables.EVENT_TYPES]), "event_type_id", "left")
    )
    return shaped(counts, tables.CALLBACKS_SUMMARY)


def endpoints(attempts: DataFrame, window: Window) -> DataFrame:
    """Return a row per hour, subscription, event type and kind for the attempts that started, or held, in the hour.

    `held_seconds` is added up in whole milliseconds, so that it does not depend on the order.
    """
    is_own = F.col("place") == 0
    since = F.greatest("ended_at", "hour")
    until = F.least("went_on", F.timestamp_add("HOUR", F.lit(1), "hour"))
    held_ms = F.greatest(F.timestamp_diff("MILLISECOND", since, until), F.lit(0))
    sums = {
        "attempts": as_count(is_own),
        "retries": as_count(is_own & (F.col("number") > 1)),
        "failures": as_count(is_own & F.col("failed")),
        "held_ms": F.when(F.col("holds"), held_ms).otherwise(0),
    }
    keys = ("hour", "subscription_id", *SUBSCRIBER, "event_type", "endpoint", "kind")
    by_hour = _by_hour(attempts, window)
    summed = counted(by_hour, keys, "error_class", "by_class", sums, counts=sums["attempts"])
    return shaped(summed.withColumn("held_seconds", F.col("held_ms") / 1000), tables.ENDPOINTS)


def _by_hour(attempts: DataFrame, window: Window) -> DataFrame:
    """Return each attempt in the hour in which it started, at place 0, and in each later one in which it held."""
    end = F.lit(window.end)
    went_on = F.least(F.coalesce("next_at", end), end)
    last = F.when(F.col("holds"), F.timestamp_add("MICROSECOND", F.lit(-1), "went_on")).otherwise(F.col("started_at"))
    hours = F.sequence(
        F.date_trunc("hour", "started_at"),
        F.date_trunc("hour", F.greatest("started_at", last)),
        F.expr("INTERVAL 1 HOUR"),
    )
    return attempts.withColumn("went_on", went_on).select("*", F.posexplode(hours).alias("place", "hour"))


def latency(deliveries: DataFrame, attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, subscriber, event type, kind and measure; times in milliseconds."""

    def times(rows: DataFrame, measure: Column, at: str, ms: str) -> DataFrame:
        return rows.select(hour_of(at), *OWNER, measure.alias("measure"), F.col(ms).cast("long").alias("ms"))

    delivered = deliveries.where(F.isnotnull("finished_at") & (F.col("status") == words.delivered))
    measure = F.when(F.col("kind") == words.pulled_kind, "mailbox").otherwise("delivery")
    of_deliveries = times(delivered, measure, "finished_at", "latency_ms")
    of_attempts = times(attempts, F.lit("attempt"), "started_at", "duration_ms")
    return shaped(with_quantiles(of_deliveries.unionByName(of_attempts), ("hour", *OWNER, "measure")), tables.LATENCY)


def reliability(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, subscriber, event type and kind for the deliveries that ended in the hour."""
    status, attempts = F.col("status"), F.col("attempts") + F.col("fetches")
    sums = {
        "deliveries": F.lit(1),
        "delivered": as_count(status == words.delivered),
        "eligible": as_count(~status.isin(*words.neutral)),
        "first_attempt": as_count((status == words.delivered) & (attempts == 1)),
        "attempts": attempts,
    }
    ended = deliveries.where("finished_at IS NOT NULL").withColumn("hour", hour_of("finished_at"))
    return shaped(counted(ended, ("hour", *OWNER), "status", "by_status", sums), tables.RELIABILITY)


def senders(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour and QUEUE sender for the deliveries of groups that ended in the hour (contract 6.2).

    A group has one DELIVERED delivery, so `messages` counts these. The ordering audit reports groups with two.
    """
    sums = {"deliveries": F.lit(1), "messages": as_count(F.col("status") == words.delivered)}
    ended = deliveries.where("sender IS NOT NULL AND finished_at IS NOT NULL").withColumn(
        "hour", hour_of("finished_at")
    )
    return shaped(counted(ended, ("hour", "sender"), "status", "by_status", sums), tables.SENDERS)


def shares(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, group of like subscriptions and each of them, for what ended in the hour (contract 6.3).

    `group_of` is the lowest id of the subscriptions with a delivery that ended in the window, or was attempted by its
    end.
    """
    of_group = Rows.partitionBy("group_id")
    status = F.col("status")
    return shaped(
        deliveries.where("group_id IS NOT NULL")
        .withColumn("group_of", F.min("subscription_id").over(of_group))
        .where("finished_at IS NOT NULL")
        .withColumn("hour", hour_of("finished_at"))
        .groupBy("hour", "group_of", "subscription_id", *SUBSCRIBER, "event_type", "endpoint")
        .agg(
            F.count("*").alias("deliveries"),
            F.sum(as_count(status == words.delivered)).alias("delivered"),
            F.sum(as_count(status == words.redundant)).alias("redundant"),
        ),
        tables.SHARES,
    )


def volume(messages: DataFrame) -> DataFrame:
    """Return a row per hour, publisher and event type for what was published in the hour, without replies."""
    published = messages.where("answers IS NULL").withColumn("hour", hour_of("published_at"))
    sums = {"messages": F.lit(1), "bytes": F.col("size"), "deliveries": F.col("deliveries_count")}
    keys = ("hour", "publisher_id", "publisher", "event_type_id", "event_type", "kind")
    return shaped(counted(published, keys, "outcome", "by_outcome", sums), tables.VOLUME)


HOURLY_SUMMARIES: Final[Mapping[Table, Callable[[Frames, Window, Vocabulary], DataFrame]]] = {
    tables.RELIABILITY: lambda silver, _, words: reliability(silver[tables.SILVER_DELIVERIES], words),
    tables.LATENCY: lambda silver, _, words: latency(
        silver[tables.SILVER_DELIVERIES], silver[tables.SILVER_ATTEMPTS], words
    ),
    tables.ENDPOINTS: lambda silver, window, _: endpoints(silver[tables.SILVER_ATTEMPTS], window),
    tables.VOLUME: lambda silver, *_: volume(silver[tables.SILVER_MESSAGES]),
    tables.CALLBACKS_SUMMARY: lambda silver, _, words: callbacks(silver, words),
    tables.BACKLOG: lambda silver, window, _: backlog(silver, window),
    tables.SENDERS: lambda silver, _, words: senders(silver[tables.SILVER_DELIVERIES], words),
    tables.SHARES: lambda silver, _, words: shares(silver[tables.SILVER_DELIVERIES], words),
    tables.AUDIT: lambda silver, _, words: audit(silver, words),
    tables.FINDINGS: lambda silver, _, words: findings(silver, words),
}
"""By table; each returns the rows of its window only."""
