"""`manage.py summarize`: summarize a range of days or hours now."""

import datetime as dt
import logging
import signal
import threading
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from analytics import run_requests, runs
from analytics.models import UNDER_WAY, Run, RunState, RunWindow
from analytics.pipeline.job import DAY, HOUR_LAG, Window, midnight
from analytics.run_records import INTERRUPTED
from analytics.spark_process import spark_settings

TOO_SOON: Final = "What happened less than {:g} minutes ago is not summarized yet: some of it may still come in."
NOTHING_DUE: Final = "Nothing was to be done: all of it is summarized. --again does it once more."
ROW: Final = "{:<28}  {:<6}  {:>13}  {:>13}  {:>8}  {:>8}"


class Command(BaseCommand):
    """Summarizes a range while the user waits."""

    help = (
        "Summarizes a range of time, in UTC, and prints a table of what was read and written. Days that no longer"
        " change are summarized as a whole, others by the hour; of the current hour, what happened until two minutes"
        " ago. What is summarized already is left out, so that the same command resumes an interrupted one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the range, and `--again`."""
        form = "a day such as 2026-11-20, or an instant such as 2026-11-20T14:00"
        parser.add_argument("--from", required=True, type=start_of, metavar="WHEN", dest="start", help=form)
        parser.add_argument(
            "--to", type=end_of, metavar="WHEN", dest="end", help="likewise; a day is included (default: until now)"
        )
        parser.add_argument("--again", action="store_true", help="also what is summarized already")

    def handle(self, *_: Any, **options: Any) -> None:
        """Summarize the range: progress goes to stderr, and at the end the table to stdout, as one block."""
        settings = spark_settings()
        if not settings.lake:
            raise CommandError(runs.NO_LAKE)
        latest = run_requests.now() - HOUR_LAG
        start, end = options["start"], min(options["end"] or latest, latest)
        if latest <= start < latest + HOUR_LAG:
            raise CommandError(TOO_SOON.format(HOUR_LAG.total_seconds() / 60))
        try:
            run = run_requests.create_range(start, end, again=options["again"])
        except run_requests.NotARange as refused:
            raise CommandError(str(refused)) from None
        with interruptible(self._report) as stopping:
            done = runs.run(run.pk, settings, stopping=stopping, report=self._report, stopped=INTERRUPTED)
        if done is None:
            Run.objects.filter(pk=run.pk, state=RunState.WAITING).delete()  # else a worker would do it later
            other = Run.objects.filter(state__in=UNDER_WAY).first()
            since = f" ({other}, since {other.started_at:%H:%M} UTC)" if other else ""
            raise CommandError(f"Another run is under way{since}. Try again when it has ended; the admin shows it.")
        if windows := list(done.windows.order_by("start")):
            self._report("")
            self.stdout.write("\n".join(table_of(windows)))
        elif done.state == RunState.PASSED:
            self.stdout.write(NOTHING_DUE)
        self.stdout.flush()  # before the error on stderr
        if done.state != RunState.PASSED:
            raise CommandError(done.error)

    def _report(self, text: str) -> None:
        self.stderr.write(text, style_func=str)  # not in red: it is no error


def table_of(windows: Iterable[RunWindow]) -> Iterator[str]:
    """Return the lines of a table of what was read, written and checked of each window."""
    yield ROW.format("window", "state", "rows read", "rows written", "checks", "seconds")
    for window in windows:
        yield ROW.format(
            str(Window(window.start, window.end)),
            window.state,
            f"{sum(window.rows_read.values()):,}",
            f"{sum(window.rows_written.values()):,}",
            f"{sum(check['passed'] for check in window.checks)} of {len(window.checks)}",
            f"{window.seconds:.1f}",
        )


@contextmanager
def interruptible(report: Callable[[str], object]) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set instead of ending the process; log only warnings meanwhile."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: object) -> None:
        stopping.set()
        report("Interrupted: Spark ends ...")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.INFO))  # the progress is printed
    try:
        yield stopping
    finally:
        logging.disable(disabled)
        for number, handler in before.items():
            signal.signal(number, handler)


def start_of(text: str) -> dt.datetime:
    """Return an instant, or the beginning of a day; without an offset in UTC."""
    try:
        if len(text) == len("2026-11-20"):
            return midnight(dt.date.fromisoformat(text))
        instant = dt.datetime.fromisoformat(text)
        return instant.astimezone(dt.UTC) if instant.tzinfo else instant.replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError):
        raise _refused(text) from None


def end_of(text: str) -> dt.datetime:
    """Return an instant, or the end of a day."""
    start = start_of(text)
    try:
        return start + DAY if len(text) == len("2026-11-20") else start
    except OverflowError:  # the last day that there is
        raise _refused(text) from None


def _refused(text: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{text!r} is no day such as 2026-11-20, nor an instant such as 2026-11-20T14:00")
