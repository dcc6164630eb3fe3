"""`topic.retrying`: what deliveries that are tried again apart do to those that are sent for the first time."""

from functools import partial
from itertools import pairwise
from typing import Final

from benchmarks.bench import Bench
from benchmarks.comparing import compared
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.receipts import Log, Receipts
from benchmarks.scenarios.retries import leaving_apart
from benchmarks.throughput import DELIVERED, Load, measure, measured, outcome_of

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
