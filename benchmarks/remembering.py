"""A process that gives one database a history, and has it summed up: by Spark as a worker starts it, or in SQL."""

import datetime as dt
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import django
import psycopg
from django.conf import settings
from django.core.management import call_command

django.setup()  # before any model is imported

from analytics.pipeline.job import Job, Window
from analytics.runs import SLICE_ROWS
from analytics.spark_process import run_application
from analytics.vocabulary import vocabulary
from benchmarks import summaries_sql
from benchmarks.databases import obey
from benchmarks.history import History
from delivery.maintenance.partitions import today

MASTER: Final = "local[1]"
OBJECTIVE: Final = 0.999
MAX_SECONDS: Final = 3600.0
DELIVERIES_PER_MESSAGE: Final = 2


class Past:
    """The day before yesterday, on which everything has happened."""

    def __init__(self) -> None:
        call_command("migrate", verbosity=0)
        self._address = os.environ["DATABASE_URL"]
        end = dt.datetime.combine(today() - dt.timedelta(days=1), dt.time(), dt.UTC)
        self._window = Window(end - dt.timedelta(days=1), end)

    def write(self, attempts: int) -> int:
        """Give the database a history of about so many attempts; return how many there are."""
        until = self._window.end - dt.timedelta(seconds=1)
        History(until, messages=attempts // DELIVERIES_PER_MESSAGE, days=1).write()
        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            row = connection.execute("SELECT count(*) FROM delivery_attempt").fetchone()
        return int(row[0]) if row else 0

    def in_sql(self) -> dict[str, float]:
        """Sum it up in PostgreSQL alone; return the seconds it took."""
        began = time.perf_counter()
        with psycopg.connect(self._address, autocommit=True) as connection:
            summaries_sql.sum_up(connection, self._window, vocabulary(), objective=OBJECTIVE)
        return {"seconds": time.perf_counter() - began}

    def by_spark(self) -> dict[str, Any]:
        """Sum it up with Spark; return the seconds it took without the start, the lake's bytes, and what went wrong."""
        told: dict[str, Any] = {"error": "it has told nothing"}

        def hear(report: Mapping[str, Any]) -> None:
            told.update({name: report[name] for name in ("seconds", "lake_bytes", "error") if name in report})

        with tempfile.TemporaryDirectory(prefix="broker-bench-") as folder:
            job = Path(folder, "job.json")
            job.write_text(self._job(Path(folder, "lake")).as_json())
            run_application(
                job,
                master=MASTER,
                database_url=self._address,
                environment=os.environ,
                log=Path(folder, "log"),
                seconds=MAX_SECONDS,
                on_report=hear,
                stopping=threading.Event(),
            )
        return told

    def _job(self, lake: Path) -> Job:
        return Job(
            run=1,
            windows=(self._window,),
            lake=str(lake),
            master=MASTER,
            memory=settings.SPARK_MEMORY,
            vocabulary=vocabulary(),
            objective=OBJECTIVE,
            slice_rows=SLICE_ROWS,
        )


if __name__ == "__main__":
    obey(Past())
