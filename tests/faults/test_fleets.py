"""Two fleets of workers and three beats on the same stores: no line is ever driven twice at once."""

import time
from collections.abc import Callable

import pytest

from tests.faults.figures import Figures
from tests.faults.fleets import more_beats, more_workers
from tests.faults.load import Load

TOGETHER_SECONDS = 20.0
AFTERWARDS = 50

Report = Callable[[], Figures]


@pytest.mark.behaviour("4.2")
@pytest.mark.behaviour("11.3")
@pytest.mark.case("two-fleets-three-beats")
def test_two_fleets_of_workers_and_three_beats_run_at_once(load: Load, figures: Report) -> None:
    load.start()
    drivers: set[str] = set()
    with more_workers(load.broker), more_beats(load.broker, 2):
        until = time.monotonic() + TOGETHER_SECONDS
        while time.monotonic() < until:
            drivers |= {load.broker.driver_of(subscribed) for subscribed in load.endpoints}
        load.stop()
        seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert len({driver.partition(".")[2] for driver in drivers}) == 2
