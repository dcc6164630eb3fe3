"""Why the contract allows that something was first sent after what came later (behaviour 4.10).

Columns over what `inversions` has brought together of each delivery that was overtaken, and of `latest`, which has the
greatest id of those sent before it.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

OVERLAP_SECONDS: Final = 2
"""So long a publish takes at worst, from its statement's start to its commit; on an idle machine it is milliseconds.

No row tells when one was committed. Two that began so close together may therefore have overlapped, unless something
of the earlier one had been sent before the later one began.
"""
CLOCKS_MS: Final = 100
"""So far the clock of a worker, which tells when a request starts, may be from PostgreSQL's, which tells the rest."""
CHORE_SECONDS: Final = 60
"""So long what is done in slices beside the lines may take at worst: to let go what is due, to make things again."""

RELEASED: Final = "released"
SET_ASIDE: Final = "set aside before it was sent"
NOT_DUE: Final = "not yet due"
MADE_LATER: Final = "made later"
HANDED_OUT: Final = "handed out by a mailbox before"
NOT_ACTIVE: Final = "not active or paused"
NOT_IN_ORDER: Final = "subscriber not active or concurrent"
SAME_TIME: Final = "published at the same time"


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
        RELEASED: F.isnotnull("released"),
        SET_ASIDE: F.col("times_set_aside") > F.coalesce("set_aside_numbered", F.lit(0)),
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
