"""How many deliveries a second go all the way, with publishers that keep the broker busy, and who uses the CPU."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from benchmarks import arranging
from benchmarks.answers import TAKEN
from benchmarks.bench import Bench
from benchmarks.children import RunningSink, publishing, running_sink
from benchmarks.figures import Figure, Outcome, Target
from benchmarks.moments import Moment, cpu_figures, watched
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import Key, Log, Receipts, problems

DELIVERED: Final = "delivered"
MARGIN: Final = 3.0
"""So many times as fast as the figure a bare client must be, else the sink may have been the limit."""


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


Beside = Callable[[Bench, RunningSink, Sequence[str]], AbstractContextManager[None]]
"""What goes on with the subscribers, by their names, beside the load."""


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
        event_types = arranging.event_types(bench.api, load.subscribers)
        subscribers = arranging.subscribe(bench.api, sink, event_types)
        plan = Plan(
            bench.stack.web,
            arranging.publisher_key(bench.api),
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
