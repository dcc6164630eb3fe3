"""`manage.py summarize`: summaries of a range of days or hours, now."""

import datetime as dt
import logging
import signal
import threading
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from analytics import run_requests, runs
from analytics.management.run_tables import lines_of
from analytics.models import Run, RunState
from analytics.pipeline.job import DAY
from analytics.run_results import INTERRUPTED
from analytics.spark_settings import spark_terms
from analytics.windows import HOUR_LAG, midnight

TOO_SOON: Final = "What happened less than {:g} minutes ago is not summarized yet: some of it may still come in."
NOTHING_DUE: Final = "Nothing was to be done: all of it is summarized. --again does it once more."


class Command(BaseCommand):
    """A range, summarized while one waits."""

    help = (
        "Summarizes a range of time, in UTC, and ends with a table of what was read and written. Days that no longer"
        " change are summarized whole, those that still grow by the hour; of the hour under way what happened until"
        " two minutes ago. What is summarized already is left out, so that the same command goes on where it was"
        " interrupted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the range, and whether everything is to be done again."""
        form = "a day such as 2026-11-20, or an instant such as 2026-11-20T14:00"
        parser.add_argument("--from", required=True, type=start_of, metavar="WHEN", dest="start", help=form)
        parser.add_argument(
            "--to", type=end_of, metavar="WHEN", dest="end", help="likewise; a day is included (default: until now)"
        )
        parser.add_argument("--again", action="store_true", help="also what is summarized already")

    def handle(self, *_: Any, **options: Any) -> None:
        """Do it: words to stderr while it goes on, and in the end the table to stdout, as one block."""
        terms = spark_terms()
        if not terms.lake:
            raise CommandError(runs.NO_LAKE)
        latest = run_requests.now() - HOUR_LAG
        if latest <= options["start"] < latest + HOUR_LAG:
            raise CommandError(TOO_SOON.format(HOUR_LAG.total_seconds() / 60))
        try:
            run = run_requests.new_range(
                options["start"], min(options["end"] or latest, latest), again=options["again"]
            )
        except run_requests.NotARange as refused:
            raise CommandError(str(refused)) from None
        with only_warnings_logged(), interruptible(self._tell) as stopping:
            done = runs.run(run.pk, terms, stopping=stopping, tell=self._tell, stopped=INTERRUPTED)
        if done is None:
            raise CommandError(_held_up(run))
        self._show(done)
        if done.state != RunState.PASSED:
            raise CommandError(done.error)

    def _tell(self, text: str) -> None:
        self.stderr.write(text, style_func=str)  # not in red: it is no error

    def _show(self, run: Run) -> None:
        windows = list(run.windows.order_by("start"))
        if windows:
            self._tell("")
            self.stdout.write("\n".join(lines_of(windows)))
        elif run.state == RunState.PASSED:
            self.stdout.write(NOTHING_DUE)
        self.stdout.flush()  # before whatever is said on stderr next


@contextmanager
def only_warnings_logged() -> Iterator[None]:
    """Leave out of the log what is said in words meanwhile."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(max(before, logging.WARNING))
    try:
        yield
    finally:
        root.setLevel(before)


@contextmanager
def interruptible(tell: Callable[[str], object]) -> Iterator[threading.Event]:
    """Give what Ctrl-C and SIGTERM set instead of ending the process."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: object) -> None:
        stopping.set()
        tell("Interrupted: Spark ends ...")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start_of(text: str) -> dt.datetime:
    """Return the instant that a day begins, or that a text says."""
    try:
        return midnight(dt.date.fromisoformat(text)) if len(text) == len("2026-11-20") else _instant(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no day such as 2026-11-20, nor an instant such as 2026-11-20T14:00"
        ) from None


def end_of(text: str) -> dt.datetime:
    """Return the instant that a day ends, or that a text says."""
    start = start_of(text)
    return start + DAY if len(text) == len("2026-11-20") else start


def _instant(text: str) -> dt.datetime:
    instant = dt.datetime.fromisoformat(text)
    return instant.astimezone(dt.UTC) if instant.tzinfo else instant.replace(tzinfo=dt.UTC)


def _held_up(run: Run) -> str:
    """Say what is under way instead; this run is not to follow it by itself."""
    Run.objects.filter(pk=run.pk, state=RunState.WAITING).delete()
    other = Run.objects.filter(state=RunState.RUNNING).first()
    since = f" ({other}, since {other.started_at:%H:%M} UTC)" if other else ""
    return f"Another run is under way{since}. Try again when it has ended; the admin shows it."
