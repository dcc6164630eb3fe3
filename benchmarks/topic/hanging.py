"""`topic.hanging`: what those that never answer do to the others, from the first second on."""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Outcome, at_most
from benchmarks.timing import Timetable, measure

NAME: Final = "topic.hanging"
TARGETS: Final = {"delivered p99": at_most(300)}


def run(bench: Bench, *, subscribers: int = 300, hanging: int = 50, per_second: float = 100) -> Outcome:
    """Publish singly and evenly over all; measure those that answer."""
    return measure(bench, Timetable(NAME, subscribers, per_second, TARGETS, hanging, is_cold=True))
