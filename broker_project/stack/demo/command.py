"""`./broker demo`: everything from nothing to the verdict."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from broker_project.stack import stacks
from broker_project.stack.application import python
from broker_project.stack.demo import display, publishers, watching
from broker_project.stack.demo.arranging import Management, NotArranged, arrange
from broker_project.stack.demo.cast import SUBSCRIBERS, Sample
from broker_project.stack.demo.records import published_in, requests_in
from broker_project.stack.demo.verdict import Verdict, judge
from broker_project.stack.folders import ROOT, STATE
from broker_project.stack.ports import accepts, any_free
from broker_project.stack.services import Service
from broker_project.stack.up import addresses, say, until_interrupted

WIDTH = 100
"""Of the table where there is no terminal."""

FOLDER = STATE / "demo"
"""A stack of its own: the demo never touches what `./broker up` keeps."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run's folder: the logs of publishers and receivers."""

    folder: Path

    @property
    def secrets(self) -> Path:
        """The receivers' signing secrets."""
        return self.folder / "secrets.json"

    def receiver(self, sample: Sample, port: int) -> Service:
        """Describe a sample receiver to the supervisor."""
        log = watching.log_of(sample, self.folder)
        arguments = (sample.name, str(port), str(log), str(self.secrets))
        return Service(
            name=f"receiver-{sample.name}",
            command=python("broker_project.stack.demo.receiver", *arguments),
            is_ready=lambda: accepts(port),
            stop_seconds=1.0,
        )


def demo(*arguments: str) -> int:
    """Run the demo; return 0 if everything arrived once and in order."""
    stays = sys.stdout.isatty() and "--exit" not in arguments
    try:
        with stacks.running(FOLDER, fresh=True, say=say) as stack:
            verdict = _run(stack)
            _report(verdict)
            if stays:
                print(addresses(stack))
                say("everything stays up until Ctrl-C")
                print(verdict, flush=True)
                until_interrupted()
                say("stopping ...")
    except NotArranged as problem:
        say(str(problem))
        return 1
    if not stays:
        print(verdict, flush=True)
    return 0 if verdict.holds else 1


def _run(stack: stacks.Stack) -> Verdict:
    """Set the scene, publish, watch until everything is through, and judge."""
    run = Run(_emptied(FOLDER / "run"))
    ports = {sample.name: any_free() for sample in SUBSCRIBERS}
    say("starting the sample receivers ...")
    stack.supervisor.start(*(run.receiver(sample, ports[sample.name]) for sample in SUBSCRIBERS))
    suffix = f"-{secrets.token_hex(3)}" if "DATABASE_URL" in os.environ else ""
    api = Management(stack.web, _management_key(stack.environment), suffix)
    tokens = arrange(api, ports, run.secrets)
    publishing = publishers.publishers(stack.web, tokens, suffix, run.folder)
    say(f"publishing {publishers.EVENTS} events through the API, singly and in batches ...")
    _watch(publishing, run.folder)
    if suffix:
        api.inactivate_all()
    published = published_in(publisher.log for publisher in publishing)
    received = [request for sample in SUBSCRIBERS for request in requests_in(watching.log_of(sample, run.folder))]
    return judge(published, received, SUBSCRIBERS, planned=publishers.EVENTS)


def _watch(publishing: Sequence[publishers.Publisher], folder: Path) -> None:
    logs = watching.followings(publishing, folder)
    publishers.start(publishing)
    display.show(watching.watch(publishing, logs), logs, publishers.EVENTS)
    for publisher in publishing:
        if publisher.problem:
            say(f"publishing failed: {publisher.problem}")


def _report(verdict: Verdict) -> None:
    Console(width=None if sys.stdout.isatty() else WIDTH).print(display.table(verdict))
    print(f"  demo    {FOLDER / 'run'}/   the logs of publishers and receivers")
    if verdict.published != verdict.planned:
        print(f"{verdict.planned - verdict.published} events could not be published")
    if verdict.wrong:
        print(f"{verdict.wrong} requests were altered, unsigned or not for their receiver")
    if verdict.announced != verdict.deliveries:
        print(f"the broker announced {verdict.announced} deliveries")


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _management_key(environment: Mapping[str, str]) -> str:
    return subprocess.run(  # noqa: S603 - our own command
        python("django", "create_api_key", "--label", "demo"),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()
