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
 WHERE delivery_clockjump.believed_at NOT BETWEEN clock_timestamp() - make_interval(secs => %(elapsed)s)
                                              AND excluded.believed_at
RETURNING id
"""
"""Unless another process has noted the jump, or an operator has confirmed it, since this process read the clock."""
BELIEVE: Final = """
WITH believed AS (UPDATE delivery_clockjump SET believed_at = clock_timestamp())
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
        self._read_at = 0.0
        """Time since boot."""

    def now(self) -> datetime | None:
        """Return the database's time; None while it is not believed: nothing is at or before NULL in SQL.

        Raises:
            django.db.Error
        """
        with self._lock:
            ((now, is_doubted),) = rows(READ)
            read_at = boot_clock.since_boot()
            offset = now - read_at
            ahead = 0.0 if self._offset is None else offset - self._offset
            if ahead > JUMP_SECONDS:
                if rows(NOTE_JUMP, {"seconds": ahead, "elapsed": read_at - self._read_at}):
                    hint = "nothing expires or is deleted for ten minutes"
                    log.warning("clock.jumped", seconds=round(ahead), hint=hint)
                ((now, is_doubted),) = rows(READ)
            self._offset, self._read_at = offset, read_at
        return None if is_doubted else datetime.fromtimestamp(now, UTC)


BELIEVED_CLOCK: Final = BelievedClock()
"""This process's."""


def is_doubted() -> bool:
    """Return whether a process has noted a jump after which the clock is not believed yet."""
    ((_, found),) = rows(READ)
    return found  # type: ignore[no-any-return]


def believe() -> datetime:
    """Believe the clock now, although it has jumped; return its time in UTC."""
    ((now,),) = rows(BELIEVE)
    return now  # type: ignore[no-any-return]
