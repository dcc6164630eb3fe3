"""The application as a process: killed by force on its way, and in the way of another."""

from pathlib import Path

import pytest

from analytics.pipeline.application import Status
from analytics.pipeline.run_lock import only_run
from analytics.pipeline.tables import RELIABILITY
from tests.spark.processes import KILLED, run_process
from tests.spark.summaries import database_address, hour, job, loaded, manifest_of
from tests.spark.traffic import Traffic


@pytest.mark.cluster
@pytest.mark.parametrize(("moment", "pieces"), [("rows read", 0), ("rows made", 0), ("in the lake", 1)])
def test_a_process_killed_by_force_leaves_nothing_half(storage: None, tmp_path: Path, moment: str, pieces: int) -> None:
    Traffic().delivered()
    lake = tmp_path / "lake"
    killed = run_process(tmp_path, job(lake, hour(7)), "-c", KILLED, "JOB", moment)
    assert killed.status == -9, killed.printed
    assert len(manifest_of(lake).pieces) == pieces
    assert loaded(RELIABILITY) == []
    again = run_process(tmp_path, job(lake, hour(7), run=2))
    assert again.status == Status.DONE, again.printed
    assert [report["state"] for report in again.reports if "window" in report] == ["PASSED"]
    assert len(loaded(RELIABILITY)) == 1


def test_a_second_run_says_that_there_is_one_and_ends(storage: None, tmp_path: Path) -> None:
    with only_run(database_address()):
        ended = run_process(tmp_path, job(tmp_path / "lake"))
    assert ended.status == Status.ANOTHER_RUN
    assert ended.reports == [{"error": "another run is under way; nothing has been done"}]
