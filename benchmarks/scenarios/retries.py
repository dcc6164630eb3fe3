"""`topic.retrying`: as `topic.dense`, beside deliveries in the retry lanes of the same subscribers that always fail."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from benchmarks.bench import Bench
from benchmarks.connection import Connection, body_of
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.measure import DELIVERED, Load, compared, measured
from benchmarks.receipts import Log, Receipts
from benchmarks.scenarios.topic import dense_load
from benchmarks.sink import FAILING, RunningSink
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
    event_type = bench.create_event_type()
    policy = bench.api.create("retry-policies", name=f"bench-{event_type}", **POLICY)["name"]
    terms = {"event_type": event_type, "endpoint": sink.endpoint(FAILING), "retry_policy": policy}
    ids = [bench.api.create("subscriptions", subscriber=name, **terms)["id"] for name in names]
    with contextlib.closing(Connection(bench.stack.web, bench.publisher_key())) as publisher:
        for number in range(count // len(names)):
            publisher.publish(event_type, body_of(0, number, 0))
    wait_until(
        lambda: bench.ask(IN_RETRY_LANE, ids) == [(count // len(names) * len(names),)],
        RETRY_LANE_SECONDS,
        saying=lambda: f"{bench.ask(IN_RETRY_LANE, ids)} of {count} deliveries are in the retry lanes",
    )
    pause = {"initial_delay_seconds": pause_seconds, "max_delay_seconds": pause_seconds}
    bench.api.change(f"retry-policies/{policy}", **pause)
    bench.ask(SPREAD, pause_seconds, ids)
    yield
    for subscription_id in ids:  # so that the next measurement has nothing of it beside it
        bench.api.send("POST", f"subscriptions/{subscription_id}/pause")
        bench.api.send("POST", f"subscriptions/{subscription_id}/cancel-deliveries")


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
