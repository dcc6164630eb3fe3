"""Keeping the tables in shape: days opened ahead, days past their time dropped, callbacks ended and forgotten."""

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from django.db import Error

from broker_project.core.db import forget_connection
from delivery.maintenance import partitions
from delivery.maintenance.expiry import expire_replies, forget_callbacks, remove_ended_lines
from delivery.maintenance.retention import drop_past_days, forget
from subscriptions.credentials.rotation import forget_former_secrets

EVERY_SECONDS: Final = 3600.0
AGAIN_SECONDS: Final = 60.0
"""After a failure; days are open for a week ahead, so that nothing waits for this."""
DAY_BEGUN_SECONDS: Final = 5.0
"""So long after its beginning ids are moved into a day; until then they are those of the day before."""
STOP_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


def maintain(
    *, keep_days: int, until_summarized: bool = False, is_stopping: Callable[[], bool] = lambda: False
) -> None:
    """Make partitions ahead, end and drop what is past its time; safe at any time, and by several at once.

    What ended is kept for so many days, and, if it is wanted so, until it has been summarized.
    """
    today = partitions.today()
    partitions.open_days(today)
    expire_replies()
    remove_ended_lines()
    forget_callbacks(keep_days=keep_days)
    forget(keep_days=keep_days)
    forget_former_secrets()
    drop_past_days(today, keep_days=keep_days, until_summarized=until_summarized, is_stopping=is_stopping)


def pause(seconds_left: float) -> float:
    """Return how long to do nothing, so many seconds before the day ends: an hour, or until the next has begun."""
    return min(EVERY_SECONDS, seconds_left + DAY_BEGUN_SECONDS)


class Maintainer(threading.Thread):
    """A thread that maintains the tables now, every hour and as a day begins: beat, which asks too, may be away."""

    def __init__(self, stopping: threading.Event, *, keep_days: int, until_summarized: bool = False) -> None:
        super().__init__(name="maintainer", daemon=True)
        self._keep_days = keep_days
        self._until_summarized = until_summarized
        self._stopping = stopping

    def run(self) -> None:
        """Maintain until told to stop."""
        due_at = time.monotonic()
        while not self._stopping.wait(max(0.0, due_at - time.monotonic())):
            due_at = time.monotonic() + self._maintain()

    def wait_until_stopped(self) -> None:
        """Wait a little for what was begun: the database undoes it where the process ends before it."""
        if self.is_alive():  # a process may stop before this has started
            self.join(STOP_SECONDS)

    def _maintain(self) -> float:
        """Maintain once; return for how many seconds nothing is to be done."""
        try:
            maintain(
                keep_days=self._keep_days,
                until_summarized=self._until_summarized,
                is_stopping=self._stopping.is_set,
            )
            return pause(partitions.seconds_left())
        except Error as failure:
            log.warning("maintenance.failed", reason=failure)
            return AGAIN_SECONDS
        finally:
            forget_connection()
