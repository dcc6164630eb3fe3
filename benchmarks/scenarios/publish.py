"""`publish.*` and `sync`: one event a request, as most publishers send them."""

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from threading import Event, Thread
from typing import Final
from urllib.parse import urlsplit
from urllib.request import urlopen

from benchmarks.bench import Bench
from benchmarks.connection import TIMEOUT_SECONDS, text_of
from benchmarks.figures import Figure, Outcome, at_least, at_most, merged, percentiles, ratio
from benchmarks.measure import DELIVERED, Load, measured
from benchmarks.processes import spawned
from benchmarks.publisher import Pace
from benchmarks.sink import RunningSink

CONNECTIONS: Final = (16, 64, 256)
PER_SECOND: Final = (200.0, 50.0)
SUBSCRIBERS: Final = 20
IN_FLIGHT: Final = 256
"""So few that a backlog does not grow during the measurement: its publishes would count and its deliveries not."""
AT_ONCE: Final = Pace(window=IN_FLIGHT, connections=CONNECTIONS[0], rests=(text_of(300),))
"""Each request follows the answer to the one before."""
BATCH: Final = 100
BATCHES_IN_FLIGHT: Final = 40
PIPELINING: Final = 200
"""Connections that read nothing."""
PAGE: Final = b"/api/v1/openapi.json"
"""The largest that needs no login."""
AT_A_TIME: Final = 100
PIPELINE_SECONDS: Final = 0.02
HEALTH_SECONDS: Final = 0.1
KEY: Final = b"\r\nIdempotency-Key: event-%(number)d"
CALLERS: Final = 8
RECORDED: Final = """
    SELECT count(*) FILTER (WHERE delivery.status = 'DELIVERED' AND attempt.status_code = 204), count(*)
    FROM delivery_delivery delivery LEFT JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
    WHERE event_type.name = %s
"""


def _throughput(bench: Bench, subscribers: int, paces: Mapping[str, Pace]) -> Outcome:
    """Measure each pace; the names of its figures end with its own."""
    return merged({end: measured(bench, Load(subscribers, pace)).throughput() for end, pace in paces.items()})


def run_single(bench: Bench, *, subscribers: int = SUBSCRIBERS, added: bytes = b"") -> Outcome:
    """Publish single events to 20 subscribers as fast as they go over 16 connections, over 64, and over 256."""
    paces = {
        f"_{count}": replace(AT_ONCE, window=max(IN_FLIGHT, 4 * count), connections=count, added=added)
        for count in CONNECTIONS
    }
    outcome = _throughput(bench, subscribers, paces)
    *fewer, most = (outcome.value(DELIVERED + end) for end in paces)
    share = Figure("delivered_256 : the best of fewer", ratio(most, max(fewer)), "times", target=at_least(0.9))
    return replace(outcome, figures=[*outcome.figures, share])


def run_keyed(bench: Bench, *, subscribers: int = SUBSCRIBERS) -> Outcome:
    """Publish as publish.single, each event with an idempotency key of its own."""
    return run_single(bench, subscribers=subscribers, added=KEY)


def run_steady(bench: Bench, *, subscribers: int = SUBSCRIBERS) -> Outcome:
    """Publish 200 single events a second to 20 subscribers, evenly, and 50."""
    return _throughput(
        bench, subscribers, {f"_{rate:g}": replace(AT_ONCE, window=0, per_second=rate) for rate in PER_SECOND}
    )


def pipeline(control: Connection, web: str) -> None:
    """Run a process that sends requests over many connections, one after the other, and reads no answer."""
    address = urlsplit(web)
    request = b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (PAGE, address.netloc.encode())
    requests = request * AT_A_TIME
    clients: dict[int, tuple[socket.socket | None, int]] = dict.fromkeys(range(PIPELINING), (None, 0))
    """Each with how much of its last request was sent."""
    while not control.poll(PIPELINE_SECONDS):  # it is closed in the end
        for number, (known, sent) in clients.items():
            try:
                client = known or socket.create_connection((address.hostname, address.port))
                client.setblocking(False)
                clients[number] = client, (sent + client.send(requests[sent:])) % len(request)
            except BlockingIOError:
                pass
            except OSError:
                clients[number] = None, 0


@contextmanager
def _pipelining(health: list[float], bench: Bench, _sink: RunningSink, _names: Sequence[str]) -> Iterator[None]:
    """Let 200 connections send requests inside, and note how many seconds a health check took each time."""
    is_over = Event()

    def check_health() -> None:
        while not is_over.wait(HEALTH_SECONDS):
            begun = time.monotonic()
            with urlopen(f"{bench.stack.web}/livez", timeout=TIMEOUT_SECONDS):  # noqa: S310 - our own address # nosec B310
                health.append(time.monotonic() - begun)

    checks = Thread(target=check_health)
    with spawned(pipeline, bench.stack.web):
        checks.start()
        yield
        is_over.set()
        checks.join()


def run_pipelined(bench: Bench, *, subscribers: int = SUBSCRIBERS) -> Outcome:
    """Publish 50 single events a second while 200 connections send request after request and read no answer."""
    health: list[float] = []
    load = Load(subscribers, replace(AT_ONCE, window=0, per_second=PER_SECOND[1]))
    outcome = measured(bench, load, beside=partial(_pipelining, health)).latency({"accepted p95": at_most(50)})
    checks = percentiles("health check", health, {"health check p95": at_most(50)})
    return replace(outcome, figures=[*outcome.figures, *checks])


def run_fanout(bench: Bench, *, subscribers: int = 50) -> Outcome:
    """Publish single events as fast as they go over 16 connections, each to 50 subscribers."""
    return _throughput(bench, subscribers, {"": replace(AT_ONCE, fan_out=subscribers, window=40 * subscribers)})


def run_sparse(bench: Bench, *, subscribers: int = 3_000) -> Outcome:
    """Publish single events as fast as they go, each to another one of 3,000 subscribers; then batches of 100."""
    batches = replace(AT_ONCE, per_call=BATCH, window=BATCHES_IN_FLIGHT * BATCH)
    return _throughput(bench, subscribers, {"": AT_ONCE, "_batches": batches})


def run_sync(bench: Bench, *, per_second: float = 100) -> Outcome:
    """Make 100 SYNC calls a second to an endpoint that answers at once; then as many as go over 8 connections."""
    fast = Pace(window=IN_FLIGHT, connections=CALLERS, expected=204)
    steady, most = (
        measured(bench, Load(1, pace, "SYNC")) for pace in (replace(fast, window=0, per_second=per_second), fast)
    )
    outcome = merged({"": steady.latency({"accepted p50": at_most(5)}), ", at once": most.throughput()})
    recorded = [bench.ask(RECORDED, *found.event_types) for found in (steady, most)]
    problems = [f"of {calls} calls {done} are recorded as answered" for ((done, calls),) in recorded if done != calls]
    return replace(outcome, problems=[*outcome.problems, *problems])
