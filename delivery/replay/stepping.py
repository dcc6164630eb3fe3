"""One step of a job: in one transaction with how far it is, and again a little later where it fails."""

import contextlib
from collections.abc import Callable
from typing import Final, LiteralString

from django.db import Error, transaction

from broker_project.core.db import forget_connection, rows
from delivery.models import ReplayState
from delivery.replay.job_steps import end

TRIES: Final = 10
"""So often a job may fail in a row: what takes too long once may have been in bad company."""

DUE: Final = "(failures = 0 OR updated_at < clock_timestamp() - make_interval(secs => 2 ^ LEAST(failures, 6)))"
"""Not one that has just failed: ten failures take minutes, however many workers try."""

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
