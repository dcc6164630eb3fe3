"""`queue.slow`: three endpoints that take 100 ms for each job: the senders' limit is how many they may have under way.

What a bare client can do says nothing here: it waits as long.
"""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.jobs import SENDERS, JobLoad, measure_jobs
from benchmarks.throughput import void

FAST: Final = "queue.fast"
FAST_TARGET: Final = at_least(4_000)
FAST_BATCHES: Final = 40

SLOW: Final = "queue.slow"
SLOW_TARGET: Final = at_least(70)
SECONDS: Final = 0.1
UNDER_WAY: Final = 16
"""Jobs of each sender, if the settings say nothing else."""
SLOW_BATCHES: Final = 20


def run_fast(bench: Bench, *, per_call: int = 100) -> Outcome:
    """Publish batches of jobs, as fast as the broker keeps pace."""
    seen = measure_jobs(bench, JobLoad(FAST, per_call, window=FAST_BATCHES * per_call))
    speed = Figure(FAST, "jobs", seen.rate, "/s", seen.bare, FAST_TARGET)
    return Outcome([speed, *seen.figures], seen.problems, void(seen.rate, seen.bare))


def run_slow(bench: Bench, *, per_call: int = 50) -> Outcome:
    """Publish more jobs than can be under way."""
    seen = measure_jobs(bench, JobLoad(SLOW, per_call, window=SLOW_BATCHES * per_call, delay=SECONDS))
    allowed = SENDERS * UNDER_WAY / SECONDS
    speed = Figure(SLOW, "jobs", seen.rate, "/s")
    part = Figure(SLOW, f"of the {allowed:,.0f}/s allowed", 100 * seen.rate / allowed, "%", target=SLOW_TARGET)
    return Outcome([speed, part, *seen.figures], seen.problems)
