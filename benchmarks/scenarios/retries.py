"""Deliveries in the retry lines of subscribers, that fail whenever they are tried, for as long as they are wanted."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks import arranging
from benchmarks.answers import FAILING
from benchmarks.bench import Bench
from benchmarks.children import RunningSink
from benchmarks.connection import Connection
from benchmarks.publisher import ACCEPTED
from benchmarks.wire import body_of

STREAM: Final = 0
LOOK_SECONDS: Final = 0.1
APART_SECONDS: Final = 300.0
"""How long it may take until all have failed once."""
OK: Final = 200

AN_HOUR: Final = 3600.0
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
"""As `Workfront`, but an hour long, and without an end in sight."""
OPEN_APART: Final = """
    SELECT count(*) FROM delivery_open WHERE closed_on = '9999-12-31' AND subscription_id = ANY (%s)
       AND line_id IN (SELECT id FROM delivery_line WHERE lane = 'retry')
"""
PAUSE: Final = """
    UPDATE subscriptions_retrypolicy SET initial_delay_seconds = %s, max_delay_seconds = %s WHERE name = %s RETURNING id
"""
SPREAD: Final = """
    WITH spread AS (
      UPDATE delivery_open SET due_at = clock_timestamp() + random() * make_interval(secs => %s)
       WHERE closed_on = '9999-12-31' AND subscription_id = ANY (%s) AND due_at IS NOT NULL RETURNING 1)
    SELECT count(*) FROM spread
"""


@contextlib.contextmanager
def leaving_apart(bench: Bench, sink: RunningSink, names: Sequence[str], *, count: int, pause: float) -> Iterator[None]:
    """Let so many deliveries be tried again, each every `pause` seconds, evenly spread; cancel them in the end."""
    (event_type,) = arranging.event_types(bench.api, 1)
    policy, endpoint = arranging.retry_policy(bench.api, **POLICY), sink.endpoint(FAILING)
    wanted = {"event_type": event_type, "endpoint": endpoint, "retry_policy": policy}
    ids = [bench.api.create("subscriptions", subscriber=name, **wanted)["id"] for name in names]
    publisher = Connection(bench.stack.web, arranging.publisher_key(bench.api))
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
