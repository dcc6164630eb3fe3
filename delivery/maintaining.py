"""Keeping the tables in shape: days opened ahead, days past their time dropped."""

import threading
import time
from typing import Final

import structlog
from django.db import Error

from delivery import storage_days
from delivery.retaining import drop_past_days
from subscriptions.database import forget_connection

EVERY_SECONDS: Final = 3600.0
AGAIN_SECONDS: Final = 60.0
"""After a failure; days are open for a week ahead, so that nothing waits for this."""

log = structlog.get_logger(__name__)


def maintain(*, keep_days: int) -> None:
    """Make partitions ahead and drop what is past its time; safe at any time, and by several at once."""
    today = storage_days.today()
    storage_days.open_days(today)
    drop_past_days(today, keep_days=keep_days)


class Maintainer(threading.Thread):
    """A thread that maintains the tables now and every hour: beat, which asks for it too, may be away."""

    def __init__(self, *, keep_days: int) -> None:
        super().__init__(name="maintainer", daemon=True)
        self._keep_days = keep_days
        self._stopping = threading.Event()

    def run(self) -> None:
        """Maintain until stopped."""
        due_at = time.monotonic()
        while not self._stopping.wait(max(0.0, due_at - time.monotonic())):
            due_at = time.monotonic() + (EVERY_SECONDS if self._maintain() else AGAIN_SECONDS)

    def stop(self) -> None:
        """Start nothing more, and finish what was begun."""
        self._stopping.set()
        self.join()

    def _maintain(self) -> bool:
        try:
            maintain(keep_days=self._keep_days)
        except Error as failure:
            log.warning("maintenance.failed", reason=str(failure))
            return False
        finally:
            forget_connection()
        return True
