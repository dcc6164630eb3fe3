"""The web process dies while publishing: an answer is a promise, no answer is none."""

import pytest

from tests.faults.breaking import away
from tests.faults.figures import Report
from tests.faults.load import AFTERWARDS, Load

KILLS = 6
"""Each at another moment of what is being published."""


@pytest.mark.behaviour("2.1")
@pytest.mark.behaviour("11.3")
@pytest.mark.case("web-killed")
def test_the_web_process_is_killed_again_and_again_while_publishing(load: Load, figures: Report) -> None:
    load.start()
    for _ in range(KILLS):
        with load.fault(), away(load.broker.stack.supervisor["web"]):
            pass
        load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert sum(publisher.repeated for publisher in load.publishers) >= KILLS
