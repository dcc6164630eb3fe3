"""`matching`: what a publish costs where few of many subscriptions want the message.

Everything is measured in turn on one database, so that whatever else the machine does meets all alike; the figures
are ratios of medians.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.bench import Bench
from benchmarks.databases import measured_database
from benchmarks.figures import Figure, Outcome, at_most

NAME: Final = "matching"
PROCESS: Final = "benchmarks.subscribing"
KINDS: Final = {"header": "header filters", "filter": "equality filters"}
COUNTS: Final = (10, 1_000, 10_000)
MATCHING: Final = 5
MOST: Final = 3.0
WARM_ROUNDS: Final = 10


def run(bench: Bench) -> Outcome:
    """Measure publishing to 10, 1,000 and 10,000 subscriptions of which 5 match."""
    return Outcome(measure(bench.stack.environment, bench.say))


def measure(
    environment: Mapping[str, str], say: Callable[[str], None], *, counts: Sequence[int] = COUNTS, rounds: int = 300
) -> Sequence[Figure]:
    """Return the costs with the fewest subscriptions and the ratios, on a server that lets us create databases."""
    with measured_database(environment, f"broker_matching_{os.getpid()}", PROCESS) as (command, _):
        say(f"making {sum(counts) * len(KINDS):,} subscriptions")
        for kind in KINDS:
            for count in counts:
                command("subscribe", kind=kind, count=count, matching=MATCHING)
        command("settle_down")
        names = [f"{kind}.{count}" for kind in KINDS for count in counts]
        for _ in range(WARM_ROUNDS):
            command("publish", names=names)
        say("publishing to each in turn")
        seconds = [command("publish", names=names) for _ in range(rounds)]
    medians = {name: statistics.median(one[name] for one in seconds) for name in names}
    return [figure for kind in KINDS for figure in _figures(kind, counts, medians)]


def _figures(kind: str, counts: Sequence[int], medians: Mapping[str, float]) -> list[Figure]:
    few, *more = counts
    base = medians[f"{kind}.{few}"]
    return [
        Figure(NAME, f"{KINDS[kind]}, {few:,}", base * 1000, "ms"),
        *(
            Figure(
                NAME,
                f"{KINDS[kind]}, {count:,} : {few:,}",
                medians[f"{kind}.{count}"] / base,
                "times",
                None,
                at_most(MOST),
            )
            for count in more
        ),
    ]
