"""All kinds of work at once under a fault, and the outcome of each."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import requests

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import PATIENCE_SECONDS
from tests.support.faults.audit import Made, Since
from tests.support.faults.calls import called
from tests.support.faults.endpoints import note_stored
from tests.support.faults.fault_plans import Breakage, Step, steps
from tests.support.faults.figures import Figures
from tests.support.faults.load import Load, loaded
from tests.support.faults.mailbox_load import mailbox_loaded
from tests.support.faults.other_workloads import MailboxWorkload, QueueWorkload, callbacks_to
from tests.support.faults.queue_load import queue_loaded
from tests.support.faults.topic_workloads import (
    ConcurrentWorkload,
    KeyedWorkload,
    RetryLaneWorkload,
    ScriptWorkload,
    TopicWorkload,
    replays_to,
    volatile_messages_to,
)
from tests.support.faults.workload import ANSWER_SECONDS, EVERY, FaultContext, Faults, Workload, dice
from tests.support.real_broker import Broker

KINDS = (
    *("topic", "concurrent", "keyed", "retry-line", "scripts"),
    *("queue", "callbacks", "replays", "mailbox", "sync", "volatile"),
)
LOOK_EVERY = 0.1
KEPT_REQUESTS = 100
"""Of the receiver's own log: endpoints write down what they need."""

WARM = 20
"""What each kind has done before a fault, and does after it."""

MINUTE = 60.0
THREADS = ThreadPoolExecutor(2)
"""They outlive every broker: a process that a thread has started ends with that thread, as it would with ours."""


@dataclass(slots=True)
class AllWorkloads:
    """What is under way, by kind, and what has been broken so far."""

    broker: Broker
    receiver: Receiver
    faults: Faults
    by_kind: dict[str, Workload] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    """The subscribers of each kind."""
    load: Load = field(init=False)
    """Of all that is published to topics."""

    def context(self, seed: str) -> FaultContext:
        """Return where something is to be broken; the seed decides which process it hits."""
        return FaultContext(self.broker, self.load, self.faults, dice(seed))

    def start(self) -> None:
        """Let workloads go on from now."""
        for work in self.by_kind.values():
            work.start()

    def done(self) -> dict[str, int]:
        """Return how much each has done so far."""
        return {kind: work.done() for kind, work in self.by_kind.items()}

    def go_on(self, seconds: float = PATIENCE_SECONDS) -> list[str]:
        """Wait until each has done `WARM` more; return the kinds that have not in this time."""
        before, until = self.done(), time.monotonic() + seconds
        while late := [kind for kind, done in self.done().items() if done < before[kind] + WARM]:
            if time.monotonic() >= until:
                break
            time.sleep(LOOK_EVERY)
        return late

    def stop(self, seconds: float = PATIENCE_SECONDS) -> list[str]:
        """Begin nothing more, and wait until all is through; return the kinds that are not in this time."""
        for work in self.by_kind.values():
            work.stop()
        until = time.monotonic() + seconds
        left = {*self.by_kind}
        while left and time.monotonic() < until:
            left = {kind for kind in left if not self._is_through(kind)}
            time.sleep(LOOK_EVERY)
        return [kind for kind in self.by_kind if kind in left]

    def note_stored(self) -> None:
        """Note, before anything is judged, which answers the broker has stored."""
        note_stored(self.broker, [endpoint for work in self.by_kind.values() for endpoint in work.endpoints()])

    def forget_requests(self) -> None:
        """Keep the receiver's log short."""
        log = self.receiver.log
        self.receiver.soon(lambda: log.__delitem__(slice(0, -KEPT_REQUESTS)))

    def _is_through(self, kind: str) -> bool:
        try:
            return self.by_kind[kind].is_through()
        except (requests.RequestException, psycopg.Error):
            return False


@contextmanager
def all_workloads(broker: Broker, receiver: Receiver, folder: Path) -> Iterator[AllWorkloads]:
    """Give all kinds of work; leave none of it for the next test."""
    since, workloads = Since(broker), AllWorkloads(broker, receiver, Faults())
    with ExitStack() as until_the_end:
        for work in _made(workloads, folder, until_the_end):
            workloads.by_kind[work.kind] = work
            for endpoint in work.endpoints():
                endpoint.answer_seconds = ANSWER_SECONDS
            workloads.made[work.kind] = Made(
                max((one.last for one in workloads.made.values()), default=since.before), since.newest()
            )
        yield workloads


def _made(workloads: AllWorkloads, folder: Path, until_the_end: ExitStack) -> Iterator[Workload]:
    """Yield one kind of work after the other, each with subscribers of its own."""
    broker, receiver, faults = workloads.broker, workloads.receiver, workloads.faults
    enter = until_the_end.enter_context
    load = workloads.load = enter(loaded(broker, receiver))
    load.faults = faults.all
    yield TopicWorkload(load)
    yield ConcurrentWorkload.of(load)
    yield KeyedWorkload.of(load)
    yield RetryLaneWorkload.of(load)
    yield ScriptWorkload.of(load)
    jobs = enter(queue_loaded(broker, receiver, every=EVERY))
    jobs.faults = faults.all
    yield QueueWorkload(jobs)
    yield enter(callbacks_to(broker, receiver, faults.all))
    yield enter(replays_to(broker, receiver, faults.all))
    yield MailboxWorkload(enter(mailbox_loaded(broker, receiver, folder, every=EVERY)))
    yield enter(called(broker, receiver, faults.of_web))
    yield enter(volatile_messages_to(broker, receiver))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one kind of work."""

    figures: Figures
    made: Made | None
    """The subscribers to be audited; None: there is nothing that could be."""
    measured: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0
    """Its share of the time that it took for all kinds."""


def outcomes_under(broker: Broker, receiver: Receiver, folder: Path, breakage: Breakage) -> dict[str, Outcome]:
    """Break it once; return what became of each kind."""
    begun = time.monotonic()
    with all_workloads(broker, receiver, folder) as workloads:
        workloads.start()
        cold = workloads.go_on()
        context = workloads.context(breakage.name)
        context.load.note_fault()
        breakage.happen(context, breakage.seconds)
        stuck, left = workloads.go_on(), workloads.stop()
        workloads.note_stored()
        said = dict.fromkeys(cold, "it did not begin")
        said |= {kind: "it did not go on afterwards" for kind in stuck if kind not in cold}
        said |= {kind: "it was not through in time" for kind in left if kind not in said}
        outcomes = {
            kind: outcome(work, workloads.made[kind], breakage, said.get(kind, ""))
            for kind, work in workloads.by_kind.items()
        }
    share = (time.monotonic() - begun) / len(outcomes)
    return {kind: replace(one, seconds=share) for kind, one in outcomes.items()}


def together(workloads: AllWorkloads, stuck: list[str], left: list[str], say: Callable[[str], None]) -> Outcome:
    """Judge each kind, report it, and return the result of all; pauses do not matter."""
    workloads.note_stored()
    said = dict.fromkeys(stuck, "it did not go on") | dict.fromkeys(left, "it was not through in time")
    judged_apart = {
        kind: outcome(work, workloads.made[kind], None, said.get(kind, "")) for kind, work in workloads.by_kind.items()
    }
    for kind, one in judged_apart.items():
        say(f"{kind}: {one.figures}{''.join(f', {name} {value:g}' for name, value in one.measured.items())}")
    made = [*workloads.made.values()]
    return Outcome(
        sum((one.figures for one in judged_apart.values()), Figures()),
        Made(made[0].before, made[-1].last),
        {name: value for one in judged_apart.values() for name, value in one.measured.items()},
        "; ".join(f"{kind}: {one.problem}" for kind, one in judged_apart.items() if one.problem),
    )


def outcome(work: Workload, made: Made, breakage: Breakage | None, said: str) -> Outcome:
    """Judge one kind of work after one thing was broken; None: after many, where pauses do not matter."""
    figures = work.figures()
    may_repeat, max_delay_seconds = (breakage.may_repeat, breakage.pause) if breakage else (True, math.inf)
    max_copies = work.max_copies if may_repeat or work.max_copies is None else 0
    wrong = [*([said] if said else []), *judged(figures, max_copies, max_delay_seconds)]
    return Outcome(figures, made if work.is_audited else None, work.measured(), "; ".join(wrong))


def judged(figures: Figures, max_copies: int | None, max_delay_seconds: float) -> Iterator[str]:
    """Yield what must not be; None: any number of copies is allowed."""
    yield from (f"{name} {count}" for name, count in figures.broken.items())
    if max_copies is not None and figures.max_per_fault > max_copies:
        yield f"{figures.max_per_fault} copies of a fault, and not {max_copies} at most"
    if max_copies == 0 and figures.duplicated:
        yield f"duplicated {figures.duplicated}"
    if figures.pause > max_delay_seconds:
        yield f"a pause of {figures.pause} s, and not {max_delay_seconds:g} s at most"
    if not figures.delivered:
        yield "nothing was delivered"


@dataclass(slots=True)
class RandomFaults:
    """Breaks one thing after the other by the seed, and reports each minute what it did."""

    workloads: AllWorkloads
    seed: int
    say: Callable[[str], None]
    happened: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    problems: list[str] = field(default_factory=list)
    """What could not be broken, or not be mended."""
    _said: list[str] = field(default_factory=list)
    """What has happened since the last time that something was said."""

    def run(self, seconds: float) -> None:
        """Break things for `seconds`."""
        began = reported = time.monotonic()
        for step in steps(self.seed):
            left = began + seconds - time.monotonic()
            if left <= step.after:
                time.sleep(max(left, 0.0))
                break
            time.sleep(step.after)
            self._break(step)
            if time.monotonic() - reported >= MINUTE:
                reported = time.monotonic()
                self.report(reported - began)
        self.report(time.monotonic() - began)

    def report(self, elapsed: float) -> None:
        """Report what has happened since the last report, and how much each kind has done by now."""
        done = ", ".join(f"{kind} {count}" for kind, count in self.workloads.done().items())
        broken = "; ".join(self._said) or "nothing"
        self.say(f"{elapsed / MINUTE:.0f} min, step {self.steps}: {broken}. Done so far: {done}")
        self._said.clear()
        self.workloads.forget_requests()

    def _break(self, step: Step) -> None:
        self.steps += 1
        self._said.append(str(step))
        self.happened.update(fault.breakage.name for fault in step.faults)
        happenings = [
            THREADS.submit(one.breakage.happen, self.workloads.context(one.seed), one.seconds) for one in step.faults
        ]
        for happening in happenings:
            if problem := happening.exception():
                self.problems.append(f"{step}: {problem!r}")
                self._said.append(f"that failed: {problem!r}")
