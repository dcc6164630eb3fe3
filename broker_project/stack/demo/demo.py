"""`./broker demo`: everything from nothing to the verdict."""

import datetime as dt
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from broker_project.stack import stacks
from broker_project.stack.demo import display, publishers, run
from broker_project.stack.demo import run as demo_run
from broker_project.stack.demo.events import READERS, RECEIVERS
from broker_project.stack.demo.publishers import Source, asking, start
from broker_project.stack.demo.run import Cast, Run, judged
from broker_project.stack.demo.set_up_demo import Management, NotArranged, arrange, mailbox
from broker_project.stack.demo.summary import Summary, contradictions, table
from broker_project.stack.demo.verdict import Whole
from broker_project.stack.folders import ROOT, STATE
from broker_project.stack.ports import any_free
from broker_project.stack.services import ANALYTICS, python
from broker_project.stack.up import addresses, say, wait_for_interrupt

SUMMARIZING = "broker_project.stack.demo.summarize_demo"

WIDTH = 100
"""Of the table where there is no terminal."""

FOLDER = STATE / "demo"
"""A stack of its own: the demo never touches what `./broker up` keeps."""


def demo(*arguments: str) -> int:
    """Run the demo; return 0 if everything arrived once and in order, and the broker's own summary says so too."""
    suffix = f"-{secrets.token_hex(3)}" if "DATABASE_URL" in os.environ else ""
    began = dt.datetime.now(dt.UTC)
    os.environ.pop("BROKER_ALLOWED_NETWORKS", None)  # its receivers are on loopback
    stays = sys.stdout.isatty() and "--exit" not in arguments
    try:
        with stacks.running(FOLDER, fresh=True, say=say) as stack:
            verdict = _run(stack, suffix)
            _report(verdict)
            agrees = _summarize(stack, verdict, began, suffix)
            if stays:
                print(addresses(stack))
                say("everything stays up until Ctrl-C")
                print(verdict, flush=True)
                wait_for_interrupt()
                say("stopping ...")
    except NotArranged as problem:
        say(str(problem))
        return 1
    if not stays:
        print(verdict, flush=True)
    return 0 if verdict.holds and agrees else 1


def _run(stack: stacks.Stack, suffix: str) -> Whole:
    """Set the scene, publish, watch until everything is through, and judge."""
    run = Run(_emptied(FOLDER / "run"))
    ports = {sample.name: any_free() for sample in RECEIVERS}
    say("starting the sample receivers ...")
    stack.supervisor.start(*(run.receiver(sample, ports[sample.name]) for sample in RECEIVERS))
    api = Management(stack.web, _management_key(stack.environment), suffix)
    tokens = arrange(api, ports, run.secrets)
    mailbox(api, run.token)
    stack.supervisor.start(*(run.reader(name, api) for name in READERS))
    with publishers.listening(demo_run.log_of(publishers.NAME, run.folder)) as listener:
        cast = Cast(
            publishers.publishers(stack.web, tokens, suffix, run.folder),
            publishers.office(stack.web, tokens, suffix, run.folder, listener.address),
            asking(stack.web, tokens, suffix, run.folder),
        )
        _watch(cast.everybody, run.folder)
    whole = judged(run, cast, api)
    if suffix:
        api.inactivate_all()
    return whole


def _watch(sources: Sequence[Source], folder: Path) -> None:
    events = sum(len(source.events) for source in sources)
    say(f"publishing {events} events through the API, singly and in batches ...")
    logs = run.followings(sources, folder)
    start(sources)
    display.show(run.watch(sources, logs), logs, events)
    for source in sources:
        if source.problem:
            say(f"publishing failed: {source.problem}")


def _report(whole: Whole) -> None:
    display.report(_console(), whole)
    print(f"  demo    {FOLDER / 'run'}/   the logs of publishers and receivers")
    if whole.published != whole.planned:
        print(f"{whole.planned - whole.published} events could not be published, or were not answered")
    if whole.wrong:
        print(f"{whole.wrong} requests were altered, unsigned or not for their receiver")
    if whole.topics.announced != whole.topics.deliveries:
        print(f"the broker announced {whole.topics.announced} deliveries")
    if misrecorded := whole.jobs.misrecorded + whole.archived.misrecorded:
        print(f"{misrecorded} jobs and fetched events do not stand in the broker's books as done once")


def _summarize(stack: stacks.Stack, whole: Whole, began: dt.datetime, suffix: str) -> bool:
    """Have it summarized as it would be by the hour; say whether the figures are those of the logs."""
    say("having Spark summarize it ...")
    made = Summary(**json.loads(_asked(stack.environment, SUMMARIZING, began.isoformat(), suffix)))
    if made.error:
        print(f"there is no summary, which says nothing of what was delivered: {made.error}")
        print(f"  log     {stack.logs}/{ANALYTICS}.log")
        return False
    _console().print(table(made))
    wrong = [*contradictions(made, whole)]
    if wrong:
        print("the summary says otherwise:", *wrong, sep="\n")
    return not wrong


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _management_key(environment: Mapping[str, str]) -> str:
    return _asked(environment, "django", "create_api_key", "--scope", "all", "--label", "demo")


def _asked(environment: Mapping[str, str], module: str, *arguments: str) -> str:
    """Return what a program of ours prints."""
    return subprocess.run(  # noqa: S603 - our own command
        python(module, *arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()
