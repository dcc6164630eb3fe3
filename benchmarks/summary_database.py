"""A process that writes a history into one database and summarizes it: with Spark as a worker does, or in SQL."""

import datetime as dt
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import django
import psycopg
from django.core.management import call_command

django.setup()  # before any model is imported

from analytics.pipeline.job import Window
from analytics.runs import job_of
from analytics.spark_process import run_application, spark_settings
from analytics.vocabulary import vocabulary
from benchmarks import summaries_sql
from benchmarks.databases import serve_commands
from benchmarks.history import History
from delivery.maintenance.partitions import today

MASTER: Final = "local[1]"
OBJECTIVE: Final = 0.999
MAX_MINUTES: Final = 60
DELIVERIES_PER_MESSAGE: Final = 2


class SummaryDatabase:
    """A database with a history of the day before yesterday."""

    def __init__(self) -> None:
        call_command("migrate", verbosity=0)
        self._address = os.environ["DATABASE_URL"]
        end = dt.datetime.combine(today() - dt.timedelta(days=1), dt.time(), dt.UTC)
        self._window = Window(end - dt.timedelta(days=1), end)

    def write(self, attempts: int) -> int:
        """Write a history of about `attempts` attempts; return the exact number."""
        until = self._window.end - dt.timedelta(seconds=1)
        History(until, messages=attempts // DELIVERIES_PER_MESSAGE, days=1).write()
        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            row = connection.execute("SELECT count(*) FROM delivery_attempt").fetchone()
        return int(row[0]) if row else 0

    def in_sql(self) -> dict[str, float]:
        """Summarize in PostgreSQL alone; return the seconds it took."""
        began = time.perf_counter()
        with psycopg.connect(self._address, autocommit=True) as connection:
            summaries_sql.sum_up(connection, self._window, vocabulary(), objective=OBJECTIVE)
        return {"seconds": time.perf_counter() - began}

    def by_spark(self) -> dict[str, Any]:
        """Summarize with Spark; return the seconds without its start, the lake's bytes, and the error if any."""
        result: dict[str, Any] = {"error": "Spark has not reported anything"}

        def take(report: Mapping[str, Any]) -> None:
            result.update({name: report[name] for name in ("seconds", "lake_bytes", "error") if name in report})

        with tempfile.TemporaryDirectory(prefix="broker-bench-") as folder:
            settings = replace(
                spark_settings(),
                lake=str(Path(folder, "lake")),
                master=MASTER,
                minutes=MAX_MINUTES,
                objective=OBJECTIVE,
                database_url=self._address,
            )
            job = job_of(1, [self._window], settings)
            run_application(job, settings, on_report=take, on_output=len, stopping=threading.Event())
        return result


if __name__ == "__main__":
    serve_commands(SummaryDatabase())
