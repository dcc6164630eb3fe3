"""`soak`: half of what the broker can do, for half an hour; memory and the hot tables must not grow.

Each is compared with itself: the mean of the last quarter of the time with that of the second.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Outcome, at_most, merged
from benchmarks.measure import (
    DELIVERED,
    Moment,
    RunningPublisher,
    Watched,
    publishing,
    publishing_problems,
    read_counters,
)
from benchmarks.processes import cpu_by_tree, pss_bytes
from benchmarks.publisher import Pace
from benchmarks.scenarios import topic
from benchmarks.sink import RunningSink, running_sink

MINUTES: Final = 30.0
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
    """Memory, tables, and what had been used at one moment."""

    moment: Moment
    sizes: Mapping[str, int]
    """Bytes, by service or by table and kind."""


def _minutes(bench: Bench) -> float:
    return bench.options.minutes or MINUTES


def sampled(bench: Bench, sink: RunningSink, publisher: RunningPublisher, seconds: float) -> Iterator[Sample]:
    """Yield a sample after each of the intervals that the time has."""
    began = time.monotonic()
    for number in range(max(MIN_SAMPLES, int(_minutes(bench) * 60 / seconds))):
        time.sleep(max(0.0, began + (number + 1) * seconds - time.monotonic()))
        sink.report()  # so that it does not keep them all
        sizes = {f"memory of {name}": sum(map(pss_bytes, tree)) for name, tree in cpu_by_tree(bench.roots()).items()}
        sizes |= {str(name): int(str(size)) for name, size in bench.ask(TABLES)}
        shown = ", ".join(f"{name} {size >> 10:,}" for name, size in sizes.items())
        bench.say(f"{number + 1:4}: {sink.delivered} delivered; KB: {shown}")
        yield Sample(read_counters(bench, publisher), sizes)


def run(bench: Bench, *, subscribers: int = 100, sample_seconds: float = SAMPLE_SECONDS) -> Outcome:
    """Publish half of what topic.dense can do, for --minutes; compare memory and the hot tables."""
    if not (rate := bench.options.rate):
        options = replace(bench.options, seconds=min(bench.options.seconds, MAX_MEASURING))
        rate = topic.run_dense(replace(bench, options=options), subscribers=subscribers).value(DELIVERED) / 2
    bench.say(f"soak: {rate:.0f} deliveries a second for {_minutes(bench):g} minutes")
    load = topic.dense_load(subscribers)
    with running_sink() as sink:
        event_types, _ = load.subscribe(bench, sink)
        with publishing(bench, event_types, Pace(subscribers, per_second=rate), sink) as publisher:
            samples = list(sampled(bench, sink, publisher, sample_seconds))
            published = publisher.stop()
            expected = load.expected(published)
            unfinished = bench.unfinished(sink, sum(expected.values()))
        wrong = [*unfinished, *publishing_problems(published), *sink.report().problems(expected)]
    costs = {}
    for when, quarter in QUARTERS.items():
        first, last = (samples[len(samples) * number // 4 - 1].moment for number in (quarter - 1, quarter))
        found = Watched(first, last, published)
        costs[f", {when}"] = Outcome([Figure(DELIVERED, found.rate, "/s"), *found.costs()])
    return Outcome([Figure("published", rate, "/s"), *merged(costs).figures, *_sizes(samples)], wrong)


def _sizes(samples: Sequence[Sample]) -> Iterator[Figure]:
    """Yield the size of each service and table in the end, and how much it has grown."""
    for name in samples[0].sizes:
        sizes = [sample.sizes[name] for sample in samples]
        early, late = (
            max(1.0, mean(sizes[len(sizes) * (quarter - 1) // 4 : len(sizes) * quarter // 4]))
            for quarter in QUARTERS.values()
        )
        target = at_most(max(GROWTH, 1 + FEW_BYTES / early))
        yield Figure(name, late / 1e6, "MB")
        yield Figure(f"growth of {name}", late / early, "times", target=target)
