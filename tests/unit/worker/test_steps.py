"""What a turn waits for: `delivery.worker.steps`."""

import threading
import time

import pytest

from delivery.worker import steps
from delivery.worker.steps import Turn

LONG = 20.0


@pytest.fixture(autouse=True)
def _still_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STILL_SECONDS", LONG)


def test_a_run_without_busy_lines_is_over_at_once() -> None:
    run = Turn([1, 2, 3], LONG)
    run.idle(1)
    assert run.stopped(2, has_more=True)
    assert run.stopped(3, has_more=False)

    assert run.wait() == [2]
    assert time.monotonic() < run.until - LONG / 2


def test_a_run_that_gets_no_answers_leaves_its_lines_with_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STILL_SECONDS", 0.01)
    run = Turn([1], LONG)

    assert run.wait() == []
    assert time.monotonic() < run.until - LONG / 2
    assert not run.stopped(1, has_more=True), "nobody is there any more to see to it"


def test_a_run_stays_as_long_as_answers_come() -> None:
    run = Turn([1], LONG)
    waited = threading.Thread(target=run.wait)
    waited.start()
    waited.join(0.05)
    assert waited.is_alive()

    run.idle(1)
    waited.join(LONG / 2)
    assert not waited.is_alive()


def test_a_run_ends_with_its_time() -> None:
    run = Turn([1], 0.01)

    assert run.wait() == []
    assert time.monotonic() >= run.until
