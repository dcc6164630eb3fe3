"""One step of a replay or backfill job, how jobs end, and how they walk through many rows."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, LiteralString, Protocol, TypeVar

from django.db import Error, transaction

from broker_project.core.db import forget_connection, rows
from delivery.models import ReplayState
from delivery.operations import cancel_slice

TRIES: Final = 10
"""So often a job may fail in a row: what takes too long once may have been in bad company."""

DUE: Final = "(failures = 0 OR updated_at < clock_timestamp() - make_interval(secs => 2 ^ LEAST(failures, 6)))"
"""Not one that has just failed: ten failures take minutes, however many workers try."""

LATER: Final = {ReplayState.CANCELLED: ReplayState.CANCELLING, ReplayState.FAILED: ReplayState.FAILING}

UP_TO: Final = """
SELECT CASE WHEN status = 'ACTIVE' THEN %(cursor)s ELSE (SELECT last_value FROM delivery_delivery_id_seq) END
  FROM subscriptions_subscription WHERE id = %(subscription)s FOR NO KEY UPDATE
"""
"""The newest delivery that is cancelled: if somebody has activated it again, what is published since is theirs."""


MOVED: Final = "UPDATE delivery_replay SET failures = 0, updated_at = clock_timestamp() WHERE id = %s"

LARGEST_ID: Final = 2**63 - 1

FEWEST: Final = 10
"""Rows of an arm: a walk along many gets on all the same."""

WALK: Final = f"""
WITH met AS MATERIALIZED ({{arms}}),
full_arms AS (SELECT max(id) AS last_id FROM met GROUP BY arm HAVING count(*) = %(each)s),
horizon AS (SELECT min(last_id) AS last_id, count(*) = 0 AS is_end FROM full_arms),
stretch AS (SELECT m.* FROM met m CROSS JOIN horizon h WHERE m.id <= COALESCE(h.last_id, {LARGEST_ID}))"""

FAILED: Final = """
UPDATE delivery_replay
   SET failures = failures + 1, updated_at = clock_timestamp(),
       reason = CASE WHEN state IN ('CANCELLING', 'FAILING') THEN reason ELSE 'it failed: ' || %s END
 WHERE id = %s AND finished_at IS NULL RETURNING failures
"""
"""Why it is being ended stays: that goes on until it has."""


def step(take: LiteralString, do: Callable[..., object]) -> int:
    """Take a job, and do its next step with what else was taken; return 1, or 0 where there is none to be taken.

    `take` locks one that is `DUE` and that nobody else is at, and returns its id first. One that fails, of whatever, is
    tried again later and holds up no other; one that fails again and again ends.
    """
    replay_id = None
    try:
        with transaction.atomic():
            for replay_id, *rest in rows(take):
                do(replay_id, *rest)
    except Exception as failure:
        if replay_id is not None:
            _note(replay_id, str(failure).partition("\n")[0] or type(failure).__name__)
        raise
    return int(replay_id is not None)


def _note(replay_id: int, failure: str) -> None:
    """Write down that a job has failed, in a transaction of its own; where even that fails, nothing is known of it."""
    forget_connection()
    with contextlib.suppress(Error), transaction.atomic():
        for (failures,) in rows(FAILED, [failure, replay_id]):
            if failures >= TRIES:
                end(replay_id, ReplayState.FAILED, reason=f"it failed {failures} times: {failure}")


END: Final = """
WITH ended AS (
  UPDATE delivery_replay
     SET state = CASE WHEN kind = 'REPLAY' OR state = 'COUNTING' THEN %(at_once)s ELSE %(later)s END,
         finished_at = CASE WHEN kind = 'REPLAY' OR state = 'COUNTING' THEN clock_timestamp() END,
         cursor_id = CASE WHEN kind = 'REPLAY' OR state = 'COUNTING' THEN cursor_id
                          ELSE (SELECT last_value FROM delivery_delivery_id_seq) END,
         reason = %(reason)s, sliced_at = NULL, failures = 0, updated_at = clock_timestamp()
   WHERE id = %(id)s AND finished_at IS NULL AND state NOT IN ('CANCELLING', 'FAILING')
  RETURNING id, state, subscription_id),
inactivated AS (
  UPDATE subscriptions_subscription s SET status = 'INACTIVE', updated_at = clock_timestamp()
    FROM ended WHERE ended.state = %(later)s AND s.id = ended.subscription_id)
SELECT id FROM ended
"""
"""Its subscription stays paused until all is cancelled: who activates it before that gets nothing of it."""


ENDED: Final = """
WITH ended AS (
  UPDATE delivery_replay SET state = CASE state WHEN 'FAILING' THEN 'FAILED' ELSE 'CANCELLED' END,
                             updated_at = clock_timestamp(), finished_at = clock_timestamp()
   WHERE id = %s RETURNING subscription_id)
UPDATE subscriptions_subscription s
   SET paused_since = NULL, paused_by = '', paused_reason = '', half_open = false, probe_due_at = NULL,
       updated_at = clock_timestamp()
  FROM ended WHERE s.id = ended.subscription_id AND s.paused_by = 'BACKFILL'
"""


def end(replay_id: int, state: ReplayState, *, reason: str) -> bool:
    """End a job under way as CANCELLED or FAILED; tell whether it was under way.

    A backfill's subscription is INACTIVE from then on, and the workers cancel what it has: see `go_on_ending`.
    """
    arguments = {"id": replay_id, "at_once": str(state), "later": str(LATER[state]), "reason": reason}
    return bool(rows(END, arguments))


def go_on_ending(replay_id: int, subscription_id: int, *, cursor: int, reason: str) -> None:
    """Cancel the next of what the subscription has, what was published meanwhile with the rest; or let it go.

    Nobody is left by then who published for it before it was INACTIVE.
    """
    ((newest,),) = rows(UP_TO, {"subscription": subscription_id, "cursor": cursor})
    cancelled = cancel_slice(subscription_id, newest=newest, reason=reason)
    rows(MOVED if cancelled.found else ENDED, [replay_id])


class Item(Protocol):
    """What a walk meets."""

    @property
    def met_id(self) -> int:
        """Return where on the way it is."""

    @property
    def is_wanted(self) -> bool:
        """Tell whether it is what the walk is for."""


AnyMet = TypeVar("AnyMet", bound=Item)


def each_of(limit: int, arms: int) -> int:
    """Return how many rows each arm gives, if there are to be about so many in all."""
    return min(limit, max(FEWEST, 2 * limit // max(arms, 1)))


def taken(met: Sequence[AnyMet], most: int) -> tuple[list[AnyMet], int | None]:
    """Return what is wanted of those met, in their order and `most` at most; and up to where the walk is with it.

    That is None where there is nothing left to meet.
    """
    wanted = [one for one in met if one.is_wanted]
    if len(wanted) > most:
        return wanted[:most], wanted[most - 1].met_id
    return wanted, met[-1].met_id if met else None
