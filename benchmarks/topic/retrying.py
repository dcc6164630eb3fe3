"""`topic.retrying`: what deliveries that are tried again apart do to those that are sent for the first time."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from benchmarks import arranging
from benchmarks.bench import Bench
from benchmarks.children import RunningSink
from benchmarks.connection import Connection
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.publisher import ACCEPTED
from benchmarks.receipts import Log
from benchmarks.sink import FAILING
from benchmarks.throughput import Load, measure
from benchmarks.wire import body_of

NAME: Final = "topic.retrying"
TARGET: Final = at_least(0.9)
BATCHES_UNDER_WAY: Final = 40
STREAM: Final = 0
LOOK_SECONDS: Final = 0.1
APART_SECONDS: Final = 300.0
"""How long it may take until all have failed once."""

KINDS: Final = ("redirect", "throttled", "client_error", "unavailable", "server_error", "no_answer")
WORKFRONT: Final[dict[str, object]] = {
    **{f"on_{kind}": "RETRY_APART" for kind in KINDS},
    "first_pause": 3600.0,
    "factor": 1.0,
    "longest_pause": 3600.0,
    "jitter": 0.0,
    "most_retries": 1000,
    "in_the_end": "FAIL",
}
"""As that preset, but an hour long and without an end in sight."""
OPEN_APART: Final = """
    SELECT count(*) FROM delivery_open WHERE closed_on = '9999-12-31' AND subscription_id = ANY (%s)
       AND line_id IN (SELECT id FROM delivery_line WHERE lane = 'retry')
"""
MAKE_DUE: Final = """
    WITH due AS (
      UPDATE delivery_open SET due_at = clock_timestamp()
       WHERE closed_on = '9999-12-31' AND subscription_id = ANY (%s) AND due_at IS NOT NULL RETURNING 1)
    SELECT count(*) FROM due
"""


def run(bench: Bench, *, subscribers: int = 100, apart: int = 100_000) -> Outcome:
    """Publish as `topic.dense`: with nothing apart, with so many waiting for an hour, and with so many that are due."""
    load = Load(NAME, subscribers, subscribers, BATCHES_UNDER_WAY * subscribers, target=at_least(0))
    log = Log(numbers_used=apart // subscribers)
    outcomes = {
        "nothing apart": measure(bench, load),
        "waiting apart": measure(bench, load, log=log, prepare=partial(_leave_apart, count=apart, is_due=False)),
        "due apart": measure(bench, load, log=log, prepare=partial(_leave_apart, count=apart, is_due=True)),
    }
    rates = {what: outcome.figures[0].value for what, outcome in outcomes.items()}
    figures = [Figure(NAME, f"delivered, {what}", rate, "/s") for what, rate in rates.items()]
    without = max(1e-9, rates["nothing apart"])
    figures += [
        Figure(NAME, f"{what} / nothing", rates[what] / without, "times", target=TARGET)
        for what in ("waiting apart", "due apart")
    ]
    void = next((outcome.void for outcome in outcomes.values() if outcome.void), "")
    return Outcome(figures, [text for outcome in outcomes.values() for text in outcome.problems], void)


def _leave_apart(bench: Bench, sink: RunningSink, names: Sequence[str], *, count: int, is_due: bool) -> None:
    """Give each subscriber as many deliveries in its retry line, from an endpoint that fails at once."""
    (event_type,) = arranging.event_types(bench.api, 1)
    policy, endpoint = arranging.retry_policy(bench.api, **WORKFRONT), sink.endpoint(FAILING)
    wanted = {"event_type": event_type, "endpoint": endpoint, "retry_policy": policy}
    ids = [bench.api.create("subscriptions", subscriber=name, **wanted)["id"] for name in names]
    publisher = Connection(bench.stack.web, arranging.publisher_key(bench.api))
    for number in range(count // len(names)):
        publisher.post(f"/api/v1/events/{event_type}".encode(), body_of(STREAM, number, 0), expected=ACCEPTED)
    publisher.close()
    _wait_until_apart(bench, ids, count // len(names) * len(names))
    if is_due:
        bench.ask(MAKE_DUE, ids)


def _wait_until_apart(bench: Bench, subscription_ids: Sequence[object], count: int) -> None:
    until = time.monotonic() + APART_SECONDS
    while time.monotonic() < until:
        ((found,),) = bench.ask(OPEN_APART, [*subscription_ids])
        if found == count:
            return
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"{found} of {count} deliveries were apart after {APART_SECONDS:g} s")
