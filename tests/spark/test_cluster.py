"""The application on a real standalone cluster, which knows nothing of the project."""

import datetime as dt
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from analytics.pipeline.application import Status
from analytics.pipeline.tables import ATTEMPTS, BRONZE, DELIVERIES, GOLD, MESSAGES
from analytics.spark_settings import java_home
from tests.spark.clusters import Cluster, running_cluster
from tests.spark.processes import KILLED, run_process
from tests.spark.summaries import all_loaded, hour, job, rows_of
from tests.spark.traffic import MORNING, SECOND, Traffic

SENT = 120
"""So that there is something to read for each worker, and some more."""


@pytest.mark.cluster
def test_an_executor_copies_the_database_into_the_lake(storage: None, tmp_path: Path) -> None:
    """The first step of a window only: what comes then is the other test's."""
    traffic, lake = Traffic(), tmp_path / "lake"
    for answers in ((200,), (503, 500, 200), (404,)):
        traffic.delivered(answers=answers)
    home = str(java_home(tmp_path / "java", {}))
    with running_cluster(tmp_path / "cluster", home, workers=1) as cluster:
        asked = job(lake, hour(7), master=cluster.address)
        begun = run_process(tmp_path, asked, "-c", KILLED, "JOB", "rows read", more=variables(cluster, home))
        (written,) = (cluster.tables_written(worker) for worker in cluster.workers)
    assert begun.status == -9, begun.printed
    assert written == {table.path for table in BRONZE}
    copies = [ds.dataset(lake / table.path, format="parquet") for table in (MESSAGES, DELIVERIES, ATTEMPTS)]
    assert [copy.count_rows() for copy in copies] == [3, 3, 5]


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
        together = run_process(tmp_path, asked, more=variables(cluster, home))
        assert together.status == Status.DONE, together.printed
        written = [cluster.tables_written(worker) for worker in cluster.workers]
    assert all({"bronze/attempts", "bronze/deliveries"} <= tables for tables in written), written
    assert {table.name: rows_of(there, table) for table in GOLD} == {table.name: rows_of(here, table) for table in GOLD}
    assert all_loaded() == loaded_alone


def variables(cluster: Cluster, java: str) -> dict[str, str]:
    """Return what the application is told where it runs on a cluster."""
    return {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(cluster.settings)}
