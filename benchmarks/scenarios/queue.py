"""`queue.*`: jobs a second, how evenly senders and endpoints share them, and whether each was done once."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Outcome, at_least, at_most, ratio
from benchmarks.measure import Load, Measured, measured, void_reason
from benchmarks.publisher import Pace

ENDPOINTS: Final = 3
ENDPOINT_SECONDS: Final = 0.1
"""How long the slow endpoints take."""
SENDERS: Final = 5
MAX_IN_FLIGHT: Final = 16
"""Jobs of each sender. Both are the defaults of the settings."""

OF_EVENT_TYPE: Final = """
    FROM delivery_delivery delivery
    JOIN delivery_line line ON line.id = delivery.line_id
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
    WHERE event_type.name = %s
"""
BY_SENDER: Final = f"""
    SELECT count(*), count(*) FILTER (WHERE finished_at BETWEEN to_timestamp(%s) AND to_timestamp(%s))
    {OF_EVENT_TYPE} AND delivery.status = 'DELIVERED' AND closed_on < '9999-12-31' GROUP BY line.sender
"""
DONE_ONCE: Final = f"""
    SELECT count(*), count(*) FILTER (WHERE winners = 1) FROM (
      SELECT message_id, count(*) FILTER (WHERE delivery.status = 'DELIVERED') AS winners {OF_EVENT_TYPE} GROUP BY 1
    ) AS job
"""


def run_fast(bench: Bench, *, per_call: int = 100) -> Outcome:
    """Publish batches of 100 jobs for three endpoints as fast as they go."""
    found = measured(bench, Load(ENDPOINTS, Pace(per_call, window=40 * per_call), "QUEUE"))
    rate = found.watched.rate
    return _outcome(
        bench, found, [Figure("jobs", rate, "/s", found.bare, at_least(4_000))], void_reason(rate, found.bare)
    )


def run_slow(bench: Bench, *, per_call: int = 50) -> Outcome:
    """Publish more jobs than can be in flight, for three endpoints that take 100 ms each.

    A bare client says nothing here: it would wait as long.
    """
    load = Load(ENDPOINTS, Pace(per_call, window=20 * per_call), "QUEUE", delay_seconds=ENDPOINT_SECONDS)
    found = measured(bench, load)
    rate, allowed = found.watched.rate, SENDERS * MAX_IN_FLIGHT / ENDPOINT_SECONDS
    share = Figure(f"of the {allowed:,.0f}/s allowed", 100 * rate / allowed, "%", target=at_least(70))
    return _outcome(bench, found, [Figure("jobs", rate, "/s"), share])


def _outcome(bench: Bench, found: Measured, speeds: Sequence[Figure], void: str = "") -> Outcome:
    """Check every job in the broker's tables; add how evenly they were shared."""
    (event_type,), jobs = found.event_types, sum(sum(stream.counts) for stream in found.watched.published)
    ((known, done_once),) = bench.ask(DONE_ONCE, event_type)
    wrong = [] if known == done_once == jobs else [f"of {jobs} jobs {known} are known and {done_once} DELIVERED once"]
    figures = [*speeds, *_shares(bench, found, event_type)]
    figures += [found.watched.awaiting(), *found.watched.costs()]
    return Outcome(figures, [*found.problems, *wrong], void)


def _shares(bench: Bench, found: Measured, event_type: str) -> Iterator[Figure]:
    """Yield how unevenly senders worked, in total and during the measurement, and what each endpoint received."""
    since_1970 = time.time() - time.monotonic()
    between = found.watched.begin.at + since_1970, found.watched.end.at + since_1970
    rows = bench.ask(BY_SENDER, *between, event_type)
    missing = [(0, 0)] * (SENDERS - len(rows))
    for what, counts in zip(("", ", measured"), zip(*rows, *missing, strict=True), strict=True):
        jobs = [int(str(count)) for count in counts]
        times, target = ratio(max(jobs), statistics.mean(jobs)), None if what else at_most(1.05)
        yield Figure(f"senders, max / mean{what}", times, "times", target=target)
    received = Counter(found.receipts.subscriber)
    for endpoint in range(ENDPOINTS):
        yield Figure(f"share of endpoint {endpoint + 1}", 100 * ratio(received[endpoint], received.total()), "%")
