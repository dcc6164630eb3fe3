"""`topic.fanout`: one message for a thousand subscribers, from the call to the last receipt."""

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks import bench as benchmarks_bench
from benchmarks.bench import Bench
from benchmarks.children import RunningSink, running_sink
from benchmarks.connection import Connection, body_of
from benchmarks.figures import Figure, Outcome, at_least, at_most
from benchmarks.publisher import ACCEPTED
from benchmarks.receipts import Receipts, problems
from benchmarks.sink import NOT_FOUND, TAKEN
from benchmarks.throughput import DELIVERED, Load, compared, measure, void
from benchmarks.timing import Timetable, measure_latency

DENSE: Final = "topic.dense"
DENSE_BATCHES: Final = 40

SINGLE: Final = "topic.single"
SINGLE_BATCHES: Final = 20

LATENCY: Final = "topic.latency"
LATENCY_TARGETS: Final = {"delivered p95": at_most(40), "accepted p95": at_most(15)}

HANGING: Final = "topic.hanging"
HANGING_TARGETS: Final = {"delivered p99": at_most(300)}
MIN_SECONDS: Final = 20.0
"""A request is given up after 15 s: what hangs has then been tried again too."""

REJECTED: Final = "topic.rejected"
REJECTED_TARGET: Final = at_least(0.9)
BATCHES_UNDER_WAY: Final = 40
SHOWN: Final = (DELIVERED, "CPU of workers", "CPU of postgres")

FANOUT: Final = "topic.fanout"
FANOUT_TARGET: Final = at_most(0.6)
STREAM: Final = 0


def run_dense(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish batches of one message for each subscriber."""
    window = DENSE_BATCHES * subscribers
    return measure(bench, Load(DENSE, subscribers, per_call=subscribers, window=window, target=at_least(6_000)))


def run_single(bench: Bench, *, per_call: int = 100) -> Outcome:
    """Publish batches to one line."""
    window = SINGLE_BATCHES * per_call
    return measure(bench, Load(SINGLE, 1, per_call=per_call, window=window, target=at_least(1_200)))


def run_latency(bench: Bench, *, subscribers: int = 20, per_second: float = 200) -> Outcome:
    """Publish singly and evenly over some subscribers."""
    return measure_latency(bench, Timetable(LATENCY, subscribers, per_second, LATENCY_TARGETS))


def run_hanging(
    bench: Bench,
    *,
    subscribers: int = 300,
    hanging: int = 50,
    per_second: float = 100,
    min_seconds: float = MIN_SECONDS,
) -> Outcome:
    """Publish singly and evenly over all; measure those that answer."""
    seconds = max(bench.options.seconds, min_seconds)
    long = dataclasses.replace(bench, options=dataclasses.replace(bench.options, seconds=seconds))
    return measure_latency(long, Timetable(HANGING, subscribers, per_second, HANGING_TARGETS, hanging, is_cold=True))


def run_rejected(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish as `topic.dense`, to endpoints that answer 204 and to such that answer 404, by turns."""
    load = Load(REJECTED, subscribers, subscribers, BATCHES_UNDER_WAY * subscribers, target=at_least(0))
    variants = {
        "204": partial(measure, bench, load, answer=TAKEN),
        "404": partial(measure, bench, load, answer=NOT_FOUND),
    }
    return compared(REJECTED, variants, REJECTED_TARGET, shown=SHOWN)


@dataclass(frozen=True, slots=True)
class Round:
    """What became of one message."""

    unfinished: Sequence[str]
    receipts: Receipts

    def seconds(self) -> float:
        """Return the time to the last receipt."""
        return max(self.receipts.seconds(), default=math.inf)


def run_fanout(bench: Bench, *, subscribers: int = 1_000, times: int = 10) -> Outcome:
    """Publish one message after the other, each when the one before has arrived everywhere; the first warms up."""
    with running_sink() as sink:
        (event_type,) = benchmarks_bench.event_types(bench.api, 1)
        benchmarks_bench.subscribe(bench.api, sink, [event_type] * subscribers)
        publisher = Connection(bench.stack.web, benchmarks_bench.publisher_key(bench.api))
        rounds = [_round(bench, sink, publisher, event_type, number + 1, subscribers) for number in range(times + 1)]
        publisher.close()
        bare = sink.bare_rate(rounds[-1].receipts.example, bench.options.bare_seconds)
    seconds = sorted(one.seconds() for one in rounds[1:])
    wanted = {(subscriber, STREAM): times + 1 for subscriber in range(subscribers)}
    wrong = [text for one in rounds for text in one.unfinished] + [*problems(rounds[-1].receipts, wanted)]
    return Outcome(list(_figures(seconds, subscribers / bare)), wrong, void(subscribers / seconds[0], bare))


def _round(
    bench: Bench, sink: RunningSink, publisher: Connection, event_type: str, number: int, subscribers: int
) -> Round:
    """Publish one message; return once nothing of it is open."""
    body = body_of(STREAM, number, time.monotonic_ns())
    publisher.post(f"/api/v1/events/{event_type}".encode(), body, expected=ACCEPTED)
    return Round(bench.unfinished(sink, number * subscribers), sink.report())


def _figures(seconds: Sequence[float], bare: float) -> Iterator[Figure]:
    yield Figure(FANOUT, "to the last, median", seconds[len(seconds) // 2], "s", bare, FANOUT_TARGET)
    yield Figure(FANOUT, "to the last, worst", seconds[-1], "s", bare, FANOUT_TARGET)
