"""`topic.hanging`: what those that never answer do to the others, from the first second on."""

import dataclasses
from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Outcome, at_most
from benchmarks.timing import Timetable, measure

NAME: Final = "topic.hanging"
TARGETS: Final = {"delivered p99": at_most(300)}
LEAST_SECONDS: Final = 20.0
"""A request is given up after 15 s: what hangs has then been tried again too."""


def run(
    bench: Bench,
    *,
    subscribers: int = 300,
    hanging: int = 50,
    per_second: float = 100,
    least_seconds: float = LEAST_SECONDS,
) -> Outcome:
    """Publish singly and evenly over all; measure those that answer."""
    seconds = max(bench.options.seconds, least_seconds)
    long = dataclasses.replace(bench, options=dataclasses.replace(bench.options, seconds=seconds))
    return measure(long, Timetable(NAME, subscribers, per_second, TARGETS, hanging, is_cold=True))
