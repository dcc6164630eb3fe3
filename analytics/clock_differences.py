"""Processes whose own clock differs from the database's: each notes its difference, and the alerts read the notes."""

import os
import socket
from typing import Final

from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.db import rows

NOTED_SECONDS: Final = 60
"""A note counts for so long. A running process renews its note several times in this time."""
COUNTS: Final = f"seen_at BETWEEN clock_timestamp() - interval '{NOTED_SECONDS} s' AND clock_timestamp()"
NOTE: Final = """
INSERT INTO analytics_clockdifference (process, ahead_seconds, seen_at) VALUES (%s, %s, clock_timestamp())
    ON CONFLICT (process) DO UPDATE SET ahead_seconds = excluded.ahead_seconds, seen_at = excluded.seen_at
"""
FIND: Final = f"SELECT process, ahead_seconds FROM analytics_clockdifference WHERE {COUNTS} ORDER BY process"
FORGET: Final = f"DELETE FROM analytics_clockdifference WHERE NOT ({COUNTS})"


def note_own_clock() -> None:
    """Note by how much this process's own clock differs from the database's, if that is too much (contract 11.8)."""
    DATABASE_CLOCK.refresh()
    if ahead := DATABASE_CLOCK.own_clock_ahead:
        rows(NOTE, [f"{socket.gethostname()}-{os.getpid()}", ahead])


def differing_clocks() -> dict[str, int]:
    """Return by how many seconds clocks are ahead, negative if they are behind, by the names of their processes."""
    return dict(rows(FIND))


def forget_old_notes() -> None:
    """Delete what was noted by processes that have ended, or whose clocks agree again."""
    rows(FORGET)
