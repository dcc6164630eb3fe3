"""`soak`: half of what the broker can do, for half an hour; memory and the hot tables must not grow.

Each is compared with itself: the mean of the last quarter of the time with that of the second.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Outcome, at_most
from benchmarks.measure import DELIVERED, publishing, publishing_problems
from benchmarks.processes import Usage, usage
from benchmarks.publisher import Pace
from benchmarks.scenarios import topic
from benchmarks.sink import RunningSink, running_sink

MIN_SAMPLES: Final = 4
"""One in each quarter of the time."""
SAMPLE_SECONDS: Final = 10.0
QUARTERS: Final = {"second quarter": 2, "last quarter": 4}
MAX_MEASURING: Final = 15.0
"""Seconds to measure what the broker can do."""
GROWTH: Final = 1.05
FEW_BYTES: Final = 256 * 1024
"""Growth that does not count: 32 pages of a table come and go with each vacuum."""

TABLES: Final = """
    SELECT name || part, size
      FROM unnest(ARRAY['delivery_open', 'delivery_line', 'delivery_pageread']) AS name,
           LATERAL (VALUES (' rows', pg_total_relation_size(name::regclass) - pg_indexes_size(name::regclass)),
                           (' indexes', pg_indexes_size(name::regclass))) AS sizes (part, size)
"""
"""Tables whose rows are updated or deleted soon, with their out-of-line storage; tables by day grow until retention."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory, CPU time and tables at one moment."""

    at: float
    delivered: int
    services: Mapping[str, Usage]
    tables: Mapping[str, int]
    """Bytes, by table and kind."""


def sampled(bench: Bench, sink: RunningSink, seconds: float) -> Iterator[Sample]:
    """Yield a sample after each of the intervals that the time has."""
    began, roots = time.monotonic(), bench.roots()
    for number in range(max(MIN_SAMPLES, int(bench.options.minutes * 60 / seconds))):
        time.sleep(max(0.0, began + (number + 1) * seconds - time.monotonic()))
        sink.report()  # so that it does not keep them all
        sizes = {str(name): int(str(size)) for name, size in bench.ask(TABLES)}
        sample = Sample(time.monotonic(), sink.delivered, usage(roots), sizes)
        memory = " ".join(f"{name} {used.pss_bytes >> 20}" for name, used in sample.services.items())
        tables = " ".join(f"{name} {size >> 10}" for name, size in sizes.items())
        bench.say(f"{number + 1:4}: {sample.delivered} delivered; MB: {memory}; KB: {tables}")
        yield sample


def run(bench: Bench, *, subscribers: int = 100, sample_seconds: float = SAMPLE_SECONDS) -> Outcome:
    """Publish half of what topic.dense can do, for --minutes; compare memory and the hot tables."""
    if not (rate := bench.options.rate):
        options = replace(bench.options, seconds=min(bench.options.seconds, MAX_MEASURING))
        rate = topic.run_dense(replace(bench, options=options), subscribers=subscribers).value(DELIVERED) / 2
    bench.say(f"soak: {rate:.0f} deliveries a second for {bench.options.minutes:g} minutes")
    load = topic.dense_load(subscribers)
    with running_sink() as sink:
        event_types, _ = load.subscribe(bench, sink)
        with publishing(bench, event_types, Pace(subscribers, per_second=rate), sink) as publisher:
            samples = list(sampled(bench, sink, sample_seconds))
            published = publisher.stop()
            expected = load.expected(published)
            unfinished = bench.unfinished(sink, sum(expected.values()))
        wrong = [*unfinished, *publishing_problems(published), *sink.report().problems(expected)]
    return Outcome([Figure("published", rate, "/s"), *_speeds(samples), *_sizes(samples)], wrong)


def _speeds(samples: Sequence[Sample]) -> Iterator[Figure]:
    """Yield deliveries a second, and the CPU time of one, early and late."""
    for when, quarter in QUARTERS.items():
        before, last = samples[len(samples) * (quarter - 1) // 4 - 1], samples[len(samples) * quarter // 4 - 1]
        delivered = last.delivered - before.delivered
        yield Figure(f"delivered, {when}", delivered / (last.at - before.at), "/s")
        for name, used in last.services.items():
            cpu = (used.cpu_seconds - before.services[name].cpu_seconds) / max(1, delivered)
            yield Figure(f"CPU of {name}, {when}", cpu * 1e6, "µs each")


def _sizes(samples: Sequence[Sample]) -> Iterator[Figure]:
    """Yield the size of each service and table in the end, and how much it has grown."""
    series = {
        f"memory of {name}": [sample.services[name].pss_bytes for sample in samples] for name in samples[0].services
    } | {name: [sample.tables[name] for sample in samples] for name in samples[0].tables}
    for name, sizes in series.items():
        early, late = (
            max(1.0, mean(sizes[len(sizes) * (quarter - 1) // 4 : len(sizes) * quarter // 4]))
            for quarter in QUARTERS.values()
        )
        target = at_most(max(GROWTH, 1 + FEW_BYTES / early))
        yield Figure(name, late / 1e6, "MB")
        yield Figure(f"growth of {name}", late / early, "times", target=target)
