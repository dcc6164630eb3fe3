"""What the demo shows: bars while events flow, a table at the end."""

import time
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker_project.stack.demo import run
from broker_project.stack.demo.events import KILLED, READERS, SUBSCRIBERS, WORKERS
from broker_project.stack.demo.verdict import Account, Archived, Jobs, Verdict, Whole

LINE_EVERY = 5.0
"""Without a terminal: a line of progress now and then instead of bars."""

TITLE = "TOPIC: what arrived, by the receivers' own logs"
CAPTION = "p50, p95: time from the publish call to the accepted request"


def show(progress: Iterable[run.Progress], logs: Sequence[run.Following], events: int) -> None:
    """Show the progress until it ends."""
    console = Console(stderr=True)
    (_show_bars if console.is_terminal else _show_lines)(console, progress, logs, events)


def _show_bars(console: Console, progress: Iterable[run.Progress], logs: Sequence[run.Following], events: int) -> None:
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        publishing = bars.add_task("published", total=events)
        receiving = {log.name: bars.add_task(f"{log.name}: {log.about}", total=log.expected) for log in logs}
        for now in progress:
            bars.update(publishing, completed=now.published)
            for name, bar in receiving.items():
                bars.update(bar, completed=now.ended[name])


def _show_lines(console: Console, progress: Iterable[run.Progress], logs: Sequence[run.Following], events: int) -> None:
    expected, shown_at = sum(log.expected for log in logs), 0.0
    for now in progress:
        if time.monotonic() - shown_at > LINE_EVERY:
            shown_at = time.monotonic()
            ended = sum(now.ended.values())
            console.print(
                f"broker: published {now.published} of {events}, arrived {ended} of {expected}", highlight=False
            )


def report(console: Console, whole: Whole) -> None:
    """Print what became of everything."""
    console.print(topics(whole.topics))
    console.print()
    console.print(mailbox_table(whole.archived))
    console.print()
    console.print(queue(whole.jobs))
    questions = whole.questions
    console.print(
        f"SYNC: {questions.planned} calls, in the totals a delivery each; "
        f"{questions.answered} answered by the price list itself;"
        f" round trip p50 {duration(questions.p50)}, p95 {duration(questions.p95)}",
        highlight=False,
    )


def topics(verdict: Verdict) -> Table:
    """Return what became of each subscriber's deliveries."""
    shown = _table(
        TITLE, CAPTION, "subscriber", "receiver", "delivered", "rejected", "set\naside", "requests", "p50", "p95"
    )
    for sample in SUBSCRIBERS:
        account = verdict.accounts[sample.name]
        shown.add_row(sample.name, sample.behaviour, *_figures(account))
    return shown


def mailbox_table(archived: Archived) -> Table:
    """Return how the readers of the mailbox shared what was in it."""
    shown = _table(
        f"MAILBOX: {archived.expected} events, shared by three readers",
        f"{archived.returned} returned; p50 {duration(archived.p50)}, p95 {duration(archived.p95)}",
        *("reader", "receiver", "archived", "share", "handed\nout"),
    )
    for name in READERS:
        done, manner = archived.done_by.get(name, 0), "killed once" if name == KILLED else "steady"
        share = _share(done, archived.expected)
        shown.add_row(name, manner, str(done), share, str(archived.handed_to.get(name, 0)))
    return shown


def queue(jobs: Jobs) -> Table:
    """Return how the workers shared the jobs."""
    replies = f"callbacks: {jobs.wanted} replies wanted, {jobs.replied} arrived"
    shown = _table(
        f"QUEUE: {jobs.published} jobs, each for one of them",
        replies,
        "worker",
        "receiver",
        "jobs",
        "share",
        "requests",
    )
    for sample in WORKERS:
        done = jobs.done_by.get(sample.name, 0)
        share = _share(done, jobs.published)
        shown.add_row(sample.name, sample.behaviour, str(done), share, str(jobs.requests.get(sample.name, 0)))
    return shown


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.0f} %"


def _table(title: str, caption: str, name: str, *headings: str) -> Table:
    shown = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, padding=0)
    shown.add_column(name, no_wrap=True)
    for heading in headings:
        shown.add_column(heading, justify="left" if heading == "receiver" else "right", no_wrap=heading != "receiver")
    return shown


def _figures(account: Account) -> tuple[str, ...]:
    counts = (account.delivered, account.rejected, account.set_aside, account.requests)
    return (*map(str, counts), duration(account.p50), duration(account.p95))


def duration(seconds: float) -> str:
    """Return a time between publishing and delivery as people read it."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
