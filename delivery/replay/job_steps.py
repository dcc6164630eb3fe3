"""Ending a job before it is done; of a backfill, what its subscription has is cancelled, a slice at a time."""

from typing import Final

from broker_project.core.db import rows
from delivery.cancelling import cancel_slice
from delivery.models import ReplayState

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

LATER: Final = {ReplayState.CANCELLED: ReplayState.CANCELLING, ReplayState.FAILED: ReplayState.FAILING}

UP_TO: Final = """
SELECT CASE WHEN status = 'ACTIVE' THEN %(cursor)s ELSE (SELECT last_value FROM delivery_delivery_id_seq) END
  FROM subscriptions_subscription WHERE id = %(subscription)s FOR NO KEY UPDATE
"""
"""The newest delivery that is cancelled: if somebody has activated it again, what is published since is theirs."""

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
MOVED: Final = "UPDATE delivery_replay SET failures = 0, updated_at = clock_timestamp() WHERE id = %s"


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
