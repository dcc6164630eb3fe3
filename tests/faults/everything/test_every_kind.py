"""Every kind of work under every fault: broken once under all of them, and each judged by itself."""

from collections.abc import Mapping
from operator import attrgetter

import pytest

from tests.brokers import Brokers, begin_anew
from tests.faults.everything.breakages import BREAKAGES
from tests.faults.everything.conftest import Judge
from tests.faults.everything.gathering import KINDS
from tests.faults.everything.surviving import Outcome, survived
from tests.receiver import receiving


@pytest.fixture(scope="module", params=BREAKAGES, ids=attrgetter("name"))
def outcomes(
    brokers: Brokers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Mapping[str, Outcome]:
    """Break something; give what became of each kind of work."""
    begin_anew(brokers, request.session)
    with receiving() as receiver:
        return survived(brokers.broker(), receiver, tmp_path_factory.mktemp("clients"), request.param)


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.case("{kind}/{outcomes.name}")
def test_a_kind_of_work_under_a_fault(kind: str, outcomes: Mapping[str, Outcome], judge: Judge) -> None:
    judge(outcomes[kind])
