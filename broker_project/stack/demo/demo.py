"""`./broker demo`: from an empty database to the verdict, and whether the broker's own summaries agree with it."""

import datetime as dt
import os
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from broker_project.stack.application import ANALYTICS
from broker_project.stack.bootstrap import say
from broker_project.stack.demo.cast import (
    BATCH_SIZE,
    BURST,
    PLANNED,
    QUESTIONS,
    SECONDS,
    Cast,
    Group,
    cast_around,
    log_of,
    reader_services,
)
from broker_project.stack.demo.events import ARCHIVE, KINDS, RECEIVERS, SUBSCRIBERS, price_of
from broker_project.stack.demo.verdict import Account, Verdict, judge, judge_calls
from broker_project.stack.folders import STATE
from broker_project.stack.load.exchanges import Published, is_final, write_log
from broker_project.stack.load.management_client import Management, ManagementRefused
from broker_project.stack.running_stack import Stack, running_stack
from broker_project.stack.up import addresses, wait_for_interrupt

WIDTH: Final = 100
"""Of the table without a terminal."""
FOLDER: Final = STATE / "demo"
"""A stack of its own: the demo never touches what `./broker up` stores."""
LOOK_SECONDS: Final = 0.5
LINE_SECONDS: Final = 5.0
"""Time between two lines of progress."""
GRACE_SECONDS: Final = 2.0
"""How long to go on looking for duplicates after the last delivery."""
STANDSTILL_SECONDS: Final = 90.0
"""What has not arrived after this time without any progress counts as lost; no pause of a line is longer."""
MAX_WAITING_SECONDS: Final = 300.0
"""How long to wait for a worker that starts the run of Spark; a run that has started ends by its own limits."""

WHERE_TO_LOOK: Final = {
    "delivery/delivery/": "each delivery: what was sent, what was answered",
    "delivery/line/": "who is behind: mail-gateway and billing are down for a while, and catch up in order",
    "delivery/deadletter/": "what audit rejects, to be resubmitted or replayed",
    "delivery/mailbox/": "what the archive has yet to fetch",
    "delivery/callback/": "replies of the printers",
    "analytics/run/": "the run of Spark, at the end",
}
"""Pages of the admin site that show something while the demo runs."""


def where_to_look(stack: Stack) -> str:
    """Return the pages that show something while the demo runs, one a line."""
    site = f"{stack.environment['BROKER_PUBLIC_URL'] or stack.web}/admin"
    lines = (f"  {site}/{path:<21} {what}" for path, what in WHERE_TO_LOOK.items())
    return "\n".join(("pages to open while it runs:", *lines))


def demo(*arguments: str) -> int:
    """Run the demo; return 0 if everything arrived once and in order, and the broker's own summary agrees."""
    suffix = f"-{secrets.token_hex(3)}" if "DATABASE_URL" in os.environ else ""
    began = dt.datetime.now(dt.UTC)
    os.environ.pop("BROKER_ALLOWED_NETWORKS", None)  # its receivers are on loopback
    stays = sys.stdout.isatty() and "--exit" not in arguments
    try:
        with running_stack(FOLDER, fresh=True, say=say) as stack:
            print(addresses(stack), where_to_look(stack), sep="\n", flush=True)
            api = Management.of(stack, suffix)
            verdict = _run(stack, api)
            say("having Spark summarize it ...")
            summary = summarize(api, began)
            problems = [*verdict.problems]
            if summary.error:
                problems.append(f"there is no summary, which says nothing about the deliveries: {summary.error}")
            else:
                print(f"summary by Spark: {summary}")
                problems += summary.contradictions(verdict)
            print(f"logs: {FOLDER / 'run'}/ of publishers and receivers, {stack.logs}/{ANALYTICS}.log of Spark")
            print(*problems, sep="\n", end="\n" if problems else "")
            if stays:
                print(verdict, addresses(stack), sep="\n", flush=True)
                say("everything stays up until Ctrl-C")
                wait_for_interrupt()
                say("stopping ...")
    except ManagementRefused as problem:
        say(str(problem))
        return 1
    if not stays:
        print(verdict, flush=True)
    return 1 if problems else 0


def _run(stack: Stack, api: Management) -> Verdict:
    """Configure the broker, publish, wait until everything has arrived, judge, and print what arrived."""
    folder = FOLDER / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with cast_around(api, folder) as cast:
        stack.supervisor.start(*reader_services(api, folder))
        say(f"publishing at a steady pace for {SECONDS:.0f} s, then a burst: {PLANNED} events in all ...")
        for thread in (*cast.paced, cast.caller):
            thread.start()
        _wait_until_arrived(cast)
        for publisher in cast.publishers:
            if publisher.problem:
                say(f"publishing failed: {publisher.problem}")
            write_log(folder / "published.jsonl", publisher.published)
        for group in cast.groups:
            write_log(log_of(folder, group.name), group.received)
        verdict = _judged(cast, api)
        _show(cast, verdict)
        if api.suffix:
            for sample in (*RECEIVERS, ARCHIVE):
                api.send("POST", f"subscribers/{sample.name}{api.suffix}/inactivate")
    return verdict


def _wait_until_arrived(cast: Cast) -> None:
    """Wait until every event has a final answer in each of its groups, or nothing moves; begin the burst in time."""
    waiting = [*cast.bursts]
    last, moved_at, shown_at, seconds = (0, 0), time.monotonic(), time.monotonic(), STANDSTILL_SECONDS
    expected = sum(len(group.events) for group in cast.groups)
    while time.monotonic() - moved_at < seconds and not any(publisher.problem for publisher in cast.publishers):
        time.sleep(LOOK_SECONDS)
        if waiting and not any(publisher.is_alive() for publisher in cast.paced):
            say(f"now a burst: {BURST} events in batches of {BATCH_SIZE}, as fast as the broker accepts them ...")
            while waiting:
                waiting.pop().start()
        arrived = sum(
            len({each.number for each in group.exchanges() if is_final(each.status)}) for group in cast.groups
        )
        now = (cast.published, arrived)
        if now != last:
            last, moved_at = now, time.monotonic()
        seconds = GRACE_SECONDS if now == (PLANNED, expected) else STANDSTILL_SECONDS
        if time.monotonic() - shown_at > LINE_SECONDS:
            shown_at = time.monotonic()
            say(f"published {now[0]} of {PLANNED}, arrived {now[1]} of {expected}")


def _judged(cast: Cast, api: Management) -> Verdict:
    """Judge by what was recorded; what the broker has recorded of jobs and messages comes from its API."""
    published = {event.number: event for publisher in cast.publishers for event in publisher.published}
    burst = {event.number for publisher in cast.bursts for event in publisher.published}
    accounts = {group.name: _account_of(group, published, burst, api) for group in cast.groups}
    calls = cast.caller.calls
    accounts["calls"] = judge_calls(QUESTIONS, calls, {call.number: price_of(call.number) for call in calls})
    announced = sum(event.deliveries for event in published.values() if KINDS[event.type] == "TOPIC")
    return Verdict(PLANNED, len(published) + accounts["calls"].delivered, announced, accounts)


def _account_of(group: Group, published: Mapping[int, Published], burst: Collection[int], api: Management) -> Account:
    recorded: Counter[int] | None = None
    if group.shared_by:
        names = [sample.name + api.suffix for sample in group.shared_by]
        pages = (api.every("deliveries", subscriber=name, status="DELIVERED") for name in names)
        recorded = Counter(delivery["message_id"] for page in pages for delivery in page)
    expected = [published[event.number] for event in group.events if event.number in published]
    return judge(expected, group.exchanges(), is_ordered=group.is_ordered, recorded=recorded, burst=burst)


def _show(cast: Cast, verdict: Verdict) -> None:
    """Print what arrived at each group, and how the receivers of a shared group divided it."""
    caption = (
        "p50, p95: time from the publish call to the accepted request, of calls to the answer, at the steady pace;"
        " burst p95: the same of the events that were published all at once and waited for each other"
    )
    title = "what arrived, by the receivers' own logs"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("receiver", no_wrap=True)
    table.add_column("")
    for heading in ("delivered", "rejected", "set\naside", "p50", "p95", "burst\np95"):
        table.add_column(heading, justify="right", no_wrap=True)
    about = {group.name: group.about for group in cast.groups} | {"calls": "SYNC calls"}
    for name, account in verdict.accounts.items():
        counts = (account.delivered, account.rejected, account.set_aside)
        table.add_row(
            name, about[name], *map(str, counts), *map(_duration, (account.p50, account.p95, account.burst_p95))
        )
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
    for group in cast.groups:
        if group.shared_by:
            accepted = sorted(verdict.accounts[group.name].accepted.items())
            print(f"{group.name}: {', '.join(f'{count} by {name}' for name, count in accepted)}")


def _duration(seconds: float) -> str:
    if not seconds:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of the hours in which the demo ran."""

    error: str = ""
    """Why there are no figures."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Deliveries by final status."""
    messages: int = 0
    audited: int = 0
    """Deliveries of topics that the ordering audit checked."""
    unexplained: int = 0
    """Those of them out of order or repeated without a reason."""

    def __str__(self) -> str:
        """Return the figures in one line."""
        statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(self.statuses.items()))
        audit = f"ordering audit: {self.audited:,} checked, {self.unexplained} unexplained"
        return f"{self.messages:,} events; deliveries: {statuses}; {audit}"

    def contradictions(self, verdict: Verdict) -> Iterator[str]:
        """Yield where the summary differs from what publishers and receivers recorded."""
        for name, found, logged in (
            ("published", self.messages, verdict.published),
            ("delivered", self.statuses.get("DELIVERED", 0), verdict.total("delivered")),
            ("rejected", self.statuses.get("REJECTED", 0), verdict.total("rejected")),
        ):
            if found != logged:
                yield f"the summary says {name} {found}, the logs say {logged}"
        if self.unexplained:
            yield f"the ordering audit found {self.unexplained} deliveries out of order or repeated without a reason"


def summarize(api: Management, since: dt.datetime) -> Summary:
    """Have the broker summarize what happened since an instant; return the demo's part."""
    began = time.monotonic()
    run = api.create("summary-runs", **{"from": since.isoformat(), "to": dt.datetime.now(dt.UTC).isoformat()})
    while run["state"] == "RUNNING" or (run["state"] == "WAITING" and time.monotonic() - began < MAX_WAITING_SECONDS):
        time.sleep(LOOK_SECONDS)
        run = api.get(f"summary-runs/{run['id']}")
    if run["state"] != "PASSED":
        return Summary(f"run {run['id']} is {run['state']} {run['error']}".rstrip())
    return figures_of(api, run)


def figures_of(api: Management, run: Mapping[str, Any]) -> Summary:
    """Return what a run found about the demo's event types and subscribers."""
    bounds = {"from": min(window["start"] for window in run["windows"]), "to": run["end"]}

    def rows(name: str, column: str, names: Sequence[str]) -> list[dict[str, Any]]:
        wanted = {each + api.suffix for each in names}
        return [row for row in api.every(f"summaries/{name}", **bounds) if row[column] in wanted]

    statuses = Counter[str]()
    for row in rows("reliability", "event_type", [*KINDS]):
        statuses.update(row["by_status"])
    audit = rows("audit", "subscriber", [sample.name for sample in SUBSCRIBERS])
    explained = sum(row["explained_inversions"] + row["explained_duplicates"] for row in audit)
    return Summary(
        statuses=dict(statuses),
        messages=sum(row["messages"] for row in rows("volume", "event_type", [*KINDS])),
        audited=sum(row["checked"] for row in audit),
        unexplained=sum(row["inversions"] + row["duplicates"] for row in audit) - explained,
    )
