"""`growth`, `matching`, `pages`, `idle`: the cost beside old deliveries or many subscriptions, of pages, and of no use.

For `growth` and `matching` everything is measured in turn, so that other load on the machine affects all alike; the
figures are ratios of medians.
"""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from benchmarks.bench import Bench
from benchmarks.command_process import measured_database
from benchmarks.figures import Figure, Outcome, at_most, merged
from benchmarks.measure import Watched, read_counters

WARM_ROUNDS: Final = 10
EMPTY, GROWN = (f"broker_growth_{os.getpid()}_{state}" for state in ("empty", "grown"))
KINDS: Final = {"header": "header filters", "filter": "equality filters"}
COUNTS: Final = (10, 1_000, 10_000)
MATCHING_SUBSCRIPTIONS: Final = 5
SHOWN_PAGES: Final = 10
MAX_QUERIES: Final = 60
NO_ENDPOINT: Final = "http://127.0.0.1:9/"
UNUSED: Final = {"CPU in use": at_most(0.02)}


def run_growth(bench: Bench, *, finished: int = 10_000_000, waiting: int = 1_000_000, rounds: int = 200) -> Outcome:
    """Measure functions of the broker beside 10 million finished deliveries and a million that wait."""
    environment, process = bench.stack.environment, "benchmarks.databases.GrowthDatabase"
    with (
        measured_database(environment, EMPTY, process) as (empty, _),
        measured_database(environment, GROWN, process) as (grown, _),
    ):
        bench.say(f"storing {finished:,} finished and {waiting:,} waiting deliveries")
        grown("fill", finished=finished, waiting=waiting)
        for _ in range(WARM_ROUNDS):
            empty("round")
            grown("round")
        bench.say("measuring both in turn")
        pairs = [(empty("round"), grown("round")) for _ in range(rounds)]
    figures = []
    for kind in pairs[0][0]:
        before, after = (statistics.median(pair[side][kind] for pair in pairs) for side in (0, 1))
        figures.append(Figure(f"{kind}, grown : empty", after / before, "times", target=at_most(1.1)))
    return Outcome(figures)


def run_pages(
    bench: Bench, *, subscribers: int = 10_000, finished: int = 5_000_000, waiting: int = 100_000, rounds: int = 5
) -> Outcome:
    """Open all pages of admin site and portal beside 5 million deliveries and 10,000 subscribers; show the slowest."""
    name, process = f"broker_pages_{os.getpid()}", "benchmarks.databases.PagesDatabase"
    with measured_database(bench.stack.environment, name, process) as (command, _):
        bench.say(f"storing {subscribers:,} subscribers, {finished:,} finished and {waiting:,} waiting deliveries")
        command("fill", subscribers=subscribers, finished=finished, waiting=waiting)
        queries = command("queries")
        bench.say(f"opening {len(queries)} pages, {rounds} times each")
        seconds = {one: min(command("open", address=one) for _ in range(rounds)) for one in queries}
    slowest, busiest = (
        sorted(taken, key=taken.__getitem__, reverse=True)[:SHOWN_PAGES] for taken in (seconds, queries)
    )
    return Outcome(
        [
            *(Figure(one, seconds[one] * 1000, "ms", target=at_most(300)) for one in slowest),
            *(Figure(f"queries of {one}", queries[one], "", target=at_most(MAX_QUERIES)) for one in busiest),
        ]
    )


def run_matching(bench: Bench, *, counts: Sequence[int] = COUNTS, rounds: int = 300) -> Outcome:
    """Publish to 10, 1,000 and 10,000 filtered subscriptions of which 5 match each message.

    The figures are the cost with the fewest subscriptions, and ratios to it.
    """
    name, process = f"broker_matching_{os.getpid()}", "benchmarks.databases.MatchingDatabase"
    with measured_database(bench.stack.environment, name, process) as (command, _):
        bench.say(f"making {sum(counts) * len(KINDS):,} subscriptions")
        for kind in KINDS:
            for count in counts:
                command("subscribe", kind=kind, count=count, matching=MATCHING_SUBSCRIPTIONS)
        for _ in range(WARM_ROUNDS):
            command("publish")
        bench.say("publishing to each in turn")
        seconds = [command("publish") for _ in range(rounds)]
    medians = {key: statistics.median(each[key] for each in seconds) for key in seconds[0]}
    few, *more = counts
    figures = []
    for kind, about in KINDS.items():
        base = medians[kind, few]
        figures.append(Figure(f"{about}, {few:,}", base * 1000, "ms"))
        for count in more:
            times = medians[kind, count] / base
            figures.append(Figure(f"{about}, {count:,} : {few:,}", times, "times", target=at_most(3)))
    return Outcome(figures)


def run_idle(bench: Bench, *, subscribers: int = 10_000) -> Outcome:
    """Measure what a broker that nobody uses costs a second, without subscribers and with 10,000 quiet ones."""
    outcomes = {}
    for count in (0, subscribers):
        if count:
            bench.subscribe([NO_ENDPOINT] * count, count)
        time.sleep(bench.options.warm_seconds)
        begin = read_counters(bench)
        time.sleep(bench.options.seconds)
        found = Watched(begin, read_counters(bench), ())
        costs = found.costs(found.seconds, "/s")
        outcomes[f"_{count}"] = Outcome([replace(one, target=UNUSED.get(one.name)) for one in costs])
    return merged(outcomes)
