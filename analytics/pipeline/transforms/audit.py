"""The ordering audit: was each subscriber sent everything once and in order (contract 4.10, 4.11)?"""

from typing import Final

from pyspark.sql import Column, DataFrame, WindowSpec
from pyspark.sql import Window as Rows
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import AUDIT, FINDINGS
from analytics.pipeline.transforms.frames import Silver, hour_of, how_many, shaped
from analytics.pipeline.transforms.silver import deferred_with_number, ends

SENT_AGAIN: Final = "sent again"
TAKEN_TWICE: Final = "taken twice"
POSSIBLE: Final = "possible duplicate"

FLAGGED: Final = "the outcome of a request was unknown; flagged"

CLOCKS_MS: Final = 100
"""So far the clock of a worker, which tells when a request starts, may be from PostgreSQL's, which tells the rest."""
CHORE_SECONDS: Final = 60
"""So long what is done in slices beside the lines may take at worst: to let go what is due, to make things again."""

WAS_RELEASED: Final = "released"
SET_ASIDE: Final = "set aside before it was sent"
NOT_DUE: Final = "not yet due"
MADE_LATER: Final = "made later"
HANDED_OUT: Final = "handed out by a mailbox before"
NOT_ACTIVE: Final = "not active or paused"
NOT_IN_ORDER: Final = "subscriber not active or concurrent"
SAME_TIME: Final = "published at the same time"

INVERSION: Final = "inversion"
TWICE: Final = "number given twice"

RELEASED: Final = "RELEASED"
RESUMED: Final = "RESUMED"
"""What histories of lines say of a delivery: see `tables.RELEASES`."""

HIGH: Final = ("id", "sequence", "created_at")
"""What is kept of the one with the greatest id."""
EXAMPLES: Final = 100
"""So many of a subscriber's findings of a kind are kept for an hour: a subscription that was inactive has millions."""
OWNER: Final = ("hour", "subscriber_id", "subscriber")


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
    return of_each.where("went_on OR repeats").select(*_found_duplicates(SENT_AGAIN, F.col("delivery_id"), F.lit(None)))


def _taken_twice(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    in_turn = Rows.partitionBy("group_id").orderBy("finished_at", "id")
    of_groups = deliveries.where("group_id IS NOT NULL AND finished_at IS NOT NULL")
    taken = of_groups.where(F.col("status") == words.delivered)
    return (
        taken.withColumns({"at": F.col("finished_at"), "before": F.lag("id").over(in_turn)})
        .where("before IS NOT NULL")
        .select(*_found_duplicates(TAKEN_TWICE, F.col("id"), F.col("before")))
    )


def _possible(deliveries: DataFrame, words: Vocabulary) -> DataFrame:
    """A SYNC call is asked once. It has neither number nor group; nor has what is sent in no order (contract 4.13)."""
    may_be_repeated = F.expr("coalesce(sequence, group_id) IS NOT NULL") | ~F.col("kind").isin(words.sync_kind, "")
    flagged = deliveries.where("uncertain AND finished_at IS NOT NULL").where(may_be_repeated)
    return flagged.withColumn("at", F.col("finished_at")).select(
        *_found_duplicates(POSSIBLE, F.col("id"), F.lit(None), explanation=FLAGGED)
    )


def _found_duplicates(finding: str, delivery: Column, other: Column, explanation: str = "") -> tuple[Column, ...]:
    return (
        F.col("at"),
        F.col("subscriber_id"),
        F.col("subscriber"),
        F.lit(finding).alias("finding"),
        delivery.alias("delivery_id"),
        other.cast("long").alias("other_id"),
        F.lit(explanation).alias("explanation"),
    )


OVERLAP_SECONDS: Final = 2
"""So long a publish takes at worst, from its statement's start to its commit; on an idle machine it is milliseconds.

No row tells when one was committed. Two that began so close together may therefore have overlapped, unless something
of the earlier one had been sent before the later one began.
"""


def explanation() -> Column:
    """Return the first that explains an inversion, else nothing; what was done to it comes before what may have been.

    - released: it was HELD when its turn came, by its filter or its script
    - set aside before it was sent: it was set aside more often than its answers in the window account for, so its
      script was lost (8.3), or its endpoint could not be reached at all
    - not yet due: what overtook it was published before it was due (2.13), or before it had been let go then
    - made later: it repeats an older delivery, or is of a backfill (5.8), and what overtook it had been made by then
    - handed out by a mailbox before: so long a client had it, nothing sent it, and what came later went on (9.8). For
      that its subscription had been switched to push since its publish, before what overtook it of that one had ended
    - not active or paused: its subscription changed its status, was paused or went on, or was switched between push and
      pull, between its publish and its end, and nothing else of that subscription overtook it, but what did before it
      was due
    - subscriber not active or concurrent: its subscriber changed its status, or whether it is sent to in order
    - published at the same time: they began within 2 s, and nothing shows that the earlier one was committed before
      the later one began: lines read what is committed, oldest first
    """
    explained = {
        WAS_RELEASED: F.isnotnull("released"),
        SET_ASIDE: F.col("times_deferred") > F.coalesce("deferred_with_number", F.lit(0)),
        NOT_DUE: (F.col("not_before") > F.col("created_at")) & _was_made_before(_after("not_before")),
        MADE_LATER: _may_come_later() & _was_made_before(_after("created_at")),
        HANDED_OUT: _was_handed_out(),
        NOT_ACTIVE: _only_others_overtook() & (_has_one_until("subscription_changed") | F.isnotnull("resumed")),
        NOT_IN_ORDER: _has_one_until("subscriber_changed"),
        SAME_TIME: F.coalesce("resubmit_of", "replay_id").isNull() & _was_made_before(_committed_by()),
    }
    return F.coalesce(*(F.when(holds, word) for word, holds in explained.items()), F.lit(""))


def _was_made_before(moment: Column) -> Column:
    """Return whether what overtook it had been made by a moment: its line may not have seen the two together."""
    return F.col("latest.created_at") <= moment


def _after(moment: str) -> Column:
    return F.timestamp_add("SECOND", F.lit(CHORE_SECONDS), moment)


def _may_come_later() -> Column:
    """Return whether it repeats another, or is of a backfill: until that is done, its subscription is paused."""
    return F.isnotnull("resubmit_of") | (F.isnotnull("replay_id") & _only_others_overtook())


def _only_others_overtook() -> Column:
    """Return whether nothing of its own subscription did, which was not active or paused like itself.

    But for what did so while it was not yet due.
    """
    its = F.col("latest_of_its")
    was_delayed = (F.col("not_before") > F.col("created_at")) & (its["created_at"] <= _after("not_before"))
    return (its["id"] <= F.col("id")) | F.coalesce(was_delayed, F.lit(False))


def _committed_by() -> Column:
    """Return when the publish of what was overtaken had been committed at the latest."""
    return F.least(
        F.timestamp_add("SECOND", F.lit(OVERLAP_SECONDS), "created_at"),
        F.timestamp_add("MILLISECOND", F.lit(CLOCKS_MS), "first_sent_at"),
    )


def _was_handed_out() -> Column:
    """Return whether a client may have had it when it was overtaken, by what has the greatest id of its subscription.

    When it was handed out no row tells, nor for how long. While its subscription was fetched nothing of that was sent,
    so what overtook it had not ended when it was switched; nothing of its own being among that, others are excused.
    """
    overtaken = F.least("latest_of_its.finished_at", "finished_at")
    return (F.col("fetches") > 0) & _has_one_until("subscription_changed", overtaken)


def _has_one_until(changed: str, end: Column | str = "finished_at") -> Column:
    """Return whether one of the changes lies between the delivery's publish and an end, its own unless told."""
    end = F.col(end) if isinstance(end, str) else end
    return F.coalesce(F.exists(changed, lambda at: at.between(F.col("created_at"), end)), F.lit(False))


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
        .join(_times_deferred_with_number(attempts, words), "id", "left")
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


def _times_deferred_with_number(attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Return how often each delivery was set aside, or tried again apart, when it had its number."""
    aside = attempts.where(deferred_with_number(words))
    return aside.groupBy(F.col("delivery_id").alias("id")).agg(F.count("*").alias("deferred_with_number"))


def _first_sent(attempts: DataFrame) -> DataFrame:
    """Return when the first of each message's deliveries, to whomever, was sent: it had been committed by then."""
    return attempts.groupBy("message_id").agg(F.min("started_at").alias("first_sent_at"))


def _changed(changes: DataFrame, whose: str) -> DataFrame:
    """Return when the status of each changed, ready to be joined: one row of each, so that none is multiplied."""
    return F.broadcast(changes.groupBy(f"{whose}_id").agg(F.collect_list("at").alias(f"{whose}_changed")))


def audit(silver: Silver, words: Vocabulary) -> DataFrame:
    """Return a row per hour and subscriber that had something checked, or found.

    - `checked`: deliveries with a number in its line that ended in the hour
    - `inversions`, `duplicates`: how many were found; `explained_…`: those of them that the contract allows
    - `high_id`, `high_sequence`, `high_created_at`: of those checked the one with the greatest id; null if none was
    """
    is_inversion, is_explained = F.col("finding") == INVERSION, F.col("explanation") != ""
    sums = {
        "inversions": is_inversion,
        "explained_inversions": is_inversion & is_explained,
        "duplicates": ~is_inversion,
        "explained_duplicates": ~is_inversion & is_explained,
    }
    ended = _numbered(silver.deliveries).where("finished_at IS NOT NULL")
    counted = ended.select(
        hour_of("finished_at"), *OWNER[1:], F.lit(1).alias("checked"), *_none_of(*sums), F.struct(*HIGH).alias("high")
    )
    found = _found(silver, words).select(
        *OWNER, F.lit(0).alias("checked"), *(how_many(holds).alias(name) for name, holds in sums.items())
    )
    totals = (F.sum(name).alias(name) for name in ("checked", *sums))
    audited = (
        counted.unionByName(found, allowMissingColumns=True).groupBy(*OWNER).agg(*totals, F.max("high").alias("high"))
    )
    return shaped(audited.withColumns({f"high_{name}": F.col(f"high.{name}") for name in HIGH}), AUDIT)


def findings(silver: Silver, words: Vocabulary) -> DataFrame:
    """Return what was found, at most a hundred of a subscriber's in an hour of one kind and with one explanation.

    - `at`: when the later of two ended; of what was sent again, when that began
    - `delivery_id`: what was sent late, or twice; `other_id`: what went before it, if that is another delivery
    """
    of_a_kind = Rows.partitionBy(*OWNER, "finding", "explanation").orderBy("at", "delivery_id")
    numbered = _found(silver, words).withColumn("place", F.row_number().over(of_a_kind))
    return shaped(numbered.where(F.col("place") <= EXAMPLES), FINDINGS)


def _found(silver: Silver, words: Vocabulary) -> DataFrame:
    """Return every finding."""
    attempts = silver.attempts.where("subscriber_id IS NOT NULL")
    sent = with_those_before(_with_earlier(_numbered(silver.deliveries), silver.audit))
    return (
        inversions(sent, attempts, silver.status_changes, silver.releases, words)
        .unionByName(numbers_given_twice(sent))
        .unionByName(duplicates(silver.deliveries.where("subscriber_id IS NOT NULL"), attempts, words))
        .where("at IS NOT NULL")
        .withColumn("hour", hour_of("at"))
    )


def _numbered(deliveries: DataFrame) -> DataFrame:
    """Return what has a number in a subscriber's line; QUEUE, SYNC and replies have none."""
    return deliveries.where("sequence IS NOT NULL AND subscriber_id IS NOT NULL")


def _with_earlier(numbered: DataFrame, audit: DataFrame | None) -> DataFrame:
    """Add of each hour before the window the one with the greatest id: to be compared with, and not to be found."""
    if audit is None:
        return numbered
    high = (F.col(f"high_{name}").alias(name) for name in HIGH)
    earlier = audit.where("high_id IS NOT NULL").select("subscriber_id", "subscriber", *high)
    return numbered.unionByName(earlier, allowMissingColumns=True)


def _none_of(*names: str) -> tuple[Column, ...]:
    return tuple(F.lit(0).cast("long").alias(name) for name in names)
