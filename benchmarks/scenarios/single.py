"""`topic.single`: one subscriber, whose deliveries go out one at a time."""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Outcome, at_least
from benchmarks.throughput import Load, measure

NAME: Final = "topic.single"
BATCHES_UNDER_WAY: Final = 20


def run(bench: Bench, *, per_call: int = 100) -> Outcome:
    """Publish batches to one line."""
    window = BATCHES_UNDER_WAY * per_call
    return measure(bench, Load(NAME, 1, per_call=per_call, window=window, target=at_least(1_200)))
