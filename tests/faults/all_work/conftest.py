"""Cases that share one fault: each kind of work has subscribers of its own to be audited."""

from collections.abc import Callable

import pytest

from tests.support.brokers import Brokers
from tests.support.faults.all_workloads import Outcome
from tests.support.faults.verdicts import AUDITS, VERDICT

Judge = Callable[[Outcome], None]


@pytest.fixture
def _apart() -> None:
    """Stay with the broker for all cases of a fault."""


@pytest.fixture
def _audited() -> None:
    """Owe no audit but those of the kinds."""


@pytest.fixture
def judge(brokers: Brokers, request: pytest.FixtureRequest) -> Judge:
    """Take an outcome for what became of this case."""

    def take(outcome: Outcome) -> None:
        verdict = request.node.stash[VERDICT]
        verdict.figures, verdict.measured, verdict.seconds = outcome.figures, outcome.measured, outcome.seconds
        if request.config.stash.get(AUDITS, False) and outcome.made:
            brokers.history().owed.append((verdict, outcome.made))
        if outcome.problem:
            pytest.fail(outcome.problem, pytrace=False)

    return take
