"""`topic.retrying` and `topic.diverted`: beside deliveries that always fail, and beside endpoints that hang.

Those are of the same subscribers, in their retry lanes.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

from benchmarks.bench import Bench
from benchmarks.connection import Connection, body_of
from benchmarks.figures import Figure, Outcome, at_least, at_most, merged, ratio
from benchmarks.measure import DELIVERED, Beside, Load, compared, measured
from benchmarks.publisher import Pace
from benchmarks.receipts import Log, Receipts
from benchmarks.scenarios.topic import CONNECTIONS, dense_load
from benchmarks.sink import FAILING, HANGING, RunningSink
from broker_project.stack.load.wait import wait_until

RETRY_LANE_SECONDS: Final = 300.0
"""How long it may take until all have failed once."""
WORKFRONT_SECONDS: Final = 600.0
"""Between two attempts of a delivery, as in the preset `Workfront`: of 100,000 some 170 a second are attempted."""
DUE_SECONDS: Final = 0.1
"""So short that all are always due: the least that a policy allows."""
RETRIED: Final = "retried in retry lanes"
PARTS: Final = 3
"""Parts of the measurement, in each of which something has to be retried."""
ROUNDS: Final = 4
AN_HOUR: Final = 3600.0
DIVERTED_SECONDS: Final = 60.0
"""How long it may take until each hanging endpoint has cost its time-out."""

IN_RETRY_LANE: Final = """
    SELECT count(*) FROM delivery_open WHERE closed_on = '9999-12-31' AND subscription_id = ANY (%s)
       AND line_id IN (SELECT id FROM delivery_line WHERE lane = 'retry')
"""
SPREAD: Final = """
    WITH spread AS (
      UPDATE delivery_open SET due_at = clock_timestamp() + random() * make_interval(secs => %s)
       WHERE closed_on = '9999-12-31' AND subscription_id = ANY (%s) AND waits_for = 'RETRY' RETURNING 1)
    SELECT count(*) FROM spread
"""

DIVERTED: Final = "SELECT count(*) FROM subscriptions_subscription WHERE id = ANY (%s) AND diverted_since IS NOT NULL"

KINDS: Final = ("redirect", "throttled", "client_error", "unavailable", "server_error", "no_answer")
POLICY: Final[dict[str, object]] = {
    **{f"on_{kind}": "RETRY_LANE" for kind in KINDS},
    "initial_delay_seconds": AN_HOUR,
    "factor": 1.0,
    "max_delay_seconds": AN_HOUR,
    "jitter": 0.0,
    "max_retries": 1000,
    "on_exhausted": "FAIL",
}
"""As `Workfront`, but with an hour between attempts and practically no limit of retries."""


@contextlib.contextmanager
def retry_lanes_filled(
    bench: Bench, sink: RunningSink, names: Sequence[str], *, count: int, pause_seconds: float
) -> Iterator[None]:
    """Fill the retry lanes with deliveries that are retried at this interval, evenly spread; cancel them in the end."""
    policy = bench.api.create("retry-policies", name=f"bench-{bench.create_event_type()}", **POLICY)["name"]
    ids = _subscribed(bench, sink.endpoint(FAILING), names, policy=policy, count=count // len(names))
    wait_until(
        lambda: bench.ask(IN_RETRY_LANE, ids) == [(count // len(names) * len(names),)],
        RETRY_LANE_SECONDS,
        saying=lambda: f"{bench.ask(IN_RETRY_LANE, ids)} of {count} deliveries are in the retry lanes",
    )
    pause = {"initial_delay_seconds": pause_seconds, "max_delay_seconds": pause_seconds}
    bench.api.change(f"retry-policies/{policy}", **pause)
    bench.ask(SPREAD, pause_seconds, ids)
    yield
    _cancel(bench, ids)


@contextlib.contextmanager
def hanging_endpoints(bench: Bench, sink: RunningSink, names: Sequence[str], *, count: int) -> Iterator[None]:
    """Give each subscriber a subscription under `Workfront` to an endpoint that hangs, and `count` messages for it.

    Each has cost its time-out before.
    """
    ids = _subscribed(bench, sink.endpoint(HANGING), names, policy="Workfront", count=count)
    wait_until(
        lambda: bench.ask(DIVERTED, ids) == [(len(names),)],
        DIVERTED_SECONDS,
        saying=lambda: f"{bench.ask(DIVERTED, ids)} of {len(names)} subscriptions are diverted",
    )
    yield
    _cancel(bench, ids)


def _subscribed(bench: Bench, endpoint: str, names: Sequence[str], *, policy: str, count: int) -> list[int]:
    """Let subscribers subscribe to an event type of which `count` messages are published; return the ids."""
    event_type = bench.create_event_type()
    terms = {"event_type": event_type, "endpoint": endpoint, "retry_policy": policy}
    ids = [bench.api.create("subscriptions", subscriber=name, **terms)["id"] for name in names]
    with contextlib.closing(Connection(bench.stack.web, bench.publisher_key())) as publisher:
        for number in range(count):
            publisher.publish(event_type, body_of(0, number, 0))
    return ids


def _cancel(bench: Bench, ids: Sequence[int]) -> None:
    """Cancel what waits for these subscriptions, so that the next measurement has nothing of it beside it."""
    for subscription_id in ids:
        bench.api.send("POST", f"subscriptions/{subscription_id}/pause")
        bench.api.send("POST", f"subscriptions/{subscription_id}/cancel-deliveries")


def run_diverted(bench: Bench, *, subscribers: int = 20, per_second: float = 100, count: int = 100) -> Outcome:
    """Publish 100 single messages a second over 20 subscribers: alone, and beside an endpoint of each that hangs."""
    load = Load(subscribers, Pace(per_second=per_second, connections=CONNECTIONS))
    variants: dict[str, Beside | None] = {"alone": None, "beside": partial(hanging_endpoints, count=count)}
    outcome = merged(
        {
            f", {what}": measured(bench, load, log=Log(numbers_used=int(beside is not None)), beside=beside).latency()
            for what, beside in variants.items()
        }
    )
    times = ratio(outcome.value("delivered p95, beside"), outcome.value("delivered p95, alone"))
    return replace(
        outcome, figures=[*outcome.figures, Figure("p95, beside / alone", times, "times", target=at_most(2))]
    )


def run(
    bench: Bench,
    *,
    subscribers: int = 100,
    count: int = 100_000,
    pause_seconds: float = WORKFRONT_SECONDS,
    parts: int = PARTS,
    rounds: int = ROUNDS,
) -> Outcome:
    """Publish as topic.dense, beside retry lanes: empty, with 100,000 deliveries that wait, and with as many due."""
    load = dense_load(subscribers)
    beside = partial(_beside, bench, load, count=count, parts=parts)
    variants: dict[str, Callable[[], Outcome]] = {
        "empty retry lanes": lambda: measured(bench, load).throughput(),
        "waiting retry lanes": partial(beside, pause_seconds=pause_seconds),
    }
    outcome = compared(variants, at_least(0.9), shown=(DELIVERED, RETRIED), rounds=rounds)
    due = beside(pause_seconds=DUE_SECONDS)  # last, because it leaves bloated tables behind
    figures = [Figure(f"{what}, due retry lanes", due.value(what), "/s") for what in (DELIVERED, RETRIED)]
    return Outcome([*outcome.figures, *figures], [*outcome.problems, *due.problems], outcome.void or due.void)


def _beside(bench: Bench, load: Load, *, count: int, pause_seconds: float, parts: int) -> Outcome:
    """Measure the load beside `count` deliveries in retry lanes."""
    log = Log(numbers_used=count // load.subscribers)
    found = measured(bench, load, log=log, beside=partial(retry_lanes_filled, count=count, pause_seconds=pause_seconds))
    outcome, begin, end = found.throughput(), found.watched.begin.at, found.watched.end.at
    retried = Figure(RETRIED, found.receipts.failed_between(begin, end) / found.watched.seconds, "/s")
    idle = lulls(found.receipts, begin, end, parts)
    return Outcome([*outcome.figures, retried], [*outcome.problems, *idle], outcome.void)


def lulls(receipts: Receipts, begin: float, end: float, parts: int) -> list[str]:
    """Return in which parts of the time nothing was retried, which would make the comparison meaningless."""
    bounds = [begin + (end - begin) * part / parts for part in range(parts + 1)]
    idle = [number for number, part in enumerate(pairwise(bounds), 1) if not receipts.failed_between(*part)]
    return [f"no delivery was retried in part {number} of {parts} of the time" for number in idle]
