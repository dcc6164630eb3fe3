"""How many deliveries a second go all the way, with publishers that keep the broker busy, and who uses the CPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks import arranging
from benchmarks.bench import Bench
from benchmarks.children import RunningSink, publishing, running_sink
from benchmarks.figures import Figure, Outcome, Target
from benchmarks.moments import Moment, cpu_figures, watched
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import Key, Log, problems

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


Prepare = Callable[[Bench, RunningSink, Sequence[str]], None]
"""What happens to the subscribers, by their names, before the load."""


def measure(bench: Bench, load: Load, *, log: Log | None = None, prepare: Prepare | None = None) -> Outcome:
    """Run a load against subscribers of whom each wants an event type of its own."""
    with running_sink(log=log) as sink:
        event_types = arranging.event_types(bench.api, load.subscribers)
        subscribers = arranging.subscribe(bench.api, sink, event_types)
        if prepare:
            prepare(bench, sink, subscribers)
        plan = Plan(
            bench.stack.web,
            arranging.publisher_key(bench.api),
            event_types,
            load.connections,
            load.per_call,
            window=load.window,
        )
        with publishing(plan, sink) as publisher:
            begin, end = watched(bench, sink, publisher)
            published = publisher.stop()
            wrong = bench.unfinished(sink, sum(sum(stream.counts) for stream in published))
        receipts = sink.report()
        bare = sink.bare_rate(receipts.example, bench.options.bare_seconds) if receipts.example else 0.0
    rate = (end.delivered - begin.delivered) / (end.at - begin.at)
    wrong += [*publishing_problems(published), *problems(receipts, wanted_from(published))]
    speed = Figure(load.name, "delivered", rate, "/s", bare, load.target)
    busy = Figure(load.name, "publishers awaiting answers", awaiting(published, begin, end), "% of time")
    return Outcome([speed, busy, *cpu_figures(load.name, begin, end)], wrong, void(rate, bare))


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
