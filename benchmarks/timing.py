"""How long single publishes take by the clock: to their answer, and to the subscriber."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks import bench as benchmarks_bench
from benchmarks.bench import Bench
from benchmarks.children import publishing, running_sink
from benchmarks.figures import Figure, Outcome, Target, percentile
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import problems
from benchmarks.throughput import cpu_figures, publishing_problems, wanted_from, watched

PERCENTS: Final = (50, 95, 99)
CONNECTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Timetable:
    """Single publishes, evenly spaced, over subscribers with an event type each."""

    name: str
    subscribers: int
    per_second: float
    targets: dict[str, Target]
    """By the name of the figure."""
    hanging: int = 0
    """Of the subscribers, the first so many never answer."""
    is_cold: bool = False
    """Whether the first second counts."""


def measure_latency(bench: Bench, timetable: Timetable) -> Outcome:
    """Publish by the clock and return percentiles; those that hang are told to answer in the end."""
    with running_sink(hanging=timetable.hanging) as sink:
        event_types = benchmarks_bench.event_types(bench.api, timetable.subscribers)
        benchmarks_bench.subscribe(bench.api, sink, event_types)
        key = benchmarks_bench.publisher_key(bench.api)
        plan = Plan(bench.stack.web, key, event_types, CONNECTIONS, per_call=1, per_second=timetable.per_second)
        with publishing(plan, sink) as publisher:
            begin, end = watched(bench, sink, publisher, is_cold=timetable.is_cold)
            published = publisher.stop()
            sink.answer_all()
            wrong = bench.unfinished(sink, sum(sum(stream.counts) for stream in published))
        receipts = sink.report()
    delivered = receipts.seconds(but=range(timetable.hanging))
    figures = [*_percentiles(timetable, "delivered", delivered)]
    figures += _percentiles(timetable, "accepted", accepted(published, since=begin.at))
    figures += cpu_figures(timetable.name, begin, end)
    return Outcome(figures, [*wrong, *publishing_problems(published), *problems(receipts, wanted_from(published))])


def accepted(published: Sequence[Published], *, since: float) -> list[float]:
    """Return how long the answers took, sorted."""
    calls = (call for stream in published for call in zip(stream.due, stream.accept_seconds, strict=True))
    return sorted(seconds for due, seconds in calls if due >= since)


def _percentiles(timetable: Timetable, what: str, ordered: Sequence[float]) -> Iterator[Figure]:
    for percent in PERCENTS:
        figure, value = f"{what} p{percent}", percentile(ordered, percent) * 1e3
        yield Figure(timetable.name, figure, value, "ms", target=timetable.targets.get(figure))
    yield Figure(timetable.name, what, len(ordered), "messages")
