"""Until when a database that has failed is left alone."""

import time
from typing import Final

import structlog

from broker_project.core.db import forget_connection

RETRY_SECONDS: Final = 0.25
"""Pause before a database that failed is asked again; nothing is forgotten meanwhile."""
LOCKED_SECONDS: Final = 0.02
"""The same for a line that is locked: whoever cancels much lets go of it again and again, but not for long."""

log = structlog.get_logger(__name__)


class Outage:
    """The last time that the database failed, for all who ask it."""

    def __init__(self) -> None:
        self.until = 0.0
        """Monotonic time."""

    @property
    def is_over(self) -> bool:
        """Whether the database may be asked."""
        return time.monotonic() >= self.until

    def begin(self, failure: Exception) -> None:
        """Note that the database has failed; the next statement gets a new connection."""
        log.warning("driver.database_failed", reason=failure)
        self.until = time.monotonic() + RETRY_SECONDS
        forget_connection()
