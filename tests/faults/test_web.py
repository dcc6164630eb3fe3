"""The web process dies while publishing: an answer is a promise, no answer is none."""

import pytest

from tests.faults.breaking import restarted
from tests.faults.figures import Report
from tests.faults.load import AFTERWARDS, Load


@pytest.mark.behaviour("2.1")
@pytest.mark.behaviour("11.3")
@pytest.mark.case("web-killed")
def test_the_web_process_is_killed_while_publishing(load: Load, figures: Report) -> None:
    load.start()
    web = load.broker.stack.supervisor["web"]
    with load.fault(), restarted(web):
        web.kill()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert sum(publisher.repeated for publisher in load.publishers) > 0
