"""`soak`: half of what the broker can do, for half an hour; memory and the hot tables must not grow.

Each is compared with itself: the mean of the last quarter of the time with that of the second.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks import bench as benchmarks_bench
from benchmarks import throughput
from benchmarks.bench import Bench
from benchmarks.children import RunningSink, publishing, running_sink
from benchmarks.figures import Figure, Outcome, at_most
from benchmarks.processes import Usage, usage
from benchmarks.publisher import Plan
from benchmarks.receipts import problems
from benchmarks.scenarios import topic

FEWEST: Final = 4
"""Samples: one a quarter."""

NAME: Final = "soak"
CONNECTIONS: Final = 4
SAMPLE_SECONDS: Final = 10.0
QUARTERS: Final = {"second quarter": 2, "last quarter": 4}
MAX_MEASURING: Final = 15.0
"""Seconds to find out what the broker can do."""
GROWTH: Final = 1.05
FEW_BYTES: Final = 256 * 1024
"""By so much something small may grow: 32 pages of a table come and go with each vacuum."""

TABLES: Final = """
    SELECT name, pg_total_relation_size(name::regclass) - pg_indexes_size(name::regclass),
           pg_indexes_size(name::regclass)
    FROM unnest(ARRAY['delivery_open', 'delivery_line', 'delivery_pageread']) AS name
"""
"""Where rows are updated or die young, with all that is stored apart; what is filed by day grows as it should."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What there was at one moment."""

    at: float
    delivered: int
    services: Mapping[str, Usage]
    tables: Mapping[str, int]
    """Bytes, by table and kind."""


def sampled(bench: Bench, sink: RunningSink, seconds: float) -> Iterator[Sample]:
    """Yield a sample after each of the intervals that the time has."""
    began, roots = time.monotonic(), bench.roots()
    for number in range(max(FEWEST, int(bench.options.minutes * 60 / seconds))):
        time.sleep(max(0.0, began + (number + 1) * seconds - time.monotonic()))
        sink.report()  # so that it does not remember them all
        sample = Sample(time.monotonic(), sink.delivered, usage(roots), dict(_table_sizes(bench)))
        bench.say(_line(number + 1, sample))
        yield sample


def _table_sizes(bench: Bench) -> Iterator[tuple[str, int]]:
    for name, heap, indexes in bench.ask(TABLES):
        yield f"{name} rows", int(str(heap))
        yield f"{name} indexes", int(str(indexes))


def _line(number: int, sample: Sample) -> str:
    memory = " ".join(f"{name} {used.pss_bytes >> 20}" for name, used in sample.services.items())
    tables = " ".join(f"{name} {size >> 10}" for name, size in sample.tables.items())
    return f"{number:4}: {sample.delivered} delivered; MB: {memory}; KB: {tables}"


def run(bench: Bench, *, subscribers: int = 100, sample_seconds: float = SAMPLE_SECONDS) -> Outcome:
    """Publish evenly, look at everything every ten seconds, and judge."""
    rate = bench.options.rate or _capacity(bench, subscribers) / 2
    bench.say(f"{NAME}: {rate:.0f} deliveries a second for {bench.options.minutes:g} minutes")
    with running_sink() as sink:
        event_types = benchmarks_bench.event_types(bench.api, subscribers)
        benchmarks_bench.subscribe(bench.api, sink, event_types)
        key = benchmarks_bench.publisher_key(bench.api)
        plan = Plan(bench.stack.web, key, event_types, CONNECTIONS, per_call=subscribers, per_second=rate)
        with publishing(plan, sink) as publisher:
            samples = list(sampled(bench, sink, sample_seconds))
            published = publisher.stop()
            wrong = bench.unfinished(sink, sum(sum(stream.counts) for stream in published))
        last = sink.report()
    wrong += [*throughput.publishing_problems(published), *problems(last, throughput.wanted_from(published))]
    return Outcome([*_speeds(samples, rate), *_sizes(samples)], wrong)


def _capacity(bench: Bench, subscribers: int) -> float:
    """Return what the broker delivers a second when it is kept busy."""
    seconds = min(bench.options.seconds, MAX_MEASURING)
    short = dataclasses.replace(bench, options=dataclasses.replace(bench.options, seconds=seconds))
    return topic.run_dense(short, subscribers=subscribers).figures[0].value


def _speeds(samples: Sequence[Sample], rate: float) -> Iterator[Figure]:
    """Yield deliveries a second, and the CPU time of one, early and late."""
    yield Figure(NAME, "published", rate, "/s")
    for when, quarter in QUARTERS.items():
        before, last = samples[len(samples) * (quarter - 1) // 4 - 1], samples[len(samples) * quarter // 4 - 1]
        delivered = last.delivered - before.delivered
        yield Figure(NAME, f"delivered, {when}", delivered / (last.at - before.at), "/s")
        for name, used in last.services.items():
            cpu = (used.cpu_seconds - before.services[name].cpu_seconds) / max(1, delivered)
            yield Figure(NAME, f"CPU of {name}, {when}", cpu * 1e6, "µs each")


def _sizes(samples: Sequence[Sample]) -> Iterator[Figure]:
    """Yield what each service and table takes in the end, and by how much it has grown."""
    for name in samples[0].services:
        yield from _size(f"memory of {name}", [sample.services[name].pss_bytes for sample in samples])
    for name in samples[0].tables:
        yield from _size(name, [sample.tables[name] for sample in samples])


def _size(name: str, sizes: Sequence[int]) -> Iterator[Figure]:
    early, late = (
        statistics.mean(sizes[len(sizes) * (quarter - 1) // 4 : len(sizes) * quarter // 4])
        for quarter in QUARTERS.values()
    )
    yield Figure(NAME, name, late / 1e6, "MB")
    early = max(1.0, early)
    yield Figure(NAME, f"growth of {name}", late / early, "times", target=at_most(max(GROWTH, 1 + FEW_BYTES / early)))
