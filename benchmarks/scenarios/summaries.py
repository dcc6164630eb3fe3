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
from benchmarks.databases import Command, command_process, measured_database
from benchmarks.figures import Figure, Outcome, at_most
from benchmarks.measure import Load, measure_latency, measure_throughput
from benchmarks.processes import cpu_seconds, usage

NAME: Final = "summaries"
PROCESS: Final = "benchmarks.summary_database"
PART: Final = 10
"""The large history has this many times the attempts of the small one."""
MAX_GROWTH: Final = 11.0
MAX_SLOWDOWN: Final = 1.5
POLL_SECONDS: Final = 0.5
PACED_SECONDS: Final = 60.0
"""At least one whole summary of the small history, with Java's start, which uses the CPU most."""
MILLION: Final = 1_000_000
PACED: Final = Load(NAME, subscribers=20, per_second=100, connections=8)
LOAD: Final = Load(NAME, subscribers=100, per_call=100, window=4000)

Figures = Mapping[str, float]
"""Values by the name of a figure."""


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


def run(bench: Bench) -> Outcome:
    """Summarize a tenth of the attempts, again beside deliveries, and all of them."""
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
    problems = [problem for _, found in beside.values() for problem in found]
    problems += [cost.by_spark["error"] for cost in (little, much) if cost.by_spark["error"]]
    loads = {who: figures for who, (figures, _) in beside.items()}
    return Outcome([*_costs(little, much), *_loads(loads)], problems)


def cost(bench: Bench, there: Command, pid: int, attempts: int) -> Cost:
    """Store a history in a database and summarize it."""
    bench.say(f"storing a day of {attempts:,} attempts")
    stored = there("write", attempts=attempts)
    bench.say(f"summing up {stored:,} attempts with Spark, and in SQL")
    began, memory = _database_seconds(bench), [_memory(pid)]
    with ThreadPoolExecutor(1) as thread:
        by_spark = thread.submit(there, "by_spark")
        while not by_spark.done():
            time.sleep(POLL_SECONDS)
            memory.append(_memory(pid))
    between = _database_seconds(bench)
    in_sql = there("in_sql")
    used = {"Spark": between - began, "SQL": _database_seconds(bench) - between}
    bench.say(f"Spark took {by_spark.result().get('seconds', 0.0):.1f} s, SQL {in_sql['seconds']:.1f} s")
    return Cost(stored, by_spark.result(), in_sql, max(memory) - memory[0], used)


def _memory(pid: int) -> int:
    return usage({"": pid})[""].pss_bytes


def _database_seconds(bench: Bench) -> float:
    return cpu_seconds({"": bench.roots()["postgres"]})[""]


def _deliver(bench: Bench, who: str, sum_up: Callable[[], object]) -> tuple[Figures, list[str]]:
    """Measure paced and unpaced deliveries while something is summarized repeatedly."""
    bench.say(f"delivering beside {who}")
    options = replace(bench.options, seconds=max(PACED_SECONDS, bench.options.seconds))
    with _repeated(sum_up):
        paced = measure_latency(replace(bench, options=options), PACED)
        fast = measure_throughput(bench, LOAD)
    figures = {"delivered p95": paced.value("delivered p95"), "delivered": fast.value("delivered")}
    return figures, [*paced.problems, *fast.problems]


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
        yield Figure(NAME, f"Spark, {cost.attempts:,} attempts", cost.by_spark.get("seconds", 0.0), "s")
        yield Figure(NAME, f"SQL, {cost.attempts:,} attempts", cost.in_sql["seconds"], "s")
        yield Figure(NAME, f"memory, {cost.attempts:,} attempts", cost.pss_bytes / 2**20, "MB")
        for who, seconds in cost.database_seconds.items():
            yield Figure(NAME, f"PostgreSQL for {who}, {cost.attempts:,}", seconds, "s CPU")
    grown = much.by_spark.get("seconds", 0.0) / max(1e-9, little.by_spark.get("seconds", 0.0))
    most = MAX_GROWTH * much.attempts / little.attempts / PART
    yield Figure(NAME, "Spark, ten times as many", grown, "times", target=at_most(most))
    yield Figure(NAME, "SQL, ten times as many", much.in_sql["seconds"] / little.in_sql["seconds"], "times")
    lake = much.by_spark.get("lake_bytes", 0) / much.attempts * MILLION / 2**20
    yield Figure(NAME, "lake, a million attempts", lake, "MB")


def _loads(loads: Mapping[str, Figures]) -> Iterator[Figure]:
    """Yield the deliveries beside each, compared with deliveries alone."""
    alone = loads["nothing"]
    for who, figures in loads.items():
        yield Figure(NAME, f"delivered beside {who}", figures["delivered"], "/s")
        yield Figure(NAME, f"delivered p95 beside {who}", figures["delivered p95"], "ms")
    for who in ("Spark", "SQL"):
        later = loads[who]["delivered p95"] / max(1e-9, alone["delivered p95"])
        target = at_most(MAX_SLOWDOWN) if who == "Spark" else None
        yield Figure(NAME, f"p95 beside {who} : alone", later, "times", target=target)
        share = loads[who]["delivered"] / max(1e-9, alone["delivered"])
        yield Figure(NAME, f"deliveries/s beside {who} : alone", share, "times")
