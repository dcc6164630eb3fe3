"""Running a load: publishers keep the broker busy, or publish by a timetable, while everything is checked and timed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks.bench import Bench, create_event_types, create_publisher, subscribe
from benchmarks.figures import Figure, Outcome, Target, percentile
from benchmarks.mailbox_client import RunningConsumers
from benchmarks.processes import TICK, cpu_seconds
from benchmarks.publisher import Plan, Published, RunningPublisher, publishing
from benchmarks.receipts import ANY, JobLog, Key, Log, Receipts, problems
from benchmarks.sink import TAKEN, RunningSink, running_sink

GROUPS: Final = {"beat": "beat+flower", "flower": "beat+flower"}
DELIVERED: Final = "delivered"
MARGIN: Final = 3.0
"""How much faster than the figure a bare client must be; otherwise the sink may have been the limit."""
PERCENTS: Final = (50, 95, 99)
ROUNDS: Final = 2
"""Every other one runs backwards, so that coming first or last favours none."""
ENDLESS_SCRIPT: Final = "while (1);"

Beside = Callable[[Bench, RunningSink, Sequence[str]], AbstractContextManager[None]]
"""What else happens to the subscribers, by their names, during a load."""
Variants = Mapping[str, Callable[[], Outcome]]
"""How each variant is measured, by name; the others are compared with the first."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is published, for which subscribers, and what is expected."""

    name: str
    subscribers: int
    """Each with an event type of its own; of a QUEUE all share one."""
    per_call: int = 1
    window: int = 0
    """Most deliveries in flight."""
    per_second: float = 0.0
    """Messages a second by a timetable; 0: as fast as the window allows."""
    connections: int = 4
    targets: Mapping[str, Target] = field(default_factory=dict)
    """By the name of the figure."""
    kind: str = "TOPIC"
    delay_seconds: float = 0.0
    """How long endpoints take."""
    hanging: int = 0
    """The number of subscribers, the first ones, that never answer."""
    is_cold: bool = False
    """Whether the first second counts."""
    script: str = ""
    """Of each subscription."""
    hostile: int = 0
    """Further subscribers, whose scripts never end; their deliveries are not waited for."""

    def subscribe(self, bench: Bench, sink: RunningSink) -> tuple[list[str], list[str]]:
        """Create event types and subscribers; return the names of both."""
        if self.kind == "QUEUE":
            event_types = create_event_types(bench.api, 1, kind="QUEUE")
            return event_types, subscribe(bench.api, sink, event_types * self.subscribers)
        event_types = create_event_types(bench.api, self.subscribers + self.hostile)
        names = subscribe(bench.api, sink, event_types[: self.subscribers], script=self.script)
        subscribe(bench.api, sink, event_types[self.subscribers :], prefix="hostile", script=ENDLESS_SCRIPT)
        return event_types, names

    def expected(self, published: Sequence[Published]) -> dict[Key, int]:
        """Return how many deliveries of each stream each subscriber is to receive."""
        if self.kind == "QUEUE":
            return expected_by_any(published)
        return {
            (subscriber, stream.stream): count
            for stream in published
            for subscriber, count in enumerate(stream.counts[: self.subscribers])
            if count
        }


@dataclass(frozen=True, slots=True)
class Moment:
    """What had been delivered and used by then."""

    at: float
    delivered: int
    cpu: Mapping[str, float]
    busy: float
    """CPU time of the whole machine."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a load."""

    load: Load
    begin: Moment
    end: Moment
    event_types: Sequence[str]
    published: Sequence[Published]
    receipts: Receipts
    bare: float
    """Requests a second of a bare client; 0: not measured."""
    unfinished: Sequence[str]

    @property
    def seconds(self) -> float:
        """How long it was measured."""
        return self.end.at - self.begin.at

    @property
    def rate(self) -> float:
        """Deliveries a second."""
        return (self.end.delivered - self.begin.delivered) / self.seconds

    @property
    def expected(self) -> dict[Key, int]:
        """Deliveries that each subscriber is to receive of each stream."""
        return self.load.expected(self.published)

    @property
    def problems(self) -> list[str]:
        """What the broker did wrong, and what kept publishers from publishing."""
        wrong = problems(self.receipts, self.expected)
        return [*self.unfinished, *publishing_problems(self.published), *wrong]

    def cpu_figures(self) -> Iterator[Figure]:
        """Yield how long publishers waited, and what each group of processes used."""
        waited = awaiting(self.published, self.begin, self.end)
        yield Figure(self.load.name, "publishers awaiting answers", waited, "% of time")
        yield from cpu_figures(self.load.name, self.begin, self.end)


def measured(
    bench: Bench, load: Load, *, log: Log | None = None, answer: bytes = TAKEN, beside: Beside | None = None
) -> Measured:
    """Run a load, with something else beside it if given; endpoints that hang answer in the end."""
    log = log or (JobLog() if load.kind == "QUEUE" else Log(load.hanging))
    with running_sink(log=log, answer=answer, hanging=load.hanging, delay_seconds=load.delay_seconds) as sink:
        event_types, subscribers = load.subscribe(bench, sink)
        plan = Plan(
            bench.stack.web,
            create_publisher(bench.api),
            event_types,
            load.connections,
            load.per_call,
            window=load.window,
            per_second=load.per_second,
        )
        other = beside(bench, sink, subscribers) if beside else nullcontext()
        with other, publishing(plan, sink) as publisher:
            begin, end = watched(bench, sink, publisher, is_cold=load.is_cold)
            published = publisher.stop()
            sink.answer_all()
            unfinished = bench.unfinished(sink, sum(load.expected(published).values()))
        receipts = sink.report()
        is_limit = load.window and not load.delay_seconds and receipts.example
        bare = sink.bare_rate(receipts.example, bench.options.bare_seconds) if is_limit else 0.0
    return Measured(load, begin, end, event_types, published, receipts, bare, unfinished)


def measure_throughput(bench: Bench, load: Load, *, answer: bytes = TAKEN) -> Outcome:
    """Keep the broker busy; return deliveries a second and what each process used for one."""
    return throughput_of(measured(bench, load, answer=answer))


def throughput_of(found: Measured) -> Outcome:
    """Return the figures of a load that kept the broker busy."""
    target = found.load.targets.get(DELIVERED)
    speed = Figure(found.load.name, DELIVERED, found.rate, "/s", found.bare, target)
    return Outcome([speed, *found.cpu_figures()], found.problems, void(found.rate, found.bare))


def measure_latency(bench: Bench, load: Load) -> Outcome:
    """Publish by a timetable; return percentiles of the time to the answer and to the subscriber."""
    found = measured(bench, load)
    times = {
        DELIVERED: found.receipts.seconds(without=range(load.hanging)),
        "accepted": accepted(found.published, since=found.begin.at),
    }
    figures: list[Figure] = []
    for what, ordered in times.items():
        figures += percentiles(load.name, what, ordered, load.targets)
        figures.append(Figure(load.name, what, len(ordered), "messages"))
    return Outcome([*figures, *cpu_figures(load.name, found.begin, found.end)], found.problems)


def percentiles(
    scenario: str, what: str, ordered: Sequence[float], targets: Mapping[str, Target], suffix: str = ""
) -> Iterator[Figure]:
    """Yield percentiles of sorted seconds in milliseconds; targets go by the name without the suffix."""
    for percent in PERCENTS:
        name, value = f"{what} p{percent}", percentile(ordered, percent) * 1e3
        yield Figure(scenario, name + suffix, value, "ms", target=targets.get(name))


def watched(
    bench: Bench,
    receiving: RunningSink | RunningConsumers,
    publisher: RunningPublisher,
    *,
    is_cold: bool = False,
) -> tuple[Moment, Moment]:
    """Return what had been done before and after the measurement, which follows a warm-up unless `is_cold`."""
    roots = bench.roots() | {receiving.name: receiving.process.pid or 0, "publisher": publisher.process.pid or 0}

    def now() -> Moment:
        user, nice, system, _idle, _waiting, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
        busy = (user + nice + system + interrupts + soft) * TICK
        return Moment(time.monotonic(), receiving.delivered, cpu_seconds(roots), busy)

    if not is_cold:
        time.sleep(bench.options.warm_seconds)
        receiving.report()  # so that the next report has only what was measured
    begin = now()
    time.sleep(bench.options.seconds)
    return begin, now()


def cpu_figures(scenario: str, begin: Moment, end: Moment) -> Iterator[Figure]:
    """Yield what each group of processes used for one delivery, its share of the total, and what others used."""
    used: dict[str, float] = {}
    for service, seconds in end.cpu.items():
        group = "workers" if service.startswith("worker") else GROUPS.get(service, service)
        used[group] = used.get(group, 0.0) + seconds - begin.cpu[service]
    deliveries = max(1, end.delivered - begin.delivered)
    for group, seconds in used.items():
        yield Figure(scenario, f"CPU of {group}", seconds / deliveries * 1e6, "µs each")
    for group, seconds in used.items():
        yield Figure(scenario, f"CPU share of {group}", 100 * seconds / max(1e-9, sum(used.values())), "%")
    seconds, ours = end.at - begin.at, sum(used.values())
    yield Figure(scenario, "CPU in use", ours / seconds, "cores")
    yield Figure(scenario, "CPU in use by other programs", max(0.0, end.busy - begin.busy - ours) / seconds, "cores")


def accepted(published: Sequence[Published], *, since: float, until: float = float("inf")) -> list[float]:
    """Return how long the answers to publish calls took that were due in this time, sorted."""
    calls = (call for stream in published for call in zip(stream.due, stream.accept_seconds, strict=True))
    return sorted(seconds for due, seconds in calls if since <= due <= until)


def awaiting(published: Sequence[Published], begin: Moment, end: Moment) -> float:
    """Return the percentage of time that publishers waited for answers; near 100, accepting is the limit."""
    waited = sum(accepted(published, since=begin.at, until=end.at))
    return 100 * waited / (len(published) * (end.at - begin.at))


def expected_by_any(published: Sequence[Published]) -> dict[Key, int]:
    """Return how many messages of each stream are to be received, by any endpoint or consumer."""
    return {(ANY, stream.stream): sum(stream.counts) for stream in published}


def publishing_problems(published: Sequence[Published]) -> list[str]:
    """Return what kept the publishers from publishing."""
    return [f"publishing failed: {stream.problem}" for stream in published if stream.problem]


def void(rate: float, bare: float) -> str:
    """Return why a run is void: the sink or the machine may have been the limit, not the broker."""
    if bare >= MARGIN * rate:
        return ""
    return f"void: a bare client reached {bare:,.0f}/s here, less than {MARGIN:.0f} times {rate:,.0f}/s"


def compared(
    name: str, variants: Variants, target: Target, *, shown: Sequence[str] = (DELIVERED,), rounds: int = ROUNDS
) -> Outcome:
    """Measure all variants in each round; return the means of the figures in `shown`, and how the variants compare."""
    outcomes: dict[str, list[Outcome]] = {what: [] for what in variants}
    for number in range(rounds):
        for what in reversed([*variants]) if number % 2 else variants:
            outcomes[what].append(variants[what]())
    every = [outcome for several in outcomes.values() for outcome in several]
    void = next((outcome.void for outcome in every if outcome.void), "")
    means = [
        Figure(name, f"{figure}, {what}", mean(outcome.value(figure) for outcome in several), unit)
        for figure in shown
        for what, several in outcomes.items()
        for unit in {one.unit for one in several[0].figures if one.figure == figure}
    ]
    problems = [text for outcome in every for text in outcome.problems]
    return Outcome([*means, *_ratios(name, outcomes, target)], problems, void)


def _ratios(name: str, outcomes: Mapping[str, Sequence[Outcome]], target: Target) -> Iterator[Figure]:
    """Yield how far the rounds of each variant differ, then how the others compare with the first."""
    rates = {what: [one.value(DELIVERED) for one in several] for what, several in outcomes.items()}
    for what, values in rates.items():
        yield Figure(name, f"spread, {what}", 100 * (max(values) - min(values)) / max(1e-9, mean(values)), "%")
    first, *others = rates
    for what in others:
        ratio = mean(rates[what]) / max(1e-9, mean(rates[first]))
        yield Figure(name, f"{what} / {first}", ratio, "times", target=target)
