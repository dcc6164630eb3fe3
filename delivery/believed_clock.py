"""The database's clock for what expires or is deleted: after a jump ahead it is not believed for a while (11.7)."""

import threading
from datetime import UTC, datetime
from typing import Final

import structlog

from broker_project.core import boot_clock
from broker_project.core.db import rows

JUMP_SECONDS: Final = 3600.0
DOUBT_SECONDS: Final = 600.0

READ: Final = f"""
SELECT extract(epoch FROM at)::float8,
       EXISTS (SELECT FROM delivery_clockjump
                WHERE believed_at > at AND believed_at <= at + make_interval(secs => {DOUBT_SECONDS}))
  FROM (SELECT clock_timestamp() AS at) AS clock
"""
"""A jump that is to be believed later than that has been undone: the clock was set back."""
NOTE_JUMP: Final = f"""
INSERT INTO delivery_clockjump (id, seconds, believed_at)
VALUES (1, %(seconds)s, clock_timestamp() + make_interval(secs => {DOUBT_SECONDS}))
    ON CONFLICT (id) DO UPDATE SET seconds = excluded.seconds, believed_at = excluded.believed_at
"""
BELIEVE: Final = """
WITH forgotten AS (DELETE FROM delivery_clockjump)
SELECT clock_timestamp() AT TIME ZONE 'UTC'
"""

log = structlog.get_logger(__name__)


class BelievedClock:
    """Compare the database's clock with the time since boot, which nobody sets; for any thread.

    A jump is noted in the database: a process that has not seen it, because it started later, doubts the clock too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset: float | None = None
        """Of the database's clock from the time since boot. None: this process has not read it, so it saw no jump."""

    def now(self) -> datetime | None:
        """Return the database's time; None while it is not believed: nothing is at or before NULL in SQL.

        Raises:
            django.db.Error
        """
        with self._lock:
            ((now, is_doubted),) = rows(READ)
            offset = now - boot_clock.since_boot()
            ahead = 0.0 if self._offset is None else offset - self._offset
            if has_jumped := ahead > JUMP_SECONDS:
                rows(NOTE_JUMP, {"seconds": ahead})
                log.warning("clock.jumped", seconds=round(ahead), hint="nothing expires or is deleted for ten minutes")
            self._offset = offset
        return None if has_jumped or is_doubted else datetime.fromtimestamp(now, UTC)


BELIEVED_CLOCK: Final = BelievedClock()
"""This process's."""


def believe() -> datetime:
    """Believe the clock now, although it has jumped; return its time in UTC."""
    ((now,),) = rows(BELIEVE)
    return now  # type: ignore[no-any-return]
