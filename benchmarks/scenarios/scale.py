"""`growth` and `matching`: what functions of the broker cost beside old deliveries and beside many subscriptions.

Everything is measured in turn, so that other load on the machine affects all alike; the figures are ratios of medians.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.databases import measured_database, url_of
from benchmarks.figures import Figure, Outcome, at_most

GROWTH: Final = "growth"
GROWTH_PROCESS: Final = "benchmarks.growth_database"
GROWTH_LIMIT: Final = 1.1
WARM_ROUNDS: Final = 10
EMPTY, GROWN = (f"broker_growth_{os.getpid()}_{state}" for state in ("empty", "grown"))

MATCHING: Final = "matching"
PROCESS: Final = "benchmarks.matching_database"
KINDS: Final = {"header": "header filters", "filter": "equality filters"}
COUNTS: Final = (10, 1_000, 10_000)
MATCHING_SUBSCRIPTIONS: Final = 5
MAX_RATIO: Final = 3.0


def run_growth(
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    finished: int = 10_000_000,
    waiting: int = 1_000_000,
    rounds: int = 200,
) -> Outcome:
    """Measure beside `finished` deliveries that ended and `waiting` ones of inactive subscriptions.

    The server of `environment` must allow new databases.
    """
    with (
        measured_database(environment, EMPTY, GROWTH_PROCESS) as (empty, _),
        measured_database(environment, GROWN, GROWTH_PROCESS) as (grown, _),
    ):
        say(f"storing {finished:,} finished and {waiting:,} waiting deliveries")
        grown("fill", url=url_of(environment, GROWN), finished=finished, waiting=waiting)
        for _ in range(WARM_ROUNDS):
            empty("round")
            grown("round")
        say("measuring both in turn")
        pairs = [(empty("round"), grown("round")) for _ in range(rounds)]
    figures = []
    for kind in pairs[0][0]:
        before, after = (statistics.median(pair[side][kind] for pair in pairs) for side in (0, 1))
        ratio, target = after / before, at_most(GROWTH_LIMIT)
        figures.append(Figure(GROWTH, f"{kind}, grown : empty", ratio, "times", target=target))
    return Outcome(figures)


def run_matching(
    environment: Mapping[str, str], say: Callable[[str], None], *, counts: Sequence[int] = COUNTS, rounds: int = 300
) -> Outcome:
    """Measure publishing to 10, 1,000 and 10,000 subscriptions of which 5 match.

    The figures are the cost with the fewest subscriptions, and ratios to it. The server of `environment` must allow
    new databases.
    """
    with measured_database(environment, f"broker_matching_{os.getpid()}", PROCESS) as (command, _):
        say(f"making {sum(counts) * len(KINDS):,} subscriptions")
        for kind in KINDS:
            for count in counts:
                command("subscribe", kind=kind, count=count, matching=MATCHING_SUBSCRIPTIONS)
        command("settle_down")
        names = [f"{kind}.{count}" for kind in KINDS for count in counts]
        for _ in range(WARM_ROUNDS):
            command("publish", names=names)
        say("publishing to each in turn")
        seconds = [command("publish", names=names) for _ in range(rounds)]
    medians = {name: statistics.median(one[name] for one in seconds) for name in names}
    few, *more = counts
    figures = []
    for kind, about in KINDS.items():
        base = medians[f"{kind}.{few}"]
        figures.append(Figure(MATCHING, f"{about}, {few:,}", base * 1000, "ms"))
        for count in more:
            ratio = medians[f"{kind}.{count}"] / base
            figures.append(Figure(MATCHING, f"{about}, {count:,} : {few:,}", ratio, "times", target=at_most(MAX_RATIO)))
    return Outcome(figures)
