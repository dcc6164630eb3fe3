"""The hourly summaries: reliability, latency, volume, endpoints, backlog, callbacks, QUEUE balance."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.tables import (
    AUDIT,
    BACKLOG,
    CALLBACKS_SUMMARY,
    ENDPOINTS,
    FINDINGS,
    LATENCY,
    RELIABILITY,
    SENDERS,
    SHARES,
    VOLUME,
    Table,
)
from analytics.pipeline.transforms.audit import audit, findings
from analytics.pipeline.transforms.frames import Silver, counted, hour_of, how_many, shaped, with_quantiles
from analytics.pipeline.transforms.silver import known_event_types

SECONDS: Final = 300
"""Between two moments at which it is counted."""
BACKLOG_OWNER: Final = ("subscriber_id", "subscriber")

STEPS: Final = ("asked", "answered", "forwarded")

ENDPOINTS_KEYS: Final = ("hour", "subscription_id", "subscriber_id", "subscriber", "event_type", "endpoint", "kind")

OWNER: Final = ("subscriber_id", "subscriber", "event_type_id", "event_type", "kind")
LATENCY_KEYS: Final = ("hour", *OWNER, "measure")

RELIABILITY_KEYS: Final = ("hour", "subscriber_id", "subscriber", "event_type_id", "event_type", "kind")

SENDERS_KEYS: Final = ("hour", "sender")

SHARES_KEYS: Final = ("hour", "group_of", "subscription_id", "subscriber_id", "subscriber", "event_type", "endpoint")

VOLUME_KEYS: Final = ("hour", "publisher_id", "publisher", "event_type_id", "event_type", "kind")

Summary = Callable[[Silver, Window, Vocabulary], DataFrame]


def backlog(silver: Silver, window: Window) -> DataFrame:
    """Return a row per fifth minute `at` of the window and subscriber that had something unfinished then.

    `deliveries`: those made by that moment and not ended by then. What a moment adds and takes away is summed
    up first and then added up from moment to moment, so that nothing is looked at once for each moment it waited.
    """
    moments = math.ceil((window.end - window.start).total_seconds() / SECONDS)
    changes = _of_ended(silver.deliveries, window).unionByName(_of_waiting(silver, window))
    in_turn = Rows.partitionBy(*BACKLOG_OWNER).orderBy("moment")
    counted = (
        changes.where(F.col("moment") < moments)
        .groupBy(*BACKLOG_OWNER, "moment")
        .agg(F.sum("change").alias("change"))
        .withColumns(
            {
                "deliveries": F.sum("change").over(in_turn),
                "last": F.lead("moment", 1, moments).over(in_turn) - 1,
            }
        )
        .where("deliveries > 0")
        .withColumn("moment", F.explode(F.sequence("moment", "last")))
    )
    at = F.timestamp_add("SECOND", F.col("moment") * SECONDS, F.lit(window.start))
    return shaped(counted.withColumn("at", at), BACKLOG)


def _of_ended(deliveries: DataFrame, window: Window) -> DataFrame:
    """Return what those that ended in the window add and take away."""
    came = F.struct(_first_from("created_at", window).alias("moment"), F.lit(1).cast("long").alias("change"))
    went = F.struct(_first_from("finished_at", window).alias("moment"), F.lit(-1).cast("long").alias("change"))
    ended = deliveries.where("finished_at IS NOT NULL")
    return ended.select(*BACKLOG_OWNER, F.inline(F.array(came, went)))


def _of_waiting(silver: Silver, window: Window) -> DataFrame:
    """Return what those that wait at the window's end add; of each five minutes there is a number."""
    subscriptions = silver.subscriptions.select(
        F.col("id").alias("subscription_id"), F.col("subscriber_id").alias("of")
    )
    lines = silver.lines.selectExpr("id AS line_id", "subscriber_id AS line_of")
    names = silver.subscribers.selectExpr("id AS subscriber_id", "name AS subscriber")
    return (
        silver.waiting.join(F.broadcast(subscriptions), "subscription_id", "left")
        .join(F.broadcast(lines), "line_id", "left")
        .withColumn("subscriber_id", F.coalesce("of", "line_of"))
        .join(F.broadcast(names), "subscriber_id", "left")
        .fillna("", ["subscriber"])
        .select(*BACKLOG_OWNER, _first_from("since", window).alias("moment"), F.col("deliveries").alias("change"))
    )


def _first_from(at: str, window: Window) -> Column:
    """Return the number of the window's first moment that is not before an instant, from 0 on."""
    since = F.timestamp_diff("MICROSECOND", F.lit(window.start), at)
    return F.greatest(F.ceil(since / (SECONDS * 1_000_000)), F.lit(0)).cast("int")


def callbacks(silver: Silver, words: Vocabulary) -> DataFrame:
    """Return a row per hour and event type, that of the message whose publisher wanted to know.

    - `asked`: callbacks made in the hour
    - `answered`: replies stored in it, messages with `answers`; one may answer a whole chain of callbacks
    - `forwarded`: replies DELIVERED in it
    """
    replies = silver.deliveries.where(F.isnotnull("finished_at") & (F.col("kind") == words.reply_kind))
    forwarded = replies.where(F.col("status") == words.delivered)
    steps = (
        _step(silver.callbacks, "asked", "created_at")
        .unionByName(_step(silver.messages.where("answers IS NOT NULL"), "answered", "published_at"))
        .unionByName(_step(forwarded, "forwarded", "finished_at"))
    )
    counts = steps.groupBy("hour", "event_type_id").agg(
        *(F.count_if(F.col("step") == name).alias(name) for name in STEPS)
    )
    return shaped(counts.join(known_event_types(silver.event_types), "event_type_id", "left"), CALLBACKS_SUMMARY)


def _step(rows: DataFrame, step: str, at: str) -> DataFrame:
    return rows.select(hour_of(at), "event_type_id", F.lit(step).alias("step"))


def endpoints(attempts: DataFrame, window: Window) -> DataFrame:
    """Return a row per hour, subscription, event type and kind for the attempts that started in the hour.

    - `attempts`: how many; `by_class`: of which `error_class`
    - `retries`: those whose `number` is above 1; `failures`: those not answered 2xx
    - `held_seconds`: for each attempt that holds, from its end to the start of its delivery's next attempt, to the
      delivery's end or to the window's, whichever comes first; of that, what lies in the hour
    """
    is_own = F.col("place") == 0
    sums = {
        "attempts": how_many(is_own),
        "retries": how_many(is_own & (F.col("number") > 1)),
        "failures": how_many(is_own & F.col("failed")),
        "held_ms": F.when(F.col("holds"), _held_ms()).otherwise(0),
    }
    summed = counted(
        _by_hour(attempts, window), ENDPOINTS_KEYS, "error_class", "by_class", sums, counts=sums["attempts"]
    )
    return shaped(summed.withColumn("held_seconds", F.col("held_ms") / 1000), ENDPOINTS)


def _by_hour(attempts: DataFrame, window: Window) -> DataFrame:
    """Return each attempt in the hour in which it started, at place 0, and in each other one in which it held."""
    end = F.lit(window.end)
    went_on = F.least(F.coalesce("next_at", end), end)
    last = F.when(F.col("holds"), F.timestamp_add("MICROSECOND", F.lit(-1), "went_on")).otherwise(F.col("started_at"))
    hours = F.sequence(
        F.date_trunc("hour", "started_at"),
        F.date_trunc("hour", F.greatest("started_at", last)),
        F.expr("INTERVAL 1 HOUR"),
    )
    return attempts.withColumn("went_on", went_on).select("*", F.posexplode(hours).alias("place", "hour"))


def _held_ms() -> Column:
    """Return how long of the hour nothing went on, in whole milliseconds: their sums depend on no order."""
    since = F.greatest("ended_at", "hour")
    until = F.least("went_on", F.timestamp_add("HOUR", F.lit(1), "hour"))
    return F.greatest(F.timestamp_diff("MILLISECOND", since, until), F.lit(0))


def latency(deliveries: DataFrame, attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, subscriber, event type, kind and measure; times in milliseconds.

    - measure `delivery`: from `created_at` to `finished_at`, of the DELIVERED, in the hour they ended
    - measure `mailbox`: the same of those that were fetched: their clients come when they like
    - measure `attempt`: `duration_ms` of all attempts, in the hour they started

    `count` and `max_ms` are exact; `p50_ms` … are `percentile_disc` of the times, within 1 %.
    """
    delivered = deliveries.where(F.isnotnull("finished_at") & (F.col("status") == words.delivered))
    waited = F.when(F.col("kind") == words.pulled_kind, "mailbox").otherwise("delivery")
    times = _times(delivered, waited, "finished_at", "latency_ms").unionByName(
        _times(attempts, F.lit("attempt"), "started_at", "duration_ms")
    )
    return shaped(with_quantiles(times, LATENCY_KEYS), LATENCY)


def _times(rows: DataFrame, measure: Column, at: str, ms: str) -> DataFrame:
    return rows.select(hour_of(at), *OWNER, measure.alias("measure"), F.col(ms).cast("long").alias("ms"))


def reliability(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, subscriber, event type and kind for the deliveries that ended in the hour.

    - `deliveries`: how many; `by_status`: of which status
    - `attempts`: how often they were sent, or handed out by a mailbox, whenever that was
    - `delivered`: status DELIVERED; `first_attempt`: of these, those for which that was once
    - `eligible`: all but those of a neutral status (REDUNDANT, CANCELLED)

    Success rate: `delivered / eligible`; first-attempt rate: `first_attempt / eligible`.
    """
    status, attempts = F.col("status"), F.col("attempts") + F.col("fetches")
    sums = {
        "deliveries": F.lit(1),
        "delivered": how_many(status == words.delivered),
        "eligible": how_many(~status.isin(*words.neutral)),
        "first_attempt": how_many((status == words.delivered) & (attempts == 1)),
        "attempts": attempts,
    }
    ended = deliveries.where("finished_at IS NOT NULL").withColumn("hour", hour_of("finished_at"))
    return shaped(counted(ended, RELIABILITY_KEYS, "status", "by_status", sums), RELIABILITY)


def senders(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour and QUEUE sender for the deliveries of groups that ended in the hour (contract 6.2).

    - `deliveries`: how many; `by_status`: of which status
    - `messages`: the groups that an endpoint took; a message that goes to two groups counts twice

    A group has one that is DELIVERED, so these are counted. One that has two is for the ordering audit.
    """
    sums = {"deliveries": F.lit(1), "messages": how_many(F.col("status") == words.delivered)}
    ended = deliveries.where("sender IS NOT NULL AND finished_at IS NOT NULL").withColumn(
        "hour", hour_of("finished_at")
    )
    return shaped(counted(ended, SENDERS_KEYS, "status", "by_status", sums), SENDERS)


def shares(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, group of like subscriptions and each of them, for what ended in the hour (contract 6.3).

    - `group_of`: the first, by id, of the subscriptions among which a message was to find its one; of those with a
      delivery that ended in the window, or of which something had been sent by its end
    - `deliveries`: how many; `delivered`: those that this endpoint took; `redundant`: those that another took
    """
    of_one_message = Rows.partitionBy("group_id")
    status = F.col("status")
    return shaped(
        deliveries.where("group_id IS NOT NULL")
        .withColumn("group_of", F.min("subscription_id").over(of_one_message))
        .where("finished_at IS NOT NULL")
        .withColumn("hour", hour_of("finished_at"))
        .groupBy(*SHARES_KEYS)
        .agg(
            F.count("*").alias("deliveries"),
            F.sum(how_many(status == words.delivered)).alias("delivered"),
            F.sum(how_many(status == words.redundant)).alias("redundant"),
        ),
        SHARES,
    )


def volume(messages: DataFrame) -> DataFrame:
    """Return a row per hour, publisher and event type for what was published in the hour, replies left out.

    `messages`: how many; `by_outcome`: what became of them; `bytes`: of their bodies; `deliveries`: made of them then.
    """
    published = messages.where("answers IS NULL").withColumn("hour", hour_of("published_at"))
    sums = {"messages": F.lit(1), "bytes": F.col("size"), "deliveries": F.col("deliveries_count")}
    return shaped(counted(published, VOLUME_KEYS, "outcome", "by_outcome", sums), VOLUME)


HOURLY_SUMMARIES: Final[Mapping[Table, Summary]] = {
    RELIABILITY: lambda silver, _, words: reliability(silver.deliveries, words),
    LATENCY: lambda silver, _, words: latency(silver.deliveries, silver.attempts, words),
    ENDPOINTS: lambda silver, window, _: endpoints(silver.attempts, window),
    VOLUME: lambda silver, *_: volume(silver.messages),
    CALLBACKS_SUMMARY: lambda silver, _, words: callbacks(silver, words),
    BACKLOG: lambda silver, window, _: backlog(silver, window),
    SENDERS: lambda silver, _, words: senders(silver.deliveries, words),
    SHARES: lambda silver, _, words: shares(silver.deliveries, words),
    AUDIT: lambda silver, _, words: audit(silver, words),
    FINDINGS: lambda silver, _, words: findings(silver, words),
}
"""By the table that the result is a part of: rows of this window only."""
