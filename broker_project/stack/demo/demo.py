"""`./broker demo`: from an empty database to the verdict."""

import datetime as dt
import os
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console

from broker_project.stack import stacks
from broker_project.stack.demo import display
from broker_project.stack.demo.cast import QUESTIONS, Cast, Group, cast_around, log_of, reader_services
from broker_project.stack.demo.events import ARCHIVE, RECEIVERS, SUBSCRIBERS, WORKERS, price_of
from broker_project.stack.demo.summary import contradictions, summarize
from broker_project.stack.demo.verdict import Verdict, judge, judge_calls
from broker_project.stack.folders import STATE
from broker_project.stack.load.exchanges import is_final, write_log
from broker_project.stack.load.management_client import Management, ManagementRefused
from broker_project.stack.services import ANALYTICS
from broker_project.stack.up import addresses, say, wait_for_interrupt

WIDTH: Final = 100
"""Of the tables without a terminal."""
FOLDER: Final = STATE / "demo"
"""A stack of its own: the demo never touches what `./broker up` stores."""
LOOK_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 2.0
"""How long to go on looking for duplicates after the last delivery."""
STANDSTILL_SECONDS: Final = 90.0
"""What has not arrived after this time without any progress counts as lost; no pause of a line is longer."""


def demo(*arguments: str) -> int:
    """Run the demo; return 0 if everything arrived once and in order, and the broker's own summary agrees."""
    suffix = f"-{secrets.token_hex(3)}" if "DATABASE_URL" in os.environ else ""
    began = dt.datetime.now(dt.UTC)
    os.environ.pop("BROKER_ALLOWED_NETWORKS", None)  # its receivers are on loopback
    stays = sys.stdout.isatty() and "--exit" not in arguments
    try:
        with stacks.running(FOLDER, fresh=True, say=say) as stack:
            api = Management.of(stack, suffix)
            verdict = _run(stack, api)
            _report(verdict)
            agrees = _summarize(stack, api, verdict, began)
            if stays:
                print(addresses(stack))
                say("everything stays up until Ctrl-C")
                print(verdict, flush=True)
                wait_for_interrupt()
                say("stopping ...")
    except ManagementRefused as problem:
        say(str(problem))
        return 1
    if not stays:
        print(verdict, flush=True)
    return 0 if verdict.holds and agrees else 1


def _run(stack: stacks.Stack, api: Management) -> Verdict:
    """Configure the broker, publish, wait until everything has arrived, and judge."""
    folder = FOLDER / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with cast_around(api, folder) as cast:
        stack.supervisor.start(*reader_services(api, folder))
        groups = cast.groups()
        say(f"publishing {cast.planned} events through the API, singly and in batches ...")
        for thread in (*cast.topics, cast.office, cast.caller):
            thread.start()
        display.show_progress(_progress(cast, groups), groups, cast.planned)
        for problem in cast.problems:
            say(f"publishing failed: {problem}")
        verdict = _judged(cast, groups, api)
        for publisher in (*cast.topics, cast.office):
            write_log(folder / "published.jsonl", publisher.published)
        for endpoint in (*cast.endpoints.values(), cast.replies):  # readers of the mailbox write their logs themselves
            write_log(log_of(folder, endpoint.name), endpoint.exchanges)
        if api.suffix:
            for sample in (*RECEIVERS, ARCHIVE):
                api.send("POST", f"subscribers/{sample.name}{api.suffix}/inactivate")
    return verdict


def _progress(cast: Cast, groups: Sequence[Group]) -> Iterator[Mapping[str, int]]:
    """Yield how much has a final answer in each group, until everything has arrived or nothing moves."""
    last: Mapping[str, int] = {}
    moved_at, seconds = time.monotonic(), STANDSTILL_SECONDS
    while time.monotonic() - moved_at < seconds and not cast.problems:
        time.sleep(LOOK_SECONDS)
        now = {group.name: len({one.number for one in group.exchanges() if is_final(one.status)}) for group in groups}
        now[display.PUBLISHED] = cast.published
        if now != last:
            last, moved_at = now, time.monotonic()
        has_arrived = all(now[group.name] >= len(group.events) for group in groups)
        seconds = GRACE_SECONDS if cast.published == cast.planned and has_arrived else STANDSTILL_SECONDS
        yield now


def _judged(cast: Cast, groups: Sequence[Group], api: Management) -> Verdict:
    """Judge by what was recorded; what the broker has recorded of jobs and messages comes from its API."""
    published = {event.number: event for publisher in (*cast.topics, cast.office) for event in publisher.published}
    accounts = {}
    for group in groups:
        recorded: Counter[int] | None = None
        if samples := {ARCHIVE.name: [ARCHIVE], "printers": WORKERS}.get(group.name):
            names = [sample.name + api.suffix for sample in samples]
            pages = (api.every("deliveries", subscriber=name, status="DELIVERED") for name in names)
            recorded = Counter(delivery["message_id"] for page in pages for delivery in page)
        accounts[group.name] = judge(
            [published[event.number] for event in group.events if event.number in published],
            group.exchanges(),
            is_ordered=group.name in {sample.name for sample in SUBSCRIBERS},
            recorded=recorded,
        )
    topics = {name: accounts.pop(name) for name in [*(sample.name for sample in SUBSCRIBERS), ARCHIVE.name]}
    answers = {call.number: price_of(call.number) for call in cast.caller.calls}
    calls = judge_calls(QUESTIONS, cast.caller.calls, answers)
    announced = sum(event.deliveries for publisher in cast.topics for event in publisher.published)
    return Verdict(cast.planned, len(published) + calls.delivered, announced, topics, {**accounts, "calls": calls})


def _report(verdict: Verdict) -> None:
    display.report(_console(), verdict)
    print(f"  demo    {FOLDER / 'run'}/   the logs of publishers and receivers")
    if verdict.published != verdict.planned:
        print(f"{verdict.planned - verdict.published} events could not be published, or were not answered")
    if wrong := verdict.total("wrong"):
        print(f"{wrong} requests were altered, unsigned or not for their receiver")
    if verdict.announced != verdict.deliveries:
        print(f"the broker announced {verdict.announced} deliveries, and not {verdict.deliveries}")
    if misrecorded := verdict.total("misrecorded"):
        print(f"{misrecorded} jobs and fetched events are not recorded by the broker as done once")


def _summarize(stack: stacks.Stack, api: Management, verdict: Verdict, began: dt.datetime) -> bool:
    """Have the broker summarize the run; return whether its figures are those of the logs."""
    say("having Spark summarize it ...")
    summary = summarize(api, began, say)
    if summary.error:
        print(f"there is no summary, which says nothing about the deliveries: {summary.error}")
        print(f"  log     {stack.logs}/{ANALYTICS}.log")
        return False
    _console().print(display.summary_table(summary))
    wrong = [*contradictions(summary, verdict)]
    if wrong:
        print("the summary disagrees:", *wrong, sep="\n")
    return not wrong


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH)
