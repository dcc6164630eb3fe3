"""What the demo shows: bars while events flow, a table at the end."""

import time
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker_project.stack.demo import watching
from broker_project.stack.demo.cast import SUBSCRIBERS
from broker_project.stack.demo.verdict import Account, Verdict

LINE_EVERY = 5.0
"""Without a terminal: a line of progress now and then instead of bars."""

TITLE = "What arrived, by the receivers' own logs"
CAPTION = "p50, p95: time from the publish call to the accepted request"


def show(progress: Iterable[watching.Progress], logs: Sequence[watching.Following], events: int) -> None:
    """Show the progress until it ends."""
    console = Console(stderr=True)
    (_show_bars if console.is_terminal else _show_lines)(console, progress, logs, events)


def _show_bars(
    console: Console, progress: Iterable[watching.Progress], logs: Sequence[watching.Following], events: int
) -> None:
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        publishing = bars.add_task("published", total=events)
        receiving = {
            log.sample.name: bars.add_task(f"{log.sample.name}: {log.sample.behaviour}", total=log.expected)
            for log in logs
        }
        for now in progress:
            bars.update(publishing, completed=now.published)
            for name, bar in receiving.items():
                bars.update(bar, completed=now.ended[name])


def _show_lines(
    console: Console, progress: Iterable[watching.Progress], logs: Sequence[watching.Following], events: int
) -> None:
    expected, shown_at = sum(log.expected for log in logs), 0.0
    for now in progress:
        if time.monotonic() - shown_at > LINE_EVERY:
            shown_at = time.monotonic()
            ended = sum(now.ended.values())
            console.print(
                f"broker: published {now.published} of {events}, arrived {ended} of {expected}", highlight=False
            )


def table(verdict: Verdict) -> Table:
    """Return what became of each subscriber's deliveries."""
    shown = Table(title=TITLE, caption=CAPTION, box=SIMPLE_HEAD, pad_edge=False, padding=0)
    shown.add_column("subscriber", no_wrap=True)
    shown.add_column("receiver")
    for heading in ("delivered", "rejected", "set\naside", "requests", "p50", "p95"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for sample in SUBSCRIBERS:
        account = verdict.accounts[sample.name]
        shown.add_row(sample.name, sample.behaviour, *_figures(account))
    return shown


def _figures(account: Account) -> tuple[str, ...]:
    counts = (account.delivered, account.rejected, account.set_aside, account.requests)
    return (*map(str, counts), duration(account.p50), duration(account.p95))


def duration(seconds: float) -> str:
    """Return a time between publishing and delivery as people read it."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
