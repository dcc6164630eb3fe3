"""How many deliveries a second go all the way, with publishers that keep the broker busy, and who uses the CPU."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import mean
from typing import Final

from benchmarks import bench as benchmarks_bench
from benchmarks.bench import Bench
from benchmarks.children import Receiving, RunningPublisher, RunningSink, publishing, running_sink
from benchmarks.figures import Figure, Outcome, Target
from benchmarks.processes import busy_seconds, cpu_seconds
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import Key, Log, Receipts, problems
from benchmarks.sink import TAKEN

GROUPS: Final = {"beat": "beat+flower", "flower": "beat+flower"}

DELIVERED: Final = "delivered"
MARGIN: Final = 3.0
"""So many times as fast as the figure a bare client must be, else the sink may have been the limit."""


Beside = Callable[[Bench, RunningSink, Sequence[str]], AbstractContextManager[None]]
"""What goes on with the subscribers, by their names, beside the load."""

ROUNDS: Final = 2
"""Every other one goes the other way round: what only comes first, or last, is not thereby the faster one."""

Variants = Mapping[str, Callable[[], Outcome]]
"""How each is measured, by name; the first is what the others are compared with."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What had been delivered and used by then."""

    at: float
    delivered: int
    cpu: Mapping[str, float]
    busy: float
    """CPU time of the whole machine."""


def watched(
    bench: Bench, receiving: Receiving, publisher: RunningPublisher, *, is_cold: bool = False
) -> tuple[Moment, Moment]:
    """Return what had been done before and after the time of measuring; let everything warm up first, or not."""
    roots = bench.roots() | {receiving.name: receiving.process.pid or 0, "publisher": publisher.process.pid or 0}
    if not is_cold:
        time.sleep(bench.options.warm_seconds)
        receiving.report()  # so that what comes in the next one has been measured
    begin = _now(receiving, roots)
    time.sleep(bench.options.seconds)
    return begin, _now(receiving, roots)


def cpu_figures(scenario: str, begin: Moment, end: Moment) -> Iterator[Figure]:
    """Yield what each group of processes used for one delivery, its share of all, and what others used."""
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


def _now(receiving: Receiving, roots: Mapping[str, int]) -> Moment:
    return Moment(time.monotonic(), receiving.delivered, cpu_seconds(roots), busy_seconds())


@dataclass(frozen=True, slots=True)
class Load:
    """What is published, for whom, and what is expected of it."""

    name: str
    subscribers: int
    per_call: int
    window: int
    """Deliveries under way at most."""
    target: Target
    connections: int = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a load."""

    begin: Moment
    end: Moment
    published: Sequence[Published]
    receipts: Receipts
    bare: float
    unfinished: Sequence[str]

    @property
    def seconds(self) -> float:
        """How long it was measured."""
        return self.end.at - self.begin.at


def _nothing(_bench: Bench, _sink: RunningSink, _subscribers: Sequence[str]) -> AbstractContextManager[None]:
    return nullcontext()


def measure(bench: Bench, load: Load, *, answer: bytes = TAKEN) -> Outcome:
    """Run a load against subscribers of whom each wants an event type of its own."""
    return outcome_of(load, measured(bench, load, answer=answer))


def measured(
    bench: Bench, load: Load, *, log: Log | None = None, answer: bytes = TAKEN, beside: Beside = _nothing
) -> Measured:
    """Run a load, and something else beside it."""
    with running_sink(log=log, answer=answer) as sink:
        event_types = benchmarks_bench.event_types(bench.api, load.subscribers)
        subscribers = benchmarks_bench.subscribe(bench.api, sink, event_types)
        plan = Plan(
            bench.stack.web,
            benchmarks_bench.publisher_key(bench.api),
            event_types,
            load.connections,
            load.per_call,
            window=load.window,
        )
        with beside(bench, sink, subscribers), publishing(plan, sink) as publisher:
            begin, end = watched(bench, sink, publisher)
            published = publisher.stop()
            unfinished = bench.unfinished(sink, sum(sum(stream.counts) for stream in published))
        receipts = sink.report()
        bare = sink.bare_rate(receipts.example, bench.options.bare_seconds) if receipts.example else 0.0
    return Measured(begin, end, published, receipts, bare, unfinished)


def outcome_of(load: Load, found: Measured) -> Outcome:
    """Return the figures of a load, and what was wrong."""
    rate = (found.end.delivered - found.begin.delivered) / found.seconds
    wrong = [*found.unfinished, *publishing_problems(found.published)]
    wrong += problems(found.receipts, wanted_from(found.published))
    speed = Figure(load.name, DELIVERED, rate, "/s", found.bare, load.target)
    waited = awaiting(found.published, found.begin, found.end)
    busy = Figure(load.name, "publishers awaiting answers", waited, "% of time")
    figures = [speed, busy, *cpu_figures(load.name, found.begin, found.end)]
    return Outcome(figures, wrong, void(rate, found.bare))


def awaiting(published: Sequence[Published], begin: Moment, end: Moment) -> float:
    """Return for how much of the time publishers waited for answers: near 100, accepting is the limit, not sending."""
    calls = (call for stream in published for call in zip(stream.due, stream.accept_seconds, strict=True))
    waited = sum(seconds for due, seconds in calls if begin.at <= due <= end.at)
    return 100 * waited / (len(published) * (end.at - begin.at))


def wanted_from(published: Sequence[Published]) -> dict[Key, int]:
    """Return how many deliveries each subscriber is to get of each stream, where each has its own event type."""
    return {
        (subscriber, stream.stream): count
        for stream in published
        for subscriber, count in enumerate(stream.counts)
        if count
    }


def publishing_problems(published: Sequence[Published]) -> list[str]:
    """Say what kept the publishers from publishing."""
    return [f"publishing failed: {stream.problem}" for stream in published if stream.problem]


def void(rate: float, bare: float) -> str:
    """Say so if the sink or the machine may have been the limit, not the broker."""
    if bare >= MARGIN * rate:
        return ""
    return f"void: a bare client reached {bare:,.0f}/s here, less than {MARGIN:.0f} times {rate:,.0f}/s"


def compared(
    name: str, variants: Variants, target: Target, *, shown: Sequence[str] = (DELIVERED,), rounds: int = ROUNDS
) -> Outcome:
    """Measure all variants in each round; return the mean of the figures that are `shown`, and how they compare."""
    outcomes: dict[str, list[Outcome]] = {what: [] for what in variants}
    for number in range(rounds):
        for what in reversed([*variants]) if number % 2 else variants:
            outcomes[what].append(variants[what]())
    every = [outcome for several in outcomes.values() for outcome in several]
    void = next((outcome.void for outcome in every if outcome.void), "")
    figures = [*_shown(name, outcomes, shown), *_compared(name, outcomes, target)]
    return Outcome(figures, [text for outcome in every for text in outcome.problems], void)


def _shown(name: str, outcomes: Mapping[str, Sequence[Outcome]], shown: Sequence[str]) -> Iterator[Figure]:
    for figure in shown:
        for what, several in outcomes.items():
            (unit,) = {one.unit for one in several[0].figures if one.figure == figure} or {""}
            if unit:
                yield Figure(name, f"{figure}, {what}", mean(outcome.value(figure) for outcome in several), unit)


def _compared(name: str, outcomes: Mapping[str, Sequence[Outcome]], target: Target) -> Iterator[Figure]:
    """Yield how much slower or faster the rounds of each were, then how they compare with the first."""
    rates = {what: [one.value(DELIVERED) for one in several] for what, several in outcomes.items()}
    for what, values in rates.items():
        yield Figure(name, f"spread, {what}", 100 * (max(values) - min(values)) / max(1e-9, mean(values)), "%")
    first, *others = rates
    for what in others:
        ratio = mean(rates[what]) / max(1e-9, mean(rates[first]))
        yield Figure(name, f"{what} / {first}", ratio, "times", target=target)
