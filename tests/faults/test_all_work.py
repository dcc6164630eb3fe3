"""Every kind of work under every fault, and under random faults: begun together, broken together, judged one by one."""

import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path

import pytest

from broker_project.stack.load.receiver import Receiver, running_receiver
from tests.support.brokers import Brokers, replace_broken_broker
from tests.support.faults.all_workloads import (
    KINDS,
    Outcome,
    RandomFaults,
    all_workloads,
    outcomes_under,
    together,
)
from tests.support.faults.fault_plans import BREAKAGES
from tests.support.faults.verdicts import AUDITS, RANDOM, VERDICT, Random, memory_of

CALM_SECONDS = 300.0
"""In which all is through that the longest retry put off."""

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


@pytest.fixture(scope="module", params=BREAKAGES, ids=attrgetter("name"))
def outcomes(
    brokers: Brokers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Mapping[str, Outcome]:
    """Break something; give what became of each kind of work."""
    replace_broken_broker(brokers, request.session)
    with running_receiver() as receiver:
        return outcomes_under(brokers.broker(), receiver, tmp_path_factory.mktemp("clients"), request.param)


@pytest.mark.behaviour("4.11", "11.3")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.case("{kind}/{outcomes.name}")
def test_a_kind_of_work_under_a_fault(kind: str, outcomes: Mapping[str, Outcome], judge: Judge) -> None:
    judge(outcomes[kind])


@pytest.mark.behaviour("4.10", "4.11", "11.3")
@pytest.mark.on_request
@pytest.mark.case("random")
def test_random_faults(
    brokers: Brokers,
    receiver: Receiver,
    tmp_path: Path,
    judge: Judge,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    replace_broken_broker(brokers, request.session)
    random, broker = request.config.stash.get(RANDOM, Random()), brokers.broker()

    def say(what: str) -> None:
        with capfd.disabled():
            print(f"\n{time.strftime('%H:%M:%S')} {what}", end="", flush=True)

    say(f"seed {random.seed}, {random.seconds:g} s; memory in MiB at the start: {memory_of(broker)}")
    with all_workloads(broker, receiver, tmp_path) as workloads:
        workloads.start()
        assert workloads.go_on() == []
        faults = RandomFaults(workloads, random.seed, say)
        faults.run(random.seconds)
        stuck = workloads.go_on(CALM_SECONDS)
        left = workloads.stop(CALM_SECONDS)
        say(f"broken in {faults.steps} steps: {dict(faults.happened)}; memory in MiB: {memory_of(broker)}")
        judge(together(workloads, stuck, left, say))
    assert faults.problems == []
