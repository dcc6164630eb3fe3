"""`topic.latency`: how long a message takes when nothing is busy."""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Outcome, at_most
from benchmarks.timing import Timetable, measure

NAME: Final = "topic.latency"
TARGETS: Final = {"delivered p95": at_most(40), "accepted p95": at_most(15)}


def run(bench: Bench, *, subscribers: int = 20, per_second: float = 200) -> Outcome:
    """Publish singly and evenly over some subscribers."""
    return measure(bench, Timetable(NAME, subscribers, per_second, TARGETS))
