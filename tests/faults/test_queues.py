"""QUEUE messages and callbacks under faults: every job is done once, every reply is stored once."""

import pytest

from tests.support.faults.breakage import restarted
from tests.support.faults.figures import UNDER_WAY
from tests.support.faults.load import AFTERWARDS
from tests.support.faults.queue_load import QueueLoad


@pytest.mark.behaviour("6.4", "11.3")
@pytest.mark.case("queue-{killed}-killed")
@pytest.mark.parametrize("killed", [pytest.param("workers", marks=pytest.mark.selected), "celery"])
def test_processes_are_killed_while_jobs_are_in_flight(jobs: QueueLoad, killed: str) -> None:
    jobs.start()
    jobs.wait_until_under_way()
    beat = [jobs.broker.stack.supervisor["beat"]] if killed == "celery" else []
    processes = [*jobs.broker.workers(), *beat]
    with restarted(*processes):
        with jobs.fault():
            for process in processes:
                process.kill()
        jobs.go_on()
    jobs.wait_for(AFTERWARDS)
    jobs.stop()
    seen = jobs.figures()
    assert seen.broken == {}
    assert 0 < seen.max_per_fault <= UNDER_WAY
