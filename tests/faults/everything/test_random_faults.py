"""Faults at random under all kinds of work, by a seed: in the end nothing is lost, doubled, or out of order."""

import time
from pathlib import Path

import pytest

from tests.brokers import Brokers, begin_anew
from tests.faults.everything.conftest import Judge
from tests.faults.everything.gathering import everything
from tests.faults.everything.memory import memory_of
from tests.faults.everything.storms import Storm
from tests.faults.everything.surviving import PATIENCE, WARM, together
from tests.faults.verdicts import RANDOM, Random
from tests.receiver import Receiver

CALM_SECONDS = 300.0
"""In which all is through that the longest retry put off."""


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
    begin_anew(brokers, request.session)
    random, broker = request.config.stash.get(RANDOM, Random()), brokers.broker()

    def say(what: str) -> None:
        with capfd.disabled():
            print(f"\n{time.strftime('%H:%M:%S')} {what}", end="", flush=True)

    say(f"seed {random.seed}, {random.seconds:g} s; memory in MiB at the start: {dict(memory_of(broker))}")
    with everything(broker, receiver, tmp_path) as everybody:
        everybody.start()
        assert everybody.go_on(WARM, PATIENCE) == []
        storm = Storm(everybody, random.seed, say)
        storm.rage(random.seconds)
        stuck = everybody.go_on(WARM, CALM_SECONDS)
        left = everybody.stop(CALM_SECONDS)
        say(f"broken in {storm.steps} steps: {dict(storm.happened)}; memory in MiB: {dict(memory_of(broker))}")
        judge(together(everybody, stuck, left, say))
    assert storm.problems == []
