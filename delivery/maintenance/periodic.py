"""What becomes due by the clock alone: looked after every second, by each worker and by a task of beat's.

Each chore takes what is due and nobody else is at, a slice of it, in transactions of its own; so several may be at it
at once, in any number of processes, and any of them may be killed.
"""

import threading
from collections.abc import Callable, Container, Mapping
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Final

import structlog
from django.db import Error

from broker_project.core.db import forget_connection
from broker_project.core.egress import EgressPolicy
from delivery import announcements, health_probe
from delivery.dispatch import sweep
from delivery.health_probe import Monitors
from delivery.mailbox import unread
from delivery.maintenance import expiry
from delivery.replay import backfill_job, replay_job

EVERY_SECONDS: Final = 1.0
SELDOM_SECONDS: Final = 5.0
STOP_SECONDS: Final = 1.0

Chore = Callable[[], int]
"""Does what is due, or a slice of it; returns how much that was, 0 only where nothing is left to it."""

CHORES: Final[dict[str, Chore]] = {
    "begin_delayed": sweep.begin_delayed,
    "expire_overdue": expiry.expire_overdue,
    "expire_unread": unread.expire_unread,
    "return_overdue": unread.return_overdue,
    "announce_held_lines": announcements.announce_held_lines,
    "announce": announcements.announce,
    "replay": replay_job.go_on,
    "backfill": backfill_job.go_on,
}

PROBE: Final = "probe"
SELDOM: Final = frozenset({"expire_unread", "announce_held_lines"})
"""What takes a look at all there is, and is in no hurry; unless it has found something."""
log = structlog.get_logger(__name__)


def run_periodic_jobs(
    *,
    but: Container[str] = (),
    own: Mapping[str, Chore] = MappingProxyType({}),
    is_stopping: Callable[[], bool] = lambda: False,
    on_failure: Callable[[str], object] = lambda _: None,
) -> int:
    """Do each chore once, but for some, and those of the caller's `own`; return how much was done.

    One that fails, by its name on `on_failure`, stops no other.
    """
    return sum(
        _done(name, chore, on_failure)
        for name, chore in {**CHORES, **own}.items()
        if name not in but and not is_stopping()
    )


def _done(name: str, chore: Chore, on_failure: Callable[[str], object]) -> int:
    try:
        return chore()
    except Error as failure:
        log.warning("chore.database_failed", chore=name, reason=failure)
        forget_connection()
    except Exception:
        log.exception("chore.failed", chore=name)
        on_failure(name)
    return 0


class PeriodicJobs(threading.Thread):
    """A thread that attends every second, and again at once while there is more to do: a slice of each in turn.

    It alone probes, since it remembers whom it has asked.
    """

    def __init__(
        self, stopping: threading.Event, egress: EgressPolicy, on_failure: Callable[[str], object] = lambda _: None
    ) -> None:
        super().__init__(name="attendant", daemon=True)
        self._own = {PROBE: partial(health_probe.probe, Monitors(egress))}
        self._stopping = stopping
        self._on_failure = on_failure

    def run(self) -> None:
        """Attend until told to stop."""
        done, seldom_at = 0, 0.0
        while not self._stopping.wait(0.0 if done else EVERY_SECONDS):
            done = self._attend(but=SELDOM)
            if monotonic() >= seldom_at:
                found = self._attend(but={PROBE, *CHORES.keys() - SELDOM})
                done, seldom_at = done + found, 0.0 if found else monotonic() + SELDOM_SECONDS
        forget_connection()

    def _attend(self, *, but: Container[str]) -> int:
        return run_periodic_jobs(but=but, own=self._own, is_stopping=self._stopping.is_set, on_failure=self._on_failure)

    def wait_until_stopped(self) -> None:
        """Wait a little for what was begun: the database undoes it where the process ends before it."""
        if self.is_alive():  # a process may stop before this has started
            self.join(STOP_SECONDS)
