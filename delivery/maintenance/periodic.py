"""Run what becomes due by time alone: jobs every second, and maintenance of the tables every hour.

Each job takes a slice of what is due and not locked, in transactions of its own. So any number of processes can run it
at once, and any of them can be killed.
"""

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Final, LiteralString

import structlog
from django.db import Error

from broker_project.core.api.history import forget_old_changes
from broker_project.core.db import forget_connection, rows
from broker_project.core.egress import EgressPolicy
from delivery import announcements, endpoint_probe
from delivery.believed_clock import BELIEVED_CLOCK
from delivery.dispatch import sweep, turn_floors
from delivery.endpoint_probe import Monitors
from delivery.mailbox import unread
from delivery.maintenance import clock, expiry, minutes, partitions
from delivery.maintenance.retention import RetentionDiffers, check_keep_days, delete_old_records, drop_past_days
from delivery.publish import idempotency
from delivery.replay import backfill_job, job_steps, replay_job
from subscriptions.credentials.portal_links import forget_ended_portal_keys
from subscriptions.credentials.signing_secrets import forget_former_secrets

JOB_SECONDS: Final = 1.0
SELDOM_SECONDS: Final = 5.0
STOP_SECONDS: Final = 1.0

PeriodicJob = Callable[[], int]
"""Does a slice of what is due and returns its size, 0 only if nothing is left."""

JOBS: Final[dict[str, PeriodicJob]] = {
    "begin_delayed": sweep.begin_delayed,
    "set_back_times": clock.set_back_times,
    "expire_overdue": expiry.expire_overdue,
    "expire_unread": unread.expire_unread,
    "return_overdue": unread.return_overdue,
    "announce_held_lines": announcements.announce_held_lines,
    "announce": announcements.announce,
    "replay": replay_job.go_on,
    "backfill": backfill_job.go_on,
    "forget_expired_keys": idempotency.forget_expired_keys,
    "count_minutes": minutes.count_minutes,
    "note_floors": turn_floors.note_floors,
}

PROBE: Final = "probe"
HAS_WORK: Final[dict[str, LiteralString]] = {
    "begin_delayed": sweep.ARE_DELAYED,
    "expire_overdue": expiry.ARE_OVERDUE,
    "return_overdue": unread.ARE_FETCHED,
    "announce": announcements.ARE_THERE,
    "replay": job_steps.ARE_UNFINISHED,
    "backfill": job_steps.ARE_UNFINISHED,
    "note_floors": turn_floors.ARE_NEEDED,
    "announce_held_lines": announcements.ARE_HELD,
    "forget_expired_keys": idempotency.ARE_EXPIRED,
    "count_minutes": minutes.IS_UNCOUNTED,
    PROBE: endpoint_probe.ARE_DUE,
}
"""SQL that tells whether there is anything to do for a job: all are asked in one statement, since mostly there is not.
"""
SELDOM: Final = frozenset(
    {"set_back_times", "expire_unread", "announce_held_lines", "forget_expired_keys", "count_minutes"}
)
"""Jobs that read a lot and are not urgent, unless the last run has found something."""

MAINTENANCE_SECONDS: Final = 3600.0
RETRY_SECONDS: Final = 60.0
"""After a failure; partitions exist a week ahead, so nothing waits for this."""
DAY_BEGUN_SECONDS: Final = 5.0
"""After midnight, ids are moved into the new day; until then they are those of the day before."""

log = structlog.get_logger(__name__)


class MaintenanceFailed(Exception):
    """Jobs of the maintenance failed, for reasons that are logged; the others were done."""


def run_periodic_jobs(
    *,
    but: Container[str] = (),
    own: Mapping[str, PeriodicJob] = MappingProxyType({}),
    is_stopping: Callable[[], bool] = lambda: False,
    on_failure: Callable[[str], object] = lambda _: None,
) -> int:
    """Run each job once, and those of `own`, without those of `but`; return how much was done.

    A job that fails stops no other; its name goes to `on_failure`.
    """
    jobs = {name: job for name, job in {**JOBS, **own}.items() if name not in but}
    idle = _without_work([name for name in jobs if name in HAS_WORK])
    done = 0
    for name, job in jobs.items():
        if name not in idle and not is_stopping():
            with _guarded(name, on_failure):
                done += job()
    return done


def _without_work(names: Sequence[str]) -> set[str]:
    """Return the jobs for which there is nothing to do; none if the database does not say."""
    try:
        answers = rows("SELECT " + ", ".join([HAS_WORK[name] for name in names]))[0] if names else ()
    except Error as failure:
        log.warning("periodic_job.database_failed", job="ask", reason=failure)
        forget_connection()
        return set()
    return {name for name, has_work in zip(names, answers, strict=True) if not has_work}


@contextmanager
def _guarded(
    name: str, on_failure: Callable[[str], object], on_refusal: Callable[[str], object] = lambda _: None
) -> Iterator[None]:
    """Log it when a job fails, and go on; if the database refuses something, its name goes to `on_refusal`."""
    try:
        yield
    except Error as failure:
        log.warning("periodic_job.database_failed", job=name, reason=failure)
        forget_connection()
        on_refusal(name)
    except Exception:
        log.exception("periodic_job.failed", job=name)
        on_failure(name)


class _Stoppable(threading.Thread):
    """A thread that ends soon after `stopping` is set."""

    def __init__(self, name: str, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._stopping = stopping

    def wait_until_stopped(self) -> None:
        """Wait briefly for the running job; if the process ends first, the database rolls it back."""
        if self.is_alive():  # a process may stop before this has started
            self.join(STOP_SECONDS)


class PeriodicJobs(_Stoppable):
    """A thread that runs the jobs every second, and again at once while there is more to do.

    It alone probes, since it remembers which endpoints it has asked.
    """

    def __init__(
        self, stopping: threading.Event, egress: EgressPolicy, on_failure: Callable[[str], object] = lambda _: None
    ) -> None:
        super().__init__("periodic-jobs", stopping)
        monitors = Monitors(egress)
        self._own = {
            "resume_answered": partial(endpoint_probe.resume_answered, monitors),
            PROBE: partial(endpoint_probe.probe, monitors),
        }
        self._on_failure = on_failure

    def run(self) -> None:
        """Run jobs until stopped."""
        done, seldom_at = 0, 0.0
        while not self._stopping.wait(0.0 if done else JOB_SECONDS):
            done = self._run_jobs(but=SELDOM)
            if time.monotonic() >= seldom_at:
                found = self._run_jobs(but={*self._own, *JOBS.keys() - SELDOM})
                done, seldom_at = done + found, 0.0 if found else time.monotonic() + SELDOM_SECONDS
        forget_connection()

    def _run_jobs(self, *, but: Container[str]) -> int:
        return run_periodic_jobs(but=but, own=self._own, is_stopping=self._stopping.is_set, on_failure=self._on_failure)


def maintain(
    *,
    keep_days: int,
    callback_days: int,
    until_summarized: bool = False,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Create partitions, end and drop what is past its time; safe at any time, and in several processes at once.

    Finished days are kept for `keep_days`, and `until_summarized` if that is set. Endpoints have `callback_days` for a
    reply once their group has ended. While the clock is not believed, its day may be wrong: then nothing is done.

    A job that fails stops no other.

    Raises:
        RetentionDiffers: another worker keeps them for another time. Nothing was done.
        MaintenanceFailed: jobs have failed.
    """
    check_keep_days(keep_days)
    if (now := BELIEVED_CLOCK.now()) is None:
        return
    jobs: dict[str, Callable[[], object]] = {
        "open_days": partial(partitions.open_days, now.date()),
        "remove_ended_lines": expiry.remove_ended_lines,
        "start_reply_times": partial(expiry.start_reply_times, days=callback_days),
        "forget_callbacks": partial(expiry.forget_callbacks, keep_days=keep_days),
        "delete_old_records": partial(delete_old_records, keep_days=keep_days),
        "forget_former_secrets": partial(forget_former_secrets, now),
        "forget_ended_portal_keys": partial(forget_ended_portal_keys, now),
        "forget_old_changes": partial(forget_old_changes, now),
        "drop_past_days": partial(
            drop_past_days,
            now.date(),
            keep_days=keep_days,
            until_summarized=until_summarized,
            is_stopping=is_stopping,
        ),
    }
    failed: list[str] = []
    for name, job in jobs.items():
        with _guarded(name, failed.append, failed.append):
            job()
    if failed:
        raise MaintenanceFailed(f"These jobs failed, as logged before: {', '.join(failed)}.")


def maintenance_pause(seconds_left: float) -> float:
    """Return the seconds until the next run: an hour, or until the next day has begun."""
    return min(MAINTENANCE_SECONDS, seconds_left + DAY_BEGUN_SECONDS)


class Maintainer(_Stoppable):
    """A thread that maintains the tables now, every hour and as a day begins, even without Celery beat."""

    def __init__(
        self, stopping: threading.Event, *, keep_days: int, callback_days: int, until_summarized: bool = False
    ) -> None:
        super().__init__("maintainer", stopping)
        self._maintain_once = partial(
            maintain,
            keep_days=keep_days,
            callback_days=callback_days,
            until_summarized=until_summarized,
            is_stopping=stopping.is_set,
        )

    def run(self) -> None:
        """Maintain until stopped."""
        due_at = time.monotonic()
        while not self._stopping.wait(max(0.0, due_at - time.monotonic())):
            due_at = time.monotonic()
            try:
                self._maintain_once()
                due_at += maintenance_pause(partitions.seconds_left())
            except (Error, RetentionDiffers, MaintenanceFailed) as failure:
                log.warning("maintenance.failed", reason=failure)
                due_at += RETRY_SECONDS
            finally:
                forget_connection()
