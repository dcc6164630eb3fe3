"""`topic.*` and `scripts`: ordered lines, from many subscribers as fast as possible to one message for a thousand."""

import math
from collections import defaultdict
from dataclasses import replace
from typing import Final

from benchmarks.bench import Bench
from benchmarks.connection import KILOBYTE, order_of
from benchmarks.figures import Figure, Outcome, at_least, at_most, merged, ratio
from benchmarks.measure import DELIVERED, Load, compared, measured
from benchmarks.publisher import Pace
from benchmarks.receipts import NANOSECONDS, KeyLog
from benchmarks.sink import NOT_FOUND

BATCHES_IN_FLIGHT: Final = 40
CONNECTIONS: Final = 8
"""Of publishers that keep to a timetable."""
QUICK_SCRIPT: Final = "$outmessage = $inmessage"
HANGING_SECONDS: Final = 20.0
"""A request times out after 15 s: hanging ones are then retried, too."""
ORDERS: Final = tuple(order_of(int(1024 * 20 ** (number / 96))) for number in range(97))
"""From 1 to 20 KB, each 3 % larger than the one before."""
TRACE: Final = b',"headers":{"X-Request-Id":"%(number)d","traceparent":"00-%(number)032x-%(number)016x-01"}'


def dense_load(subscribers: int = 100) -> Load:
    """Return batches of one message for each subscriber, as fast as they go."""
    return Load(subscribers, Pace(per_call=subscribers, window=BATCHES_IN_FLIGHT * subscribers))


def run_dense(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish batches of a message for each of 100 subscribers as fast as they go."""
    return measured(bench, dense_load(subscribers)).throughput(at_least(6_000))


def run_real(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish as topic.dense, orders of 1 to 20 KB of nested JSON, each with headers of its own."""
    load = dense_load(subscribers)
    return measured(bench, replace(load, pace=replace(load.pace, rests=ORDERS, added=TRACE))).throughput()


def run_single(bench: Bench, *, per_call: int = 100) -> Outcome:
    """Publish batches of 100 to one subscriber as fast as they go."""
    return measured(bench, Load(1, Pace(per_call, window=20 * per_call))).throughput(at_least(1_200))


def run_keyed(bench: Bench, *, keys: int = 1_000, slow: int = 100, delay_seconds: float = 0.1) -> Outcome:
    """Publish to one keyed subscriber whose endpoint takes 100 ms, in 1,000 keys, of which 100 take a second."""
    rests = [b'"key":"%04d",%s' % (number, KILOBYTE) for number in range(keys)]
    load = Load(1, Pace(per_call=100, window=20 * keys, rests=rests), delay_seconds=delay_seconds, slow_keys=slow)
    return measured(bench, load, log=KeyLog()).throughput(at_least(2_500))


def run_latency(bench: Bench, *, subscribers: int = 20, per_second: float = 200) -> Outcome:
    """Publish 200 single messages a second, evenly over 20 subscribers."""
    load = Load(subscribers, Pace(per_second=per_second, connections=CONNECTIONS))
    return measured(bench, load).latency({"delivered p95": at_most(40), "accepted p95": at_most(15)})


def run_hanging(
    bench: Bench,
    *,
    subscribers: int = 300,
    hanging: int = 50,
    per_second: float = 100,
    min_seconds: float = HANGING_SECONDS,
) -> Outcome:
    """Publish 100 single messages a second over 300 subscribers; measure those that answer, all but 50."""
    options = replace(bench.options, seconds=max(bench.options.seconds, min_seconds))
    pace = Pace(per_second=per_second, connections=CONNECTIONS)
    load = Load(subscribers, pace, hanging=hanging, is_cold=True)
    return measured(replace(bench, options=options), load).latency({"delivered p99": at_most(300)})


def run_scripts(bench: Bench, *, subscribers: int = 100, hostile: int = 50, per_second: float = 100) -> Outcome:
    """Publish 100 single messages a second over 100 subscribers, alone and beside 50 with endless scripts.

    Then all of the 100 have a quick script. Deliveries to the others are held or still waiting in the end.
    """
    outcomes = {}
    variants = (("alone", "", 0), ("beside", "", hostile), ("scripted, beside", QUICK_SCRIPT, hostile))
    for what, script, beside in variants:
        pace = Pace(per_second=per_second / subscribers * (subscribers + beside), connections=CONNECTIONS)
        outcomes[f", {what}"] = measured(bench, Load(subscribers, pace, script=script, hostile=beside)).latency()
    outcome = merged(outcomes)
    times = ratio(outcome.value("delivered p99, beside"), outcome.value("delivered p99, alone"))
    return replace(
        outcome, figures=[*outcome.figures, Figure("p99, beside / alone", times, "times", target=at_most(3))]
    )


def run_rejected(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish as topic.dense, alternately to endpoints that answer 204 and to endpoints that answer 404."""
    load = dense_load(subscribers)
    variants = {
        "204": lambda: measured(bench, load).throughput(),
        "404": lambda: measured(bench, replace(load, answer=NOT_FOUND)).throughput(),
    }
    return compared(variants, at_least(0.9), shown=(DELIVERED, "CPU of workers", "CPU of postgres"))


def run_fanout(bench: Bench, *, subscribers: int = 1_000) -> Outcome:
    """Publish a message to 1,000 subscribers, and the next when it has arrived everywhere."""
    found = measured(bench, Load(subscribers, Pace(window=subscribers, connections=1, fan_out=subscribers)))
    last: defaultdict[int, float] = defaultdict(float)
    for sent, at in zip(found.receipts.sent, found.receipts.at, strict=True):
        last[sent] = max(last[sent], (at - sent) / NANOSECONDS)
    seconds = sorted(last.values()) or [math.inf]
    figures = [
        Figure(f"to the last, {what}", value, "s", ratio(subscribers, found.bare), at_most(0.6))
        for what, value in (("median", seconds[len(seconds) // 2]), ("worst", seconds[-1]))
    ]
    outcome = found.throughput()
    return replace(outcome, figures=[*figures, *outcome.figures])
