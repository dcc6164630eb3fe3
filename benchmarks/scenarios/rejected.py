"""`topic.rejected`: what it costs that endpoints answer 404, which ends a delivery as REJECTED."""

from functools import partial
from typing import Final

from benchmarks.answers import NOT_FOUND, TAKEN
from benchmarks.bench import Bench
from benchmarks.comparing import compared
from benchmarks.figures import Outcome, at_least
from benchmarks.throughput import DELIVERED, Load, measure

NAME: Final = "topic.rejected"
TARGET: Final = at_least(0.9)
BATCHES_UNDER_WAY: Final = 40
SHOWN: Final = (DELIVERED, "CPU of workers", "CPU of postgres")


def run(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish as `topic.dense`, to endpoints that answer 204 and to such that answer 404, by turns."""
    load = Load(NAME, subscribers, subscribers, BATCHES_UNDER_WAY * subscribers, target=at_least(0))
    variants = {
        "204": partial(measure, bench, load, answer=TAKEN),
        "404": partial(measure, bench, load, answer=NOT_FOUND),
    }
    return compared(NAME, variants, TARGET, shown=SHOWN)
