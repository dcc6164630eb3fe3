"""The database's clock, for what a process signs: a machine whose own clock is wrong signs as all others do."""

import math
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import structlog

from broker_project.core import boot_clock
from broker_project.core.db import rows

REFRESH_SECONDS: Final = 5.0
PROMPT_SECONDS: Final = 1.0
"""An answer that takes longer says too little about jumps."""
KEPT_ANSWERS: Final = 8
"""Those of the last 35 seconds, at least."""
MAX_DIFFERENCE_SECONDS: Final = 30.0
"""A clock that differs by more from the database's is reported."""
NOW: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"

log = structlog.get_logger(__name__)


def described_difference(ahead: int) -> str:
    """Return in words by how many seconds a clock is ahead."""
    return f"{abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} the database's"


class DatabaseClock:
    """The database's clock as this process knows it; for any thread.

    Between two answers of the database it runs with the time since boot: nobody sets that, and it counts while the
    machine is suspended. Before the first answer it is the machine's own clock.
    """

    def __init__(self) -> None:
        self._offset = time.time() - boot_clock.since_boot()
        self._answers: Sequence[tuple[float, float]] = ()
        """The times since boot at which the database last answered promptly, and the offset of each."""
        self._refresh_at = 0.0
        """Time since boot."""
        self._refreshing = threading.Lock()
        self.own_clock_ahead = 0
        """By how many seconds this machine's clock is ahead, negative if it is behind; 0 within what is tolerated."""

    def time(self) -> float:
        """Return the time in seconds since 1970."""
        return boot_clock.since_boot() + self._offset

    def now(self) -> datetime:
        """Return the time as the database has answered it some seconds ago at most.

        Raises:
            django.db.Error
        """
        self.refresh()
        return datetime.fromtimestamp(self.time(), UTC)

    def without_jumps(self, seconds: float) -> float:
        """Return what the database's clock would say if it had not jumped ahead in the last `seconds`.

        Infinity before the first answer: a process that has just started has seen no jump.
        """
        answers, now = self._answers, boot_clock.since_boot()
        ends = [*(at for at, _ in answers[1:]), now]  # each offset counts until the next answer
        offsets = [offset for (_, offset), end in zip(answers, ends, strict=False) if end >= now - seconds]
        return now + min(offsets, default=math.inf)

    def refresh(self) -> None:
        """Ask the database for its time, unless it was asked a moment ago; report a difference when it begins and ends.

        Raises:
            django.db.Error
        """
        with self._refreshing:
            if boot_clock.since_boot() >= self._refresh_at:
                self._ask()

    def _ask(self) -> None:
        asked_at = boot_clock.since_boot()
        ((now,),) = rows(NOW)
        answered_at, ahead, before = boot_clock.since_boot(), time.time() - now, self.own_clock_ahead
        self._offset, self._refresh_at = now - answered_at, answered_at + REFRESH_SECONDS
        if answered_at - asked_at <= PROMPT_SECONDS:
            self._answers = [*self._answers[-KEPT_ANSWERS + 1 :], (answered_at, self._offset)]
        tolerated = MAX_DIFFERENCE_SECONDS + answered_at - asked_at
        self.own_clock_ahead = round(ahead) if abs(ahead) > tolerated else 0
        if self.own_clock_ahead and not before:
            log.warning("clock.differs", ahead_seconds=self.own_clock_ahead, hint="synchronize clocks with NTP")
        elif before and not self.own_clock_ahead:
            log.info("clock.agrees")


DATABASE_CLOCK: Final = DatabaseClock()
"""This process's."""
