"""What there is at regular moments: deliveries, memory and CPU time of every service, sizes of the hot tables."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.bench import Bench
from benchmarks.children import RunningSink
from benchmarks.processes import Usage, usage

FEWEST: Final = 4
"""Samples: one a quarter."""

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
