"""A run of Spark from outside: listened to while it runs, and ended with all that it has started.

Workers stay free of Java, and of whatever a run does to its own process.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from analytics.guarded_process import GuardedProcess, Report
from analytics.spark_environment import spark_environment

APPLICATION: Final = "analytics.pipeline"


class End(Enum):
    """Why a run is over."""

    BY_ITSELF = auto()
    TOO_LONG = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    end: End
    status: int
    """Of the application, 0 if it has done everything; 128 and more tell the signal that ended it."""


def run_application(
    job: Path,
    *,
    master: str,
    database_url: str,
    environment: Mapping[str, str],
    log: Path,
    seconds: float,
    on_report: Callable[[Report], object],
    stopping: threading.Event,
) -> Ended:
    """Run the application on a job, for so many seconds at most, or until `stopping`; nothing of it is left then.

    `environment` is the worker's own, of which it gets what it needs; `log` gets the head and the tail of what it
    prints. Whatever `on_report` raises ends the run.

    Raises:
        NoJava: there is none to run it on.
        NotAReport: the application is not ours.

    """
    with tempfile.TemporaryDirectory(prefix="broker-spark-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        command = (sys.executable, "-P", "-m", APPLICATION, str(job.resolve()))
        variables = spark_environment(scratch, master=master, database_url=database_url, environment=environment)
        spark = GuardedProcess(command, variables, scratch, log=log, on_report=on_report)
        return ended(spark, seconds=seconds, stopping=stopping)


def ended(spark: GuardedProcess, *, seconds: float, stopping: threading.Event) -> Ended:
    """Listen to a process until it has ended, by itself or because its time is over; nothing of it is left then."""
    until, end = time.monotonic() + seconds, End.BY_ITSELF
    try:
        while spark.is_running():
            spark.listen()
            if end is End.BY_ITSELF and (stopping.is_set() or time.monotonic() > until):
                end = End.STOPPED if stopping.is_set() else End.TOO_LONG
                spark.hang_up()
        spark.hear_the_rest()
    finally:
        status = spark.end()
    return Ended(end, status)
