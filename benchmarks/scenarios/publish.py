"""`publish.*`: one event a request, as most publishers send them, with bodies of 300 bytes."""

from dataclasses import replace
from typing import Final

from benchmarks.bench import Bench
from benchmarks.connection import text_of
from benchmarks.figures import Outcome, merged
from benchmarks.measure import Load, measured
from benchmarks.publisher import Pace

CONNECTIONS: Final = (16, 64)
PER_SECOND: Final = (200.0, 50.0)
SUBSCRIBERS: Final = 20
IN_FLIGHT: Final = 2_000
AT_ONCE: Final = Pace(window=IN_FLIGHT, connections=CONNECTIONS[0], rests=(text_of(300),))
"""Each request follows the answer to the one before."""
KEY: Final = b"\r\nIdempotency-Key: event-%(number)d"


def run_single(bench: Bench, *, subscribers: int = SUBSCRIBERS, added: bytes = b"") -> Outcome:
    """Publish single events to 20 subscribers as fast as they go over 16 connections, and over 64."""
    return merged(
        {
            f"_{connections}": measured(
                bench, Load(subscribers, replace(AT_ONCE, connections=connections, added=added))
            ).throughput()
            for connections in CONNECTIONS
        }
    )


def run_keyed(bench: Bench, *, subscribers: int = SUBSCRIBERS) -> Outcome:
    """Publish as publish.single, each event with an idempotency key of its own."""
    return run_single(bench, subscribers=subscribers, added=KEY)


def run_steady(bench: Bench, *, subscribers: int = SUBSCRIBERS) -> Outcome:
    """Publish 200 single events a second to 20 subscribers, evenly, and 50."""
    return merged(
        {
            f"_{per_second:g}": measured(
                bench, Load(subscribers, replace(AT_ONCE, window=0, per_second=per_second))
            ).throughput()
            for per_second in PER_SECOND
        }
    )


def run_fanout(bench: Bench, *, subscribers: int = 50) -> Outcome:
    """Publish single events as fast as they go over 16 connections, each to 50 subscribers."""
    return measured(bench, Load(subscribers, replace(AT_ONCE, fan_out=subscribers))).throughput()


def run_sparse(bench: Bench, *, subscribers: int = 3_000) -> Outcome:
    """Publish single events as fast as they go over 16 connections, each to another one of 3,000 subscribers."""
    return measured(bench, Load(subscribers, AT_ONCE, is_large=True)).throughput()
