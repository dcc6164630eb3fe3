"""Running a load: publishers keep the broker busy, or publish by a timetable, while everything is checked and timed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import c_bool
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import mean
from typing import Any, Final, cast
from urllib.parse import urlsplit

from benchmarks.bench import Bench
from benchmarks.figures import NO_TARGETS, Figure, Outcome, Target, merged, p95_ms, percentiles, ratio
from benchmarks.processes import TICK, Receiving, context_switches, cpu_by_tree, received_segments, shared, spawned
from benchmarks.publisher import Pace, Published, publish
from benchmarks.receipts import ANY, JobLog, Key, Log, Receipts
from benchmarks.sink import REPORT, TAKEN, RunningSink, post_bare, running_sink

GROUPS: Final = {"worker": "workers", "beat": "beat+flower", "flower": "beat+flower"}
BROKER: Final = ("web", "workers", "postgres", "redis")
"""The groups of processes that deliver."""
SERVERS: Final = {"postgres": "DATABASE_URL", "redis": "REDIS_URL"}
WRITTEN: Final = """
    SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, pg_database_size(datname)
      FROM pg_stat_database WHERE datname = current_database()
"""
DELIVERED: Final = "delivered"
MARGIN: Final = 3.0
"""How much faster than the figure a bare client must be; otherwise the sink may have been the limit."""
ROUNDS: Final = 2
"""Every other one runs backwards, so that coming first or last favours none."""
ENDLESS_SCRIPT: Final = "while (1);"

Beside = Callable[[Bench, RunningSink, Sequence[str]], AbstractContextManager[None]]
"""What else happens to the subscribers, by their names, during a load."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is published, for which subscribers, and what is expected."""

    subscribers: int
    """Each with an event type of its own, or as many with one as the pace's fan-out says; otherwise all share one."""
    pace: Pace
    kind: str = "TOPIC"
    answer: bytes = TAKEN
    delay_seconds: float = 0.0
    """How long endpoints take."""
    slow_keys: int = 0
    """The number of ordering keys, the first ones, whose requests take ten times as long."""
    hanging: int = 0
    """The number of subscribers, the first ones, that never answer."""
    is_cold: bool = False
    """Whether the first second counts."""
    script: str = ""
    """Of each subscription."""
    hostile: int = 0
    """Further subscribers, whose scripts never end; their deliveries are not waited for."""

    @property
    def event_types(self) -> int:
        """How many event types the subscribers have."""
        return self.subscribers // self.pace.fan_out if self.kind == "TOPIC" else 1

    def subscribe(self, bench: Bench, sink: RunningSink) -> tuple[list[str], list[str]]:
        """Create event types and subscribers; return the names of both."""
        if self.slow_keys:
            return bench.subscribe_keyed(sink.endpoint(0))
        endpoints = [sink.endpoint(number) for number in range(max(self.subscribers, self.hostile))]
        own = endpoints[: self.subscribers]
        event_types, names = bench.subscribe(own, self.event_types, kind=self.kind, script=self.script)
        if self.hostile:
            others = endpoints[: self.hostile]
            event_types += bench.subscribe(others, self.hostile, prefix="hostile", script=ENDLESS_SCRIPT)[0]
        return event_types, names

    def expected(self, published: Sequence[Published]) -> dict[Key, int]:
        """Return how many deliveries of each stream each subscriber is to receive."""
        if self.kind != "TOPIC" or self.slow_keys:
            return expected_by_any(published)
        return {
            (subscriber, stream.stream): count
            for stream in published
            for subscriber in range(self.subscribers)
            if (count := stream.counts[subscriber % self.event_types])
        }


@dataclass(frozen=True, slots=True)
class Moment:
    """What had been delivered and used by then."""

    at: float
    delivered: int
    used: Mapping[tuple[str, str], float]
    """By name and unit."""
    ours: float
    """CPU time of all processes of the run, in seconds."""
    busy: float
    """CPU time of the whole machine."""


@dataclass(frozen=True, slots=True)
class RunningPublisher:
    """The publishers' process, seen from outside."""

    process: BaseProcess
    control: Connection
    enough: c_bool
    receiving: Receiving

    def stop(self) -> list[Published]:
        """Let every stream finish its call; return what they have published."""
        self.enough.value = True
        return cast("list[Published]", self.control.recv())


def read_counters(bench: Bench, publisher: RunningPublisher | None = None) -> Moment:
    """Return what has been delivered and used so far, by the publishers and the receivers too."""
    ((commits, wal_bytes, disk_bytes),) = bench.ask(WRITTEN)
    at, delivered, roots = time.monotonic(), 0, bench.roots()
    if publisher:
        delivered = publisher.receiving.delivered
        beside = {publisher.receiving.name: publisher.receiving.process, "publisher": publisher.process}
        roots |= {name: process.pid or 0 for name, process in beside.items()}
    groups: dict[str, dict[int, float]] = {}
    for service, tree in cpu_by_tree(roots).items():
        groups.setdefault(GROUPS.get(service.rstrip("0123456789"), service), {}).update(tree)
    cpu = {group: sum(tree.values()) for group, tree in groups.items()}
    used = {(f"CPU of {group}", "µs"): seconds * 1e6 for group, seconds in cpu.items()}
    used["CPU of the broker", "µs"] = sum(cpu[group] for group in BROKER) * 1e6
    used["context switches", ""] = sum(context_switches(pid) for group in BROKER for pid in groups[group])
    for server, variable in SERVERS.items():
        used[f"requests to {server}", ""] = received_segments(urlsplit(bench.stack.environment[variable]).port or 0)
    used["commits", ""], used["WAL", "bytes"] = int(str(commits)), int(str(wal_bytes))
    used["disk", "bytes"] = int(str(disk_bytes))
    user, nice, system, _idle, _waiting, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    busy = (user + nice + system + interrupts + soft) * TICK
    return Moment(at, delivered, used, sum(cpu.values()), busy)


@dataclass(frozen=True, slots=True)
class Watched:
    """What was delivered and used between two moments."""

    begin: Moment
    end: Moment
    published: Sequence[Published]

    @property
    def seconds(self) -> float:
        """How long it was measured."""
        return self.end.at - self.begin.at

    @property
    def rate(self) -> float:
        """Deliveries a second."""
        return (self.end.delivered - self.begin.delivered) / self.seconds

    def accept_seconds(self, until: float = float("inf")) -> list[float]:
        """Return how long the answers to publish calls took that were due since the beginning."""
        calls = (call for stream in self.published for call in zip(stream.due, stream.accept_seconds, strict=True))
        return [seconds for due, seconds in calls if self.begin.at <= due <= until]

    def awaiting(self) -> Figure:
        """Return how long publishers waited for answers; near 100 %, accepting is the limit."""
        waited = sum(self.accept_seconds(self.end.at))
        share = 100 * waited / (len(self.published) * self.seconds)
        return Figure("publishers awaiting answers", share, "% of time")

    def costs(self, count: float = 0.0, per: str = " each") -> Iterator[Figure]:
        """Yield what was used for each delivery, or for each of `count`, and CPU use in total and by others."""
        count = count or max(1, self.end.delivered - self.begin.delivered)
        for (name, unit), used in self.end.used.items():
            yield Figure(name, (used - self.begin.used[name, unit]) / count, f"{unit}{per}".strip())
        ours = self.end.ours - self.begin.ours
        others = max(0.0, self.end.busy - self.begin.busy - ours)
        yield Figure("CPU in use", ours / self.seconds, "cores")
        yield Figure("CPU in use by other programs", others / self.seconds, "cores")


@contextmanager
def publishing(
    bench: Bench, event_types: Sequence[str], pace: Pace, receiving: Receiving
) -> Iterator[RunningPublisher]:
    """Publish from now on; the window counts from what has been received before."""
    enough, counted = shared(c_bool, False), replace(pace, window=pace.window + receiving.delivered)
    where = bench.stack.web, bench.publisher_key(), event_types
    with spawned(publish, *where, counted, receiving.count, enough) as (process, control):
        try:
            yield RunningPublisher(process, control, enough, receiving)
        finally:
            enough.value = True


def watched(
    bench: Bench, event_types: Sequence[str], pace: Pace, receiving: Receiving, *, is_cold: bool = False
) -> Watched:
    """Publish, and measure for as long as the options say, after a warm-up unless `is_cold`."""
    with publishing(bench, event_types, pace, receiving) as publisher:
        if not is_cold:
            time.sleep(bench.options.warm_seconds)
            receiving.ask(REPORT)  # so that the next report has only what was measured
        begin = read_counters(bench, publisher)
        time.sleep(bench.options.seconds)
        return Watched(begin, read_counters(bench, publisher), publisher.stop())


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a load."""

    load: Load
    watched: Watched
    event_types: Sequence[str]
    receipts: Receipts
    bare: float
    """Requests a second of a bare client; 0: not measured."""
    problems: Sequence[str]
    """What the broker did wrong, and what kept publishers from publishing."""

    @property
    def times(self) -> Mapping[str, list[float]]:
        """Seconds to the answer and to the subscribers that answer."""
        return {
            DELIVERED: self.receipts.seconds(without=range(self.load.hanging)),
            "accepted": self.watched.accept_seconds(),
        }

    def throughput(self, target: Target | None = None) -> Outcome:
        """Return the deliveries a second, how long they took, and what was used for each."""
        rate, bare = self.watched.rate, self.bare or None
        p95s = [Figure(f"{what} p95", p95_ms(seconds), "ms") for what, seconds in self.times.items()]
        figures = [Figure(DELIVERED, rate, "/s", bare, target), *p95s, self.watched.awaiting(), *self.watched.costs()]
        return Outcome(figures, self.problems, void_reason(rate, bare) if bare else "")

    def latency(self, targets: Mapping[str, Target] = NO_TARGETS) -> Outcome:
        """Return percentiles of the time to the answer and to the subscribers that answer."""
        figures: list[Figure] = []
        for what, seconds in self.times.items():
            figures += [*percentiles(what, seconds, targets), Figure(what, len(seconds), "messages")]
        return Outcome([*figures, *self.watched.costs()], self.problems)


def measured(bench: Bench, load: Load, *, log: Log | None = None, beside: Beside | None = None) -> Measured:
    """Run a load, with something else beside it if given; endpoints that hang answer in the end."""
    log = log or (Log(load.hanging) if load.kind == "TOPIC" else JobLog())
    options: dict[str, Any] = {
        "delay_seconds": load.delay_seconds,
        "hanging": load.hanging,
        "slow_keys": load.slow_keys,
    }
    with running_sink(log=log, answer=load.answer, **options) as sink:
        event_types, subscribers = load.subscribe(bench, sink)
        other = beside(bench, sink, subscribers) if beside else nullcontext()
        with other:
            during = watched(bench, event_types, load.pace, sink, is_cold=load.is_cold)
            sink.answer_all()
            expected = load.expected(during.published)
            unfinished = bench.unfinished(sink, sum(expected.values()))
        receipts = sink.report()
        bare = 0.0
        if load.pace.window and not load.delay_seconds and receipts.example:
            with spawned(post_bare, sink.port, receipts.example, bench.options.bare_seconds) as (_, client):
                bare = float(client.recv())
    problems = [*unfinished, *publishing_problems(during.published), *receipts.problems(expected)]
    return Measured(load, during, event_types, receipts, bare, problems)


def expected_by_any(published: Sequence[Published]) -> dict[Key, int]:
    """Return how many messages of each stream are to be received, by any endpoint or consumer."""
    return {(ANY, stream.stream): sum(stream.counts) for stream in published}


def publishing_problems(published: Sequence[Published]) -> list[str]:
    """Return what kept the publishers from publishing."""
    return [f"publishing failed: {stream.problem}" for stream in published if stream.problem]


def void_reason(rate: float, bare: float) -> str:
    """Return why a run is void: the sink or the machine may have been the limit, not the broker."""
    if bare >= MARGIN * rate:
        return ""
    return f"void: a bare client reached {bare:,.0f}/s here, less than {MARGIN:.0f} times {rate:,.0f}/s"


def compared(
    variants: Mapping[str, Callable[[], Outcome]],
    target: Target,
    *,
    shown: Sequence[str] = (DELIVERED,),
    rounds: int = ROUNDS,
) -> Outcome:
    """Measure all variants in each round; return the means of the figures in `shown`, and how the variants compare.

    The others are compared with the first.
    """
    outcomes: dict[str, list[Outcome]] = {what: [] for what in variants}
    for number in range(rounds):
        for what in reversed([*variants]) if number % 2 else variants:
            outcomes[what].append(variants[what]())
    every = [outcome for several in outcomes.values() for outcome in several]
    figures = [
        Figure(f"{name}, {what}", mean(outcome.value(name) for outcome in several), unit)
        for name in shown
        for what, several in outcomes.items()
        for unit in {figure.unit for figure in several[0].figures if figure.name == name}
    ]
    rates = {what: [outcome.value(DELIVERED) for outcome in several] for what, several in outcomes.items()}
    for what, values in rates.items():
        figures.append(Figure(f"spread, {what}", 100 * ratio(max(values) - min(values), mean(values)), "%"))
    first, *others = rates
    for what in others:
        times = ratio(mean(rates[what]), mean(rates[first]))
        figures.append(Figure(f"{what} / {first}", times, "times", target=target))
    return replace(merged({str(number): outcome for number, outcome in enumerate(every)}), figures=figures)
