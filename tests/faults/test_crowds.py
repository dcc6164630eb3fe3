"""Many that get nothing done: stuck deliveries in front of good ones, and fifty subscribers that hang among others."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tests.faults.exchanges import Exchange
from tests.faults.figures import Figures
from tests.faults.load import Load
from tests.faults.measuring import Phase, latency, unharmed
from tests.faults.misbehaving import Trick, misbehaving
from tests.faults.verdicts import Verdict
from tests.receiver import answer, hang, wait_until

STUCK = 600
GOOD = 50
TRIES = 3
"""How often each stuck delivery is tried before its endpoint heals."""
GOOD_SECONDS = 5.0
"""The good ones take turns with at most as many stuck ones."""
PATIENCE = 60.0

ANSWERING = 250
HANGING = 50
HANDS = 4
"""Subscribers made at a time."""
EVERY = 0.5
"""Seconds between two events, each for all."""
HANGING_SECONDS = 17.0
"""Longer than a request may take."""
MOST_P99_MS = 2_000
"""On a machine with nothing else to do it is 300."""

Report = Callable[[], Figures]


def tries_of(exchanges: list[Exchange]) -> dict[int, list[float]]:
    """Return when each event was sent."""
    tries = defaultdict(list)
    for one in exchanges:
        tries[one.number].append(one.at)
    return tries


@pytest.mark.case("six-hundred-stuck")
@pytest.mark.behaviour("4.6")
@pytest.mark.behaviour("4.10")
def test_deliveries_behind_six_hundred_stuck_ones(load: Load, figures: Report) -> None:
    mad = misbehaving(load, "mad")
    mad.misbehave(Trick(answer(500), 500), on=lambda number: number <= STUCK)
    load.publish(STUCK)
    wait_until(lambda: len({one.number for one in mad.tricked}) == STUCK, PATIENCE)
    load.publisher(GOOD).publish()
    published = time.monotonic()
    wait_until(lambda: len(mad.accepted()) == GOOD, PATIENCE)
    arrived = max(one.at for one in mad.exchanges if one.status == 200)
    assert mad.accepted() == {*range(STUCK + 1, STUCK + GOOD + 1)}
    assert arrived - published <= GOOD_SECONDS
    wait_until(lambda: min(map(len, tries_of(mad.tricked).values())) >= TRIES, PATIENCE)
    mad.heal()
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    for moments in tries_of(mad.tricked).values():
        pauses = [after - before for before, after in pairwise(moments)]
        assert all(pause >= 2.0**tried for tried, pause in enumerate(pauses))


def publish_for(load: Load, seconds: float) -> None:
    """Publish one event after the other, at an even pace, beginning now."""
    publisher, pace = load.publisher(1), threading.Event()
    begun = time.monotonic()
    for number in range(int(seconds / EVERY)):
        pace.wait(begun + number * EVERY - time.monotonic())
        publisher.publish()


@pytest.mark.case("fifty-of-three-hundred-hang")
@pytest.mark.behaviour("4.1")
@pytest.mark.behaviour("4.8")
def test_fifty_of_three_hundred_subscribers_hang(load: Load, figures: Report, verdict: Verdict) -> None:
    with ThreadPoolExecutor(HANDS) as hands:
        hanging = [*hands.map(lambda number: misbehaving(load, f"hanging-{number}"), range(HANGING))]
        answering = [*hands.map(lambda number: load.subscribe(f"answering-{number}"), range(ANSWERING))]
    with unharmed(load.broker, verdict):
        load.note_fault()
        phase = Phase()
        for endpoint in hanging:
            endpoint.misbehave(Trick(hang))
        publish_for(load, HANGING_SECONDS)
        wait_until(lambda: all(len(endpoint.tricked) >= 2 for endpoint in hanging), PATIENCE)
        phase.end()
        for endpoint in hanging:
            endpoint.heal()
        seen = figures()
    verdict.measured |= {f"p{share}_ms": latency(load, answering, phase, percent=share) for share in (50, 99)}
    assert (seen.broken, seen.duplicated) == ({}, sum(len(endpoint.tricked) for endpoint in hanging))
    assert verdict.measured["p99_ms"] <= MOST_P99_MS
