"""`topic.*`: ordered lines, from many subscribers as fast as possible to one message for a thousand."""

import dataclasses
import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from benchmarks.bench import Bench, create_event_types, create_publisher, subscribe
from benchmarks.connection import Connection, body_of
from benchmarks.figures import Figure, Outcome, Target, at_least, at_most
from benchmarks.measure import DELIVERED, Load, compared, measure_latency, measure_throughput, void
from benchmarks.publisher import ACCEPTED
from benchmarks.receipts import problems
from benchmarks.sink import NOT_FOUND, TAKEN, running_sink

DENSE: Final = "topic.dense"
SINGLE: Final = "topic.single"
LATENCY: Final = "topic.latency"
HANGING: Final = "topic.hanging"
REJECTED: Final = "topic.rejected"
FANOUT: Final = "topic.fanout"

BATCHES_IN_FLIGHT: Final = 40
CONNECTIONS: Final = 8
"""Of publishers that keep to a timetable."""
HANGING_SECONDS: Final = 20.0
"""A request times out after 15 s: hanging ones are then retried, too."""
FANOUT_TARGET: Final = at_most(0.6)
STREAM: Final = 0


def dense_load(name: str, subscribers: int, targets: Mapping[str, Target] | None = None) -> Load:
    """Return batches of one message for each subscriber, as fast as they go."""
    return Load(name, subscribers, subscribers, window=BATCHES_IN_FLIGHT * subscribers, targets=targets or {})


def run_dense(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish batches of one message for each subscriber."""
    targets = {DELIVERED: at_least(6_000)}
    return measure_throughput(bench, dense_load(DENSE, subscribers, targets))


def run_single(bench: Bench, *, per_call: int = 100) -> Outcome:
    """Publish batches to one line."""
    targets = {DELIVERED: at_least(1_200)}
    return measure_throughput(bench, Load(SINGLE, 1, per_call, window=20 * per_call, targets=targets))


def run_latency(bench: Bench, *, subscribers: int = 20, per_second: float = 200) -> Outcome:
    """Publish singly and evenly over some subscribers."""
    targets = {"delivered p95": at_most(40), "accepted p95": at_most(15)}
    load = Load(LATENCY, subscribers, per_second=per_second, connections=CONNECTIONS, targets=targets)
    return measure_latency(bench, load)


def run_hanging(
    bench: Bench,
    *,
    subscribers: int = 300,
    hanging: int = 50,
    per_second: float = 100,
    min_seconds: float = HANGING_SECONDS,
) -> Outcome:
    """Publish singly and evenly over all; measure those that answer."""
    seconds = max(bench.options.seconds, min_seconds)
    long = dataclasses.replace(bench, options=dataclasses.replace(bench.options, seconds=seconds))
    load = Load(
        HANGING,
        subscribers,
        per_second=per_second,
        connections=CONNECTIONS,
        targets={"delivered p99": at_most(300)},
        hanging=hanging,
        is_cold=True,
    )
    return measure_latency(long, load)


def run_rejected(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish as `topic.dense`, alternately to endpoints that answer 204 and to endpoints that answer 404."""
    load = dense_load(REJECTED, subscribers)
    variants = {
        "204": partial(measure_throughput, bench, load, answer=TAKEN),
        "404": partial(measure_throughput, bench, load, answer=NOT_FOUND),
    }
    shown = (DELIVERED, "CPU of workers", "CPU of postgres")
    return compared(REJECTED, variants, at_least(0.9), shown=shown)


def run_fanout(bench: Bench, *, subscribers: int = 1_000, times: int = 10) -> Outcome:
    """Publish one message after the other, each after the one before has arrived everywhere; the first warms up."""
    with running_sink() as sink:
        (event_type,) = create_event_types(bench.api, 1)
        subscribe(bench.api, sink, [event_type] * subscribers)
        publisher = Connection(bench.stack.web, create_publisher(bench.api))
        seconds, unfinished = [], list[str]()
        for number in range(1, times + 2):
            body = body_of(STREAM, number, time.monotonic_ns())
            publisher.post(f"/api/v1/events/{event_type}".encode(), body, expected=ACCEPTED)
            unfinished += bench.unfinished(sink, number * subscribers)
            receipts = sink.report()
            seconds.append(max(receipts.seconds(), default=math.inf))
        publisher.close()
        bare = sink.bare_rate(receipts.example, bench.options.bare_seconds)
    seconds = sorted(seconds[1:])
    wanted = {(subscriber, STREAM): times + 1 for subscriber in range(subscribers)}
    figures = [
        Figure(FANOUT, f"to the last, {what}", value, "s", subscribers / bare, FANOUT_TARGET)
        for what, value in (("median", seconds[len(seconds) // 2]), ("worst", seconds[-1]))
    ]
    wrong = [*unfinished, *problems(receipts, wanted)]
    return Outcome(figures, wrong, void(subscribers / seconds[0], bare))
