"""`queue.fast`: three endpoints that answer at once, published to in batches."""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.jobs import Load, measure
from benchmarks.throughput import void

NAME: Final = "queue.fast"
TARGET: Final = at_least(4_000)
BATCHES_UNDER_WAY: Final = 40


def run(bench: Bench, *, per_call: int = 100) -> Outcome:
    """Publish batches of jobs, as fast as the broker keeps pace."""
    seen = measure(bench, Load(NAME, per_call, window=BATCHES_UNDER_WAY * per_call))
    speed = Figure(NAME, "jobs", seen.rate, "/s", seen.bare, TARGET)
    return Outcome([speed, *seen.figures], seen.problems, void(seen.rate, seen.bare))
