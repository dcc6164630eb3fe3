"""`growth`: what publishing, sending, sweeping, fetching and acknowledging cost beside years of finished deliveries.

Two databases of the same server, one empty and one with a history, are measured in turn, so that whatever else the
machine does meets both alike; the figures are ratios of medians.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.databases import measured_database, url_of
from benchmarks.figures import Figure, Outcome, at_most

NAME: Final = "growth"
PROCESS: Final = "benchmarks.growing"
MOST: Final = 1.1
WARM_ROUNDS: Final = 10
EMPTY, GROWN = (f"broker_growth_{os.getpid()}_{state}" for state in ("empty", "grown"))


def run(bench: Bench, *, finished: int = 10_000_000, waiting: int = 1_000_000, rounds: int = 200) -> Outcome:
    """Measure beside `finished` deliveries that ended and `waiting` ones of inactive subscriptions."""
    return Outcome(measure(bench.stack.environment, bench.say, finished=finished, waiting=waiting, rounds=rounds))


def measure(environment: Mapping[str, str], say: Any, *, finished: int, waiting: int, rounds: int) -> Sequence[Figure]:
    """Return the ratios, on a server that lets us create databases."""
    with (
        measured_database(environment, EMPTY, PROCESS) as (empty, _),
        measured_database(environment, GROWN, PROCESS) as (grown, _),
    ):
        say(f"storing {finished:,} finished and {waiting:,} waiting deliveries")
        grown("fill", url=url_of(environment, GROWN), finished=finished, waiting=waiting)
        for _ in range(WARM_ROUNDS):
            empty("round")
            grown("round")
        say("measuring both in turn")
        pairs = [(empty("round"), grown("round")) for _ in range(rounds)]
    return [_ratio(kind, pairs) for kind in pairs[0][0]]


def _ratio(kind: str, pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> Figure:
    before, after = (statistics.median(pair[side][kind] for pair in pairs) for side in (0, 1))
    return Figure(NAME, f"{kind}, grown : empty", after / before, "times", target=at_most(MOST))
