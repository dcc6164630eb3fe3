"""Every kind of work under every fault, and under random faults."""

import time
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

import pytest

from broker_project.stack.load.receiver import Receiver, running_receiver
from tests.faults.all_work.conftest import Judge
from tests.support.brokers import Brokers, replace_broken_broker
from tests.support.faults.all_work import KINDS, PATIENCE, WARM, Outcome, Storm, all_work, survived, together
from tests.support.faults.fault_plans import BREAKAGES
from tests.support.faults.verdicts import RANDOM, Random
from tests.support.faults.work import memory_of

CALM_SECONDS = 300.0
"""In which all is through that the longest retry put off."""


@pytest.fixture(scope="module", params=BREAKAGES, ids=attrgetter("name"))
def outcomes(
    brokers: Brokers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Mapping[str, Outcome]:
    """Break something; give what became of each kind of work."""
    replace_broken_broker(brokers, request.session)
    with running_receiver() as receiver:
        return survived(brokers.broker(), receiver, tmp_path_factory.mktemp("clients"), request.param)


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.case("{kind}/{outcomes.name}")
def test_a_kind_of_work_under_a_fault(kind: str, outcomes: Mapping[str, Outcome], judge: Judge) -> None:
    judge(outcomes[kind])


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.10", "4.11")
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

    say(f"seed {random.seed}, {random.seconds:g} s; memory in MiB at the start: {dict(memory_of(broker))}")
    with all_work(broker, receiver, tmp_path) as everybody:
        everybody.start()
        assert everybody.go_on(WARM, PATIENCE) == []
        storm = Storm(everybody, random.seed, say)
        storm.rage(random.seconds)
        stuck = everybody.go_on(WARM, CALM_SECONDS)
        left = everybody.stop(CALM_SECONDS)
        say(f"broken in {storm.steps} steps: {dict(storm.happened)}; memory in MiB: {dict(memory_of(broker))}")
        judge(together(everybody, stuck, left, say))
    assert storm.problems == []
