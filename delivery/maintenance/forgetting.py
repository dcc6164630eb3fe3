"""Forgetting what only tells of what has been: jobs that have ended, and counts of what was never stored."""

from typing import Final

from broker_project.core.db import rows

REPLAYS: Final = "DELETE FROM delivery_replay WHERE finished_at < clock_timestamp() - make_interval(days => %s::int)"
COUNTS: Final = "DELETE FROM delivery_volatilecount WHERE hour < clock_timestamp() - make_interval(days => %s::int)"


def forget(*, keep_days: int) -> None:
    """Delete replays and backfills that ended, and counts of volatile messages, so many days ago."""
    for statement in (REPLAYS, COUNTS):
        rows(statement, [keep_days])
