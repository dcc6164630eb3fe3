"""`summaries`: the cost of summarizing a day, with Spark and in SQL, and its effect on deliveries at the same time.

Everything is measured on one server: a tenth of the attempts in the broker's database, all in one of their own.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.command_process import Command, command_process, measured_database
from benchmarks.figures import Figure, Outcome, at_most, merged, ratio
from benchmarks.measure import DELIVERED, Load, measured
from benchmarks.processes import cpu_by_tree, pss_bytes
from benchmarks.publisher import Pace
from benchmarks.scenarios.topic import dense_load

PROCESS: Final = "benchmarks.databases.SummaryDatabase"
PART: Final = 10
"""The large history has this many times the attempts of the small one."""
MAX_GROWTH: Final = 11.0
MAX_SLOWDOWN: Final = 1.5
POLL_SECONDS: Final = 0.5
PACED_SECONDS: Final = 60.0
"""At least one whole summary of the small history, with Java's start, which uses the CPU most."""
MILLION: Final = 1_000_000
PACED: Final = Load(subscribers=20, pace=Pace(per_second=100, connections=8))
P95: Final = "delivered p95"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of summarizing a history once with each."""

    attempts: int
    by_spark: Mapping[str, Any]
    in_sql: Mapping[str, Any]
    pss_bytes: int
    """The peak memory of all of Spark's processes."""
    database_seconds: Mapping[str, float]
    """CPU time of all PostgreSQL processes, for each."""

    @property
    def spark_seconds(self) -> float:
        """How long Spark took; 0 if it failed."""
        return float(self.by_spark.get("seconds", 0.0))


def run(bench: Bench) -> Outcome:
    """Summarize --attempts with Spark and in SQL, and a tenth of them, again beside deliveries."""
    environment, attempts = bench.stack.environment, bench.options.attempts
    with command_process(environment, PROCESS) as (there, pid):
        little = cost(bench, there, pid, attempts // PART)
        beside = {
            "nothing": _deliver(bench, "nothing", lambda: None),
            "Spark": _deliver(bench, "Spark", lambda: there("by_spark")),
            "SQL": _deliver(bench, "SQL", lambda: there("in_sql")),
        }
    with measured_database(environment, f"broker_summaries_{os.getpid()}", PROCESS) as (there, pid):
        much = cost(bench, there, pid, attempts)
    loads = merged({f" beside {who}": outcome for who, outcome in beside.items()})
    problems = [*loads.problems, *(cost.by_spark["error"] for cost in (little, much) if cost.by_spark["error"])]
    return Outcome([*_costs(little, much), *loads.figures, *_ratios(beside)], problems)


def cost(bench: Bench, there: Command, pid: int, attempts: int) -> Cost:
    """Store a history in a database and summarize it."""

    def memory() -> int:
        return sum(map(pss_bytes, cpu_by_tree({"": pid})[""]))

    def database_seconds() -> float:
        return sum(cpu_by_tree(bench.roots())["postgres"].values())

    bench.say(f"storing a day of {attempts:,} attempts")
    stored = there("write", attempts=attempts)
    bench.say(f"summing up {stored:,} attempts with Spark, and in SQL")
    began, sizes = database_seconds(), [memory()]
    with ThreadPoolExecutor(1) as thread:
        by_spark = thread.submit(there, "by_spark")
        while not by_spark.done():
            time.sleep(POLL_SECONDS)
            sizes.append(memory())
    between = database_seconds()
    in_sql = there("in_sql")
    used = {"Spark": between - began, "SQL": database_seconds() - between}
    found = Cost(stored, by_spark.result(), in_sql, max(sizes) - sizes[0], used)
    bench.say(f"Spark took {found.spark_seconds:.1f} s, SQL {in_sql['seconds']:.1f} s")
    return found


def _deliver(bench: Bench, beside: str, sum_up: Callable[[], object]) -> Outcome:
    """Measure paced and unpaced deliveries while something is summarized repeatedly."""
    bench.say(f"delivering beside {beside}")
    options = replace(bench.options, seconds=max(PACED_SECONDS, bench.options.seconds))
    with _repeated(sum_up):
        paced = measured(replace(bench, options=options), PACED)
        fast = measured(bench, dense_load())
    figures = [
        Figure(DELIVERED, fast.watched.rate, "/s"),
        Figure(P95, paced.latency().value(P95), "ms"),
    ]
    return Outcome(figures, [*paced.problems, *fast.problems])


@contextmanager
def _repeated(act: Callable[[], object]) -> Iterator[None]:
    """Repeat something meanwhile; the last repetition is finished."""
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.wait(POLL_SECONDS):
            act()

    with ThreadPoolExecutor(1) as thread:
        doing = thread.submit(repeat)
        try:
            yield
        finally:
            stopping.set()
        doing.result()


def _costs(little: Cost, much: Cost) -> Iterator[Figure]:
    """Yield the duration of each, its growth, and Spark's memory and lake size."""
    for cost in (little, much):
        yield Figure(f"Spark, {cost.attempts:,} attempts", cost.spark_seconds, "s")
        yield Figure(f"SQL, {cost.attempts:,} attempts", cost.in_sql["seconds"], "s")
        yield Figure(f"memory, {cost.attempts:,} attempts", cost.pss_bytes / 2**20, "MB")
        for who, seconds in cost.database_seconds.items():
            yield Figure(f"PostgreSQL for {who}, {cost.attempts:,}", seconds, "s CPU")
    grown, most = ratio(much.spark_seconds, little.spark_seconds), MAX_GROWTH * much.attempts / little.attempts / PART
    yield Figure("Spark, ten times as many", grown, "times", target=at_most(most))
    yield Figure("SQL, ten times as many", much.in_sql["seconds"] / little.in_sql["seconds"], "times")
    lake = much.by_spark.get("lake_bytes", 0) / much.attempts * MILLION / 2**20
    yield Figure("lake, a million attempts", lake, "MB")


def _ratios(beside: Mapping[str, Outcome]) -> Iterator[Figure]:
    """Yield the deliveries beside each, compared with deliveries alone."""
    alone = beside["nothing"]
    for who in ("Spark", "SQL"):
        target = at_most(MAX_SLOWDOWN) if who == "Spark" else None
        yield Figure(
            f"p95 beside {who} : alone", ratio(beside[who].value(P95), alone.value(P95)), "times", target=target
        )
        share = ratio(beside[who].value(DELIVERED), alone.value(DELIVERED))
        yield Figure(f"deliveries/s beside {who} : alone", share, "times")
