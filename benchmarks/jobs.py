"""How many jobs a second a QUEUE takes, how evenly senders and endpoints share them, and whether each was done once."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks import bench as benchmarks_bench
from benchmarks.bench import Bench
from benchmarks.children import publishing, running_sink
from benchmarks.figures import Figure, at_most
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import ANYBODY, JobLog, Receipts, problems
from benchmarks.throughput import Moment, awaiting, cpu_figures, publishing_problems, watched

SENDERS: Final = 5
"""As many as there are if the settings say nothing else."""
ENDPOINTS: Final = 3
CONNECTIONS: Final = 4
BALANCE: Final = at_most(1.05)

BY_SENDER: Final = """
    SELECT count(*), count(*) FILTER (WHERE finished_at BETWEEN to_timestamp(%s) AND to_timestamp(%s))
    FROM delivery_delivery delivery
    JOIN delivery_line line ON line.id = delivery.line_id
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
    WHERE event_type.name = %s AND delivery.status = 'DELIVERED' AND closed_on < '9999-12-31'
    GROUP BY line.sender
"""
BOOKS: Final = """
    SELECT count(*), count(*) FILTER (WHERE winners = 1) FROM (
      SELECT message_id, count(*) FILTER (WHERE delivery.status = 'DELIVERED') AS winners
      FROM delivery_delivery delivery
      JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
      JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
      WHERE event_type.name = %s GROUP BY 1) AS job
"""


@dataclass(frozen=True, slots=True)
class JobLoad:
    """What is published to one group of endpoints."""

    name: str
    per_call: int
    window: int
    """Jobs under way at most."""
    delay: float = 0.0
    """Seconds that an endpoint takes."""


@dataclass(frozen=True, slots=True)
class MeasuredJobs:
    """What became of it."""

    rate: float
    """Jobs a second."""
    bare: float
    """The same without a broker; 0 where endpoints take their time."""
    figures: Sequence[Figure]
    problems: Sequence[str]


def measure_jobs(bench: Bench, load: JobLoad) -> MeasuredJobs:
    """Keep the senders of a QUEUE busy; check every job at the endpoints and in the books."""
    with running_sink(log=JobLog(), delay=load.delay) as sink:
        (event_type,) = benchmarks_bench.event_types(bench.api, 1, kind="QUEUE")
        benchmarks_bench.subscribe(bench.api, sink, [event_type] * ENDPOINTS)
        key = benchmarks_bench.publisher_key(bench.api)
        plan = Plan(bench.stack.web, key, [event_type], CONNECTIONS, load.per_call, window=load.window)
        with publishing(plan, sink) as publisher:
            begin, end = watched(bench, sink, publisher)
            published = publisher.stop()
            wrong = bench.unfinished(sink, sum(_wanted(published).values()))
        receipts = sink.report()
        goes = receipts.example and not load.delay
        bare = sink.bare_rate(receipts.example, bench.options.bare_seconds) if goes else 0.0
    wrong += [*publishing_problems(published), *problems(receipts, _wanted(published))]
    wrong += _unlike_the_books(bench, event_type, sum(_wanted(published).values()))
    shares = [*_of_senders(bench, load.name, event_type, begin, end), *_of_endpoints(load.name, receipts)]
    busy = Figure(load.name, "publishers awaiting answers", awaiting(published, begin, end), "% of time")
    rate = (end.delivered - begin.delivered) / (end.at - begin.at)
    return MeasuredJobs(rate, bare, [*shares, busy, *cpu_figures(load.name, begin, end)], wrong)


def _wanted(published: Sequence[Published]) -> dict[tuple[int, int], int]:
    return {(ANYBODY, stream.stream): sum(stream.counts) for stream in published}


def _unlike_the_books(bench: Bench, event_type: str, jobs: int) -> list[str]:
    """Say how many jobs do not stand in the books as DELIVERED, once."""
    ((known, done_once),) = bench.ask(BOOKS, event_type)
    return [] if known == done_once == jobs else [f"of {jobs} jobs {known} are known and {done_once} DELIVERED once"]


def _of_senders(bench: Bench, name: str, event_type: str, begin: Moment, end: Moment) -> Iterator[Figure]:
    """Yield how unevenly the senders worked: over all, and while it was measured, when some may be ahead of others."""
    since_1970 = time.time() - time.monotonic()
    found = bench.ask(BY_SENDER, begin.at + since_1970, end.at + since_1970, event_type)
    missing = [(0, 0)] * (SENDERS - len(found))
    whole, measured = zip(*found, *missing, strict=True)
    yield Figure(name, "senders, max / mean", _unevenness(whole), "times", target=BALANCE)
    yield Figure(name, "senders, max / mean, measured", _unevenness(measured), "times")


def _unevenness(counts: Sequence[object]) -> float:
    jobs = [int(str(count)) for count in counts]
    return max(jobs) / max(1.0, statistics.mean(jobs))


def _of_endpoints(name: str, receipts: Receipts) -> Iterator[Figure]:
    jobs = Counter(receipts.subscriber)
    for endpoint in range(ENDPOINTS):
        yield Figure(name, f"share of endpoint {endpoint + 1}", 100 * jobs[endpoint] / max(1, jobs.total()), "%")
