"""The ordering audit: was each subscriber sent everything once and in order (contract 4.10, 4.11, 4.18)?"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import AUDIT, FINDINGS, RELEASES, SILVER_ATTEMPTS, SILVER_DELIVERIES, STATUS_CHANGES
from analytics.pipeline.transforms.frames import Frames, as_count, hour_of, shaped
from analytics.pipeline.transforms.silver import ends, holds

INVERSION: Final = "inversion"

MAX_CLOCK_SKEW_MS: Final = 100
"""Between a worker's clock, which times the start of requests, and PostgreSQL's, which times everything else."""
MAX_BATCH_SECONDS: Final = 60
"""How long batches beside the lines take at worst: releasing what is due, resubmitting."""
MAX_PUBLISH_SECONDS: Final = 2
"""How long a publish takes at worst, from its statement's start to its commit; typically milliseconds.

No row says when a publish was committed. Two that began this close together may have overlapped, unless a delivery of
the earlier one had been sent before the later one began.
"""
MAX_EXAMPLES: Final = 100
"""Findings kept per subscriber, hour, kind and explanation: an inactive subscription may have millions."""

HIGH: Final = ("id", "sequence", "created_at")
"""The columns kept of the delivery with the greatest id."""
OWNER: Final = ("hour", "subscriber_id", "subscriber")


def duplicates(deliveries: DataFrame, attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Return each delivery that was, or may have been, received twice.

    A SYNC call is attempted once; neither it nor concurrent delivery (contract 4.13) has a number or group.
    """
    first, last = F.min("number"), F.max("number")
    again = (
        attempts.groupBy("delivery_id", "subscriber_id", "subscriber")
        .agg(
            F.max("started_at").alias("at"),
            (last > F.min(F.when(ends(words), F.col("number")))).alias("went_on"),
            (F.count("*") > last - first + 1).alias("repeats"),  # numbers rise by one
        )
        .where("went_on OR repeats")
    )
    in_order = Rows.partitionBy("group_id").orderBy("finished_at", "id")
    taken = (
        deliveries.where("group_id IS NOT NULL AND finished_at IS NOT NULL")
        .where(F.col("status") == words.delivered)
        .withColumns({"at": F.col("finished_at"), "before": F.lag("id").over(in_order)})
        .where("before IS NOT NULL")
    )
    may_repeat = F.expr("coalesce(sequence, group_id) IS NOT NULL") | ~F.col("kind").isin(words.sync_kind, "")
    flagged = deliveries.where("uncertain AND finished_at IS NOT NULL").where(may_repeat)
    unknown = F.lit("the outcome of a request was unknown; flagged")
    return (
        again.select(*_finding("sent again", "at", "delivery_id", F.lit(None)))
        .unionByName(taken.select(*_finding("taken twice", "at", "id", F.col("before"))))
        .unionByName(flagged.select(*_finding("possible duplicate", "finished_at", "id", F.lit(None), unknown)))
    )


def _finding(
    finding: str, at: str | Column, delivery: str, other: Column, explanation: Column | None = None
) -> tuple[Column, ...]:
    """Return the columns of a finding."""
    return (
        (F.col(at) if isinstance(at, str) else at).alias("at"),
        F.col("subscriber_id"),
        F.col("subscriber"),
        F.lit(finding).alias("finding"),
        F.col(delivery).alias("delivery_id"),
        other.cast("long").alias("other_id"),
        (F.lit("") if explanation is None else explanation).alias("explanation"),
    )


def explanation() -> Column:
    """Return the first explanation of an inversion, or an empty text; certain ones come before possible ones.

    Each is described in docs/reference/summaries.md; see contract 2.13, 5.8, 8.3 and 9.8.
    """
    own = F.col("latest_of_its")
    is_delayed = F.col("not_before") > F.col("created_at")
    after_due = F.timestamp_add("SECOND", F.lit(MAX_BATCH_SECONDS), "not_before")
    after_creation = F.timestamp_add("SECOND", F.lit(MAX_BATCH_SECONDS), "created_at")
    # Only other subscriptions overtook it, or its own while it was not yet due.
    only_others = (own["id"] <= F.col("id")) | F.coalesce(is_delayed & (own["created_at"] <= after_due), F.lit(False))
    is_made_later = F.isnotnull("resubmit_of") | (F.isnotnull("replay_id") & only_others)
    overtaken = F.least("latest_of_its.finished_at", "finished_at")
    committed = F.least(
        F.timestamp_add("SECOND", F.lit(MAX_PUBLISH_SECONDS), "created_at"),
        F.timestamp_add("MILLISECOND", F.lit(MAX_CLOCK_SKEW_MS), "first_sent_at"),
    )
    overtook_from = F.col("latest.created_at")
    ended = F.col("finished_at")
    explained = {
        "released": F.isnotnull("released"),
        "set aside before it was sent": F.col("times_deferred") > F.coalesce("deferred_numbered", F.lit(0)),
        "not yet due": is_delayed & (overtook_from <= after_due),
        "made later": is_made_later & (overtook_from <= after_creation),
        "fetched from a mailbox before": (F.col("fetches") > 0) & _has_changed("subscription_changed", overtaken),
        "not active or paused": only_others & (_has_changed("subscription_changed", ended) | F.isnotnull("resumed")),
        "subscriber not active or concurrent": _has_changed("subscriber_changed", ended),
        "published at the same time": F.coalesce("resubmit_of", "replay_id").isNull() & (overtook_from <= committed),
    }
    return F.coalesce(*(F.when(holds, word) for word, holds in explained.items()), F.lit(""))


def _has_changed(changes: str, end: Column) -> Column:
    """Return whether one of the changes lies between the delivery's publish and `end`."""
    return F.coalesce(F.exists(changes, lambda at: at.between(F.col("created_at"), end)), F.lit(False))


def with_those_before(numbered: DataFrame) -> DataFrame:
    """Add what each subscriber was sent up to here within an order: `latest`, with the greatest id.

    An order is that of a subscriber, or of one ordering key of a KEYED one. `latest_of_its` is the same of its
    subscription, including itself. `previous` is the subscriber's last one, of any key. All rows of a subscriber are
    sorted in one task, which spills what does not fit into memory.
    """
    of_subscriber = Rows.partitionBy("subscriber_id").orderBy("sequence", "id")
    in_order = Rows.partitionBy("subscriber_id", "ordering_key").orderBy("sequence", "id")
    of_subscription = Rows.partitionBy("subscriber_id", "ordering_key", "subscription_id").orderBy("sequence", "id")
    so_far = (Rows.unboundedPreceding, Rows.currentRow)
    return numbered.withColumns(
        {
            "latest": F.max(F.struct("id", "created_at")).over(in_order.rowsBetween(*so_far)),
            "latest_of_its": F.max(F.struct("id", "created_at", "finished_at")).over(
                of_subscription.rowsBetween(*so_far)
            ),
            "previous": F.lag(F.struct("id", "sequence", "finished_at")).over(of_subscriber),
        }
    )


def inversions(
    sent: DataFrame, attempts: DataFrame, status_changes: DataFrame, releases: DataFrame, words: Vocabulary
) -> DataFrame:
    """Return deliveries that ended in the window and were first sent after one with a greater id; `other` is the last.

    For their explanations they are joined with:

    - when they were released, and when their end resumed their subscription
    - how often they were set aside, or sent to a retry lane, when they had their number
    - when the first of their message's deliveries was sent, which shows that the publish was committed
    - when their subscription and their subscriber changed
    """
    released = releases.groupBy(F.col("delivery_id").alias("id")).agg(
        F.min(F.when(F.col("kind") == "RELEASED", F.col("at"))).alias("released"),
        F.min(F.when(F.col("kind") == "RESUMED", F.col("at"))).alias("resumed"),
    )
    deferred = (
        attempts.where(defers_numbered(words))
        .groupBy(F.col("delivery_id").alias("id"))
        .agg(F.count("*").alias("deferred_numbered"))
    )
    first_sent = attempts.groupBy("message_id").agg(F.min("started_at").alias("first_sent_at"))
    of_subscriptions = _changes(status_changes.where("subscription_id IS NOT NULL"), "subscription")
    of_subscribers = _changes(status_changes.where("subscription_id IS NULL"), "subscriber")
    return (
        sent.where("finished_at IS NOT NULL AND latest.id > id")
        .join(released, "id", "left")
        .join(deferred, "id", "left")
        .join(first_sent, "message_id", "left")
        .join(of_subscriptions, "subscription_id", "left")
        .join(of_subscribers, "subscriber_id", "left")
        .select(*_finding(INVERSION, "finished_at", "id", F.col("latest.id"), explanation()))
    )


def defers_numbered(words: Vocabulary) -> Column:
    """Return whether the line went on after the attempt while the delivery, which had its number by then, stayed.

    A delivery that could not be sent at all has no number where it is set aside, and has one in a retry lane.
    """
    is_deferred = (F.col("meaning") == words.means_deferred) & F.col("status_code").isNotNull()
    by_policy = (F.col("meaning") == words.means_retry_lane) | is_deferred
    return F.coalesce(by_policy, ~holds(words) & ~ends(words))


def _changes(changes: DataFrame, of: str) -> DataFrame:
    """Return when each subscription or subscriber changed, one row each, ready to be joined."""
    return F.broadcast(changes.groupBy(f"{of}_id").agg(F.collect_list("at").alias(f"{of}_changed")))


def audit(silver: Frames, words: Vocabulary) -> DataFrame:
    """Return a row per hour and subscriber with checked deliveries or findings.

    `high_id`, `high_sequence` and `high_created_at` are of the checked delivery with the greatest id, which deliveries
    of later windows are compared with; null if none was. Those with an ordering key are compared within a window only.
    """
    is_inversion, is_explained = F.col("finding") == INVERSION, F.col("explanation") != ""
    sums = {
        "inversions": is_inversion,
        "explained_inversions": is_inversion & is_explained,
        "duplicates": ~is_inversion,
        "explained_duplicates": ~is_inversion & is_explained,
    }
    checked = _numbered(silver[SILVER_DELIVERIES]).where("finished_at IS NOT NULL")
    counted = checked.select(
        hour_of("finished_at"),
        *OWNER[1:],
        F.lit(1).alias("checked"),
        *(F.lit(0).cast("long").alias(name) for name in sums),
        F.when(F.isnull("ordering_key"), F.struct(*HIGH)).alias("high"),
    )
    found = _findings(silver, words).select(
        *OWNER, F.lit(0).alias("checked"), *(as_count(condition).alias(name) for name, condition in sums.items())
    )
    totals = (F.sum(name).alias(name) for name in ("checked", *sums))
    audited = (
        counted.unionByName(found, allowMissingColumns=True).groupBy(*OWNER).agg(*totals, F.max("high").alias("high"))
    )
    return shaped(audited.withColumns({f"high_{name}": F.col(f"high.{name}") for name in HIGH}), AUDIT)


def findings(silver: Frames, words: Vocabulary) -> DataFrame:
    """Return the findings, at most a hundred per subscriber, hour, kind and explanation.

    `at` is when the later of two ended; of what was sent again, when that began.
    """
    alike = Rows.partitionBy(*OWNER, "finding", "explanation").orderBy("at", "delivery_id")
    numbered = _findings(silver, words).withColumn("place", F.row_number().over(alike))
    return shaped(numbered.where(F.col("place") <= MAX_EXAMPLES), FINDINGS)


def _findings(silver: Frames, words: Vocabulary) -> DataFrame:
    """Return all findings.

    The deliveries are compared with each other and with the high-water marks of the hours before the window.
    """
    sent = _numbered(silver[SILVER_DELIVERIES])
    high = (F.col(f"high_{name}").alias(name) for name in HIGH)
    earlier = silver[AUDIT].where("high_id IS NOT NULL").select("subscriber_id", "subscriber", *high)
    sent = with_those_before(sent.unionByName(earlier, allowMissingColumns=True))
    attempts = silver[SILVER_ATTEMPTS].where("subscriber_id IS NOT NULL")
    # If either of the two with one number ended in the window; nothing explains them.
    either_ended = F.greatest("finished_at", "previous.finished_at")
    twice = _finding("number given twice", either_ended, "id", F.col("previous.id"))
    return (
        inversions(sent, attempts, silver[STATUS_CHANGES], silver[RELEASES], words)
        .unionByName(sent.where("previous.sequence = sequence").select(*twice))
        .unionByName(duplicates(silver[SILVER_DELIVERIES].where("subscriber_id IS NOT NULL"), attempts, words))
        .where("at IS NOT NULL")
        .withColumn("hour", hour_of("at"))
    )


def _numbered(deliveries: DataFrame) -> DataFrame:
    """Return what has a number in a subscriber's line; QUEUE, SYNC and replies have none."""
    return deliveries.where("sequence IS NOT NULL AND subscriber_id IS NOT NULL")
