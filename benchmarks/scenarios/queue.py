"""`queue.slow`: three endpoints that take 100 ms for each job: the senders' limit is how many they may have under way.

What a bare client can do says nothing here: it waits as long.
"""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.jobs import SENDERS, Load, measure

NAME: Final = "queue.slow"
TARGET: Final = at_least(70)
SECONDS: Final = 0.1
UNDER_WAY: Final = 16
"""Jobs of each sender, if the settings say nothing else."""
BATCHES_UNDER_WAY: Final = 20


def run(bench: Bench, *, per_call: int = 50) -> Outcome:
    """Publish more jobs than can be under way."""
    seen = measure(bench, Load(NAME, per_call, window=BATCHES_UNDER_WAY * per_call, delay=SECONDS))
    allowed = SENDERS * UNDER_WAY / SECONDS
    speed = Figure(NAME, "jobs", seen.rate, "/s")
    part = Figure(NAME, f"of the {allowed:,.0f}/s allowed", 100 * seen.rate / allowed, "%", target=TARGET)
    return Outcome([speed, part, *seen.figures], seen.problems)
