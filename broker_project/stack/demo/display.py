"""What the demo shows: progress while events flow, tables at the end."""

import time
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker_project.stack.demo.cast import Group
from broker_project.stack.demo.events import ARCHIVE, KILLED, READERS, SUBSCRIBERS, WORKERS
from broker_project.stack.demo.summary import Summary
from broker_project.stack.demo.verdict import Account, Verdict

LINE_SECONDS: Final = 5.0
"""Without a terminal: time between two lines of progress, instead of bars."""

PUBLISHED: Final = "published"


def show_progress(progress: Iterable[Mapping[str, int]], groups: Sequence[Group], planned: int) -> None:
    """Show how much is published and how much has arrived in each group, until the progress ends."""
    console = Console(stderr=True)
    expected = sum(len(group.events) for group in groups)
    if not console.is_terminal:
        shown_at = 0.0
        for now in progress:
            if time.monotonic() - shown_at > LINE_SECONDS:
                shown_at, published = time.monotonic(), now[PUBLISHED]
                arrived = sum(now.values()) - published
                line = f"broker: published {published} of {planned}, arrived {arrived} of {expected}"
                console.print(line, highlight=False)
        return
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        tasks = {PUBLISHED: bars.add_task(PUBLISHED, total=planned)}
        tasks |= {each.name: bars.add_task(f"{each.name}: {each.about}", total=len(each.events)) for each in groups}
        for now in progress:
            for name, task in tasks.items():
                bars.update(task, completed=now[name])


def report(console: Console, verdict: Verdict) -> None:
    """Print what became of everything."""
    for shown in (topics_table(verdict), mailbox_table(verdict.topics[ARCHIVE.name]), queue_table(verdict)):
        console.print(shown)
        console.print()
    calls = verdict.others["calls"]
    console.print(
        f"SYNC: {calls.expected} calls, in the totals one delivery each; {calls.delivered} answered by the price list;"
        f" round trip p50 {duration(calls.p50)}, p95 {duration(calls.p95)}",
        highlight=False,
    )


def topics_table(verdict: Verdict) -> Table:
    """Return what became of each subscriber's deliveries."""
    columns = ("subscriber", "receiver", "delivered", "rejected", "set\naside", "requests", "p50", "p95")
    caption = "p50, p95: time from the publish call to the accepted request"
    shown = _table("TOPIC: what arrived, by the receivers' own logs", caption, *columns)
    for sample in SUBSCRIBERS:
        one = verdict.topics[sample.name]
        counts = (one.delivered, one.rejected, one.set_aside, sum(one.requests.values()))
        shown.add_row(sample.name, sample.behaviour, *map(str, counts), duration(one.p50), duration(one.p95))
    return shown


def mailbox_table(archive: Account) -> Table:
    """Return how the readers of the mailbox shared its messages."""
    fetched = sum(archive.requests.values())
    caption = f"{fetched - archive.delivered} returned; p50 {duration(archive.p50)}, p95 {duration(archive.p95)}"
    shown = _table(
        f"MAILBOX: {archive.expected} events, shared by three readers",
        caption,
        *("reader", "receiver", "archived", "share", "fetched"),
    )
    for name in READERS:
        _add_share(shown, name, "killed once" if name == KILLED else "steady", archive)
    return shown


def queue_table(verdict: Verdict) -> Table:
    """Return how the workers shared the jobs."""
    jobs, replies = verdict.others["printers"], verdict.others["replies"]
    shown = _table(
        f"QUEUE: {jobs.expected} jobs, each for one of the workers",
        f"callbacks: {replies.expected} replies wanted, {replies.delivered} arrived",
        *("worker", "receiver", "jobs", "share", "requests"),
    )
    for sample in WORKERS:
        _add_share(shown, sample.name, sample.behaviour, jobs)
    return shown


def summary_table(summary: Summary) -> Table:
    """Return the figures of the summary."""
    title = f"SUMMARY: what Spark read in the broker's database, in {summary.seconds:.1f} s"
    shown = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=0, show_header=False)
    shown.add_column("figure", no_wrap=True)
    shown.add_column("value")
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(summary.statuses.items()))
    rate = 100 * summary.delivered / max(1, summary.eligible)
    rows = {
        "deliveries": statuses,
        "success rate": f"{rate:.1f} % of {summary.eligible:,}",
        "publish to delivery": f"p50 {duration(summary.p50_ms / 1000)}, p95 {duration(summary.p95_ms / 1000)}",
        "volume": f"{summary.messages:,} events, {summary.bytes / 1_000_000:.1f} MB",
    }
    if summary.senders:
        share = max(summary.senders) / max(1.0, mean(summary.senders))
        jobs = ", ".join(map(str, summary.senders))
        rows["QUEUE senders"] = f"{jobs} jobs; the busiest has {share:.2f} times the mean"
    rows["ordering audit"] = f"{summary.audited:,} checked, {summary.unexplained} unexplained"
    for name, value in rows.items():
        shown.add_row(f"{name}   ", value)
    return shown


def _add_share(shown: Table, name: str, about: str, account: Account) -> None:
    done = account.accepted.get(name, 0)
    share = f"{100 * done / max(1, account.expected):.0f} %"
    shown.add_row(name, about, str(done), share, str(account.requests.get(name, 0)))


def _table(title: str, caption: str, *headings: str) -> Table:
    shown = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for place, heading in enumerate(headings):
        is_text = place < 2  # noqa: PLR2004 - the name, and what is special about it
        shown.add_column(heading, justify="left" if is_text else "right", no_wrap=heading != "receiver")
    return shown


def duration(seconds: float) -> str:
    """Return a time for people to read."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
