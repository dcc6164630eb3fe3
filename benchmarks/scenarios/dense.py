"""`topic.dense`: many subscribers with a backlog each, published in batches."""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Outcome, at_least
from benchmarks.throughput import Load, measure

NAME: Final = "topic.dense"
BATCHES_UNDER_WAY: Final = 40


def run(bench: Bench, *, subscribers: int = 100) -> Outcome:
    """Publish batches of one message for each subscriber."""
    window = BATCHES_UNDER_WAY * subscribers
    return measure(bench, Load(NAME, subscribers, per_call=subscribers, window=window, target=at_least(6_000)))
