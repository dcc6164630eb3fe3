"""Deliveries in the retry lines of subscribers, that fail whenever they are tried, for as long as they are wanted."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from benchmarks import bench as benchmarks_bench
from benchmarks.bench import Bench
from benchmarks.children import RunningSink
from benchmarks.connection import Connection, body_of
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.publisher import ACCEPTED
from benchmarks.receipts import Log, Receipts
from benchmarks.sink import FAILING
from benchmarks.throughput import DELIVERED, Load, compared, measure, measured, outcome_of

STREAM: Final = 0
LOOK_SECONDS: Final = 0.1
APART_SECONDS: Final = 300.0
"""How long it may take until all have failed once."""
OK: Final = 200

AN_HOUR: Final = 3600.0
KINDS: Final = ("redirect", "throttled", "client_error", "unavailable", "server_error", "no_answer")


OPEN_APART: Final = """
    SELECT count(*) FROM delivery_open WHERE closed_on = '9999-12-31' AND subscription_id = ANY (%s)
       AND line_id IN (SELECT id FROM delivery_line WHERE lane = 'retry')
"""
PAUSE: Final = """
    UPDATE subscriptions_retrypolicy SET initial_delay_seconds = %s, max_delay_seconds = %s WHERE name = %s RETURNING id
"""

NAME: Final = "topic.retrying"
TARGET: Final = at_least(0.9)
BATCHES_UNDER_WAY: Final = 40
WORKFRONT_SECONDS: Final = 600.0
"""Between two tries of a delivery, as that preset has it: of 100,000 some 170 a second are tried."""
DUE_SECONDS: Final = 0.1
"""So short that all are due whatever is tried: the least that a policy may say."""
TRIED: Final = "tried again apart"
PARTS: Final = 3
"""Of the time of measuring: in each of them something has to be tried again."""
ROUNDS: Final = 4

POLICY: Final[dict[str, object]] = {
    **{f"on_{kind}": "RETRY_LANE" for kind in KINDS},
    "initial_delay_seconds": AN_HOUR,
    "factor": 1.0,
    "max_delay_seconds": AN_HOUR,
    "jitter": 0.0,
    "max_retries": 1000,
    "on_exhausted": "FAIL",
}
"""As `Workfront`, but an hour long, and without an end in sight."""


SPREAD: Final = """
    WITH spread AS (
      UPDATE delivery_open SET due_at = clock_timestamp() + random() * make_interval(secs => %s)
       WHERE closed_on = '9999-12-31' AND subscription_id = ANY (%s) AND due_at IS NOT NULL RETURNING 1)
    SELECT count(*) FROM spread
"""


@contextlib.contextmanager
def leaving_apart(bench: Bench, sink: RunningSink, names: Sequence[str], *, count: int, pause: float) -> Iterator[None]:
    """Let so many deliveries be tried again, each every `pause` seconds, evenly spread; cancel them in the end."""
    (event_type,) = benchmarks_bench.event_types(bench.api, 1)
    policy, endpoint = benchmarks_bench.retry_policy(bench.api, **POLICY), sink.endpoint(FAILING)
    wanted = {"event_type": event_type, "endpoint": endpoint, "retry_policy": policy}
    ids = [bench.api.create("subscriptions", subscriber=name, **wanted)["id"] for name in names]
    publisher = Connection(bench.stack.web, benchmarks_bench.publisher_key(bench.api))
    for number in range(count // len(names)):
        publisher.post(f"/api/v1/events/{event_type}".encode(), body_of(STREAM, number, 0), expected=ACCEPTED)
    publisher.close()
    _wait_until_apart(bench, ids, count // len(names) * len(names))
    bench.ask(PAUSE, pause, pause, policy)
    bench.ask(SPREAD, pause, ids)
    yield
    _cancel(bench, ids)


def _wait_until_apart(bench: Bench, subscription_ids: Sequence[object], count: int) -> None:
    until = time.monotonic() + APART_SECONDS
    while time.monotonic() < until:
        ((found,),) = bench.ask(OPEN_APART, [*subscription_ids])
        if found == count:
            return
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"{found} of {count} deliveries were apart after {APART_SECONDS:g} s")


def _cancel(bench: Bench, subscription_ids: Sequence[object]) -> None:
    """Pause the subscriptions and cancel what they have, so that the next measuring has nothing of it beside it."""
    bench.api.renew()
    for path in (f"subscriptions/{one}/{what}" for one in subscription_ids for what in ("pause", "cancel-deliveries")):
        bench.api.post(f"/api/v1/{path}".encode(), b"{}", expected=OK)


def run(
    bench: Bench,
    *,
    subscribers: int = 100,
    apart: int = 100_000,
    pause: float = WORKFRONT_SECONDS,
    parts: int = PARTS,
    rounds: int = ROUNDS,
) -> Outcome:
    """Publish as `topic.dense`: beside nothing, beside so many that wait between their tries, and so many all due."""
    load = Load(NAME, subscribers, subscribers, BATCHES_UNDER_WAY * subscribers, target=at_least(0))
    beside = partial(_beside, bench, load, count=apart, parts=parts)
    variants = {"nothing apart": partial(measure, bench, load), "waiting apart": partial(beside, pause=pause)}
    outcome = compared(NAME, variants, TARGET, shown=(DELIVERED, TRIED), rounds=rounds)
    due = beside(pause=DUE_SECONDS)  # at last: it leaves tables behind that have been rewritten again and again
    figures = [Figure(NAME, f"{what}, due apart", due.value(what), "/s") for what in (DELIVERED, TRIED)]
    return Outcome([*outcome.figures, *figures], [*outcome.problems, *due.problems], outcome.void or due.void)


def _beside(bench: Bench, load: Load, *, count: int, pause: float, parts: int) -> Outcome:
    """Measure the load beside so many deliveries that are tried again every so many seconds."""
    log = Log(numbers_used=count // load.subscribers)
    found = measured(bench, load, log=log, beside=partial(leaving_apart, count=count, pause=pause))
    outcome = outcome_of(load, found)
    tried = found.receipts.failed_between(found.begin.at, found.end.at) / found.seconds
    figures = [*outcome.figures, Figure(NAME, TRIED, tried, "/s")]
    idle = lulls(found.receipts, found.begin.at, found.end.at, parts)
    return Outcome(figures, [*outcome.problems, *idle], outcome.void)


def lulls(receipts: Receipts, begin: float, end: float, parts: int) -> list[str]:
    """Say in which parts of the time nothing was tried again: what is measured then is something else."""
    bounds = [begin + (end - begin) * part / parts for part in range(parts + 1)]
    idle = [number for number, part in enumerate(pairwise(bounds), 1) if not receipts.failed_between(*part)]
    return [f"nothing was tried again apart in part {number} of {parts} of the time" for number in idle]
