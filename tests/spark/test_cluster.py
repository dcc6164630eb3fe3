"""The application on a real standalone cluster, which knows nothing of the project."""

import datetime as dt
from pathlib import Path

import pytest

from analytics.java import java_home
from analytics.pipeline.application import Status
from analytics.pipeline.tables import GOLD
from tests.spark.clusters import running_cluster
from tests.spark.processes import run_process
from tests.spark.summaries import all_loaded, job, rows_of
from tests.spark.traffic import MORNING, SECOND, Traffic

SENT = 120
"""So that there is something to read for each worker, and some more."""


@pytest.mark.cluster
def test_executors_read_the_database_and_write_the_lake(storage: None, tmp_path: Path) -> None:
    traffic = Traffic()
    for number in range(SENT):
        answers = (503, 200) if number % 5 == 0 else (200,)
        traffic.delivered(MORNING + number * dt.timedelta(minutes=1) + SECOND, answers=answers)
    here, there = tmp_path / "here", tmp_path / "there"
    home = str(java_home(tmp_path / "java", {}))  # the one that came with the dependencies
    alone = run_process(tmp_path, job(here, run=1), more={"JAVA_HOME": home})
    assert alone.status == Status.DONE, alone.printed
    loaded_alone = all_loaded()
    with running_cluster(tmp_path / "cluster", home) as cluster:
        asked = job(there, run=2, master=cluster.address, slice_rows=10)
        ours = {"JAVA_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(cluster.settings)}
        together = run_process(tmp_path, asked, more=ours)
        assert together.status == Status.DONE, together.printed
        written = [cluster.tables_written(worker) for worker in cluster.workers]
    assert all({"bronze/attempts", "bronze/deliveries"} <= tables for tables in written), written
    assert {table.name: rows_of(there, table) for table in GOLD} == {table.name: rows_of(here, table) for table in GOLD}
    assert all_loaded() == loaded_alone
