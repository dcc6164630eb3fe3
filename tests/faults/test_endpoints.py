"""Endpoints that misbehave or hang do not affect others."""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from broker_project.stack.load.exchanges import Exchange
from broker_project.stack.load.receiver import Receiver, answer, hang, running_receiver
from broker_project.stack.load.wait import wait_until
from tests.support.faults.figures import Report
from tests.support.faults.load import Load
from tests.support.faults.misbehaving_endpoints import (
    GARBAGE,
    SINGLE,
    Kind,
    MisbehavingEndpoint,
    Misbehaviour,
    misbehaving_endpoint,
)
from tests.support.faults.verdicts import Phase, Verdict, latency, unharmed

CALM = 60
"""Events before and during a fault whose latency is compared."""
DEADLINE_MS = 15_000
LATE_MS = 2_000
"""How much later than its deadline a request may end on a busy machine."""
NOISE_MS = 50
"""Below which latencies do not differ."""
MAX_TIMES = 2
"""How many times as long as before the others may take."""
MAX_MS = 1_000
"""That the others may take in any case."""

STUCK = 600
GOOD = 50
TRIES = 3
"""How often each stuck delivery is tried before its endpoint heals."""
GOOD_SECONDS = 5.0
"""The good ones take turns with at most as many stuck ones."""


ANSWERING = 250
HANGING = 50
HANDS = 4
"""Subscribers made at a time."""
EVERY = 0.5
"""Seconds between two events, each for all."""
HANGING_SECONDS = 17.0
"""Longer than a request may take."""
MAX_P99_MS = 2_000
"""On a machine with nothing else to do it is 300."""


@pytest.fixture
def other_receiver() -> Iterator[Receiver]:
    with running_receiver() as running:
        yield running


@contextlib.contextmanager
def only_these_affected(
    load: Load, report: Report, verdict: Verdict, endpoints: Collection[MisbehavingEndpoint]
) -> Iterator[None]:
    """Break endpoints inside, heal them, and check that each request without an answer is repeated, and no other.

    Latencies of the endpoints that never fail are compared before and during the fault.
    """
    load.publisher(1).start()
    load.wait_for(CALM // 2)
    calm = Phase()
    load.wait_for(CALM)
    with unharmed(load.broker, verdict):
        fault = calm.end()
        load.note_fault()
        yield
        fault.end()
        for endpoint in endpoints:
            endpoint.heal()
        seen = report()
    unanswered = [one for endpoint in endpoints for one in endpoint.exchanges if one.status is None]
    assert (seen.broken, seen.duplicated) == ({}, len(unanswered))
    others = [endpoint for endpoint in load.endpoints.values() if endpoint.name.startswith("steady")]
    before, during = (latency(load, others, phase, percent=95) for phase in (calm, fault))
    verdict.measured |= {"p95_before_ms": before, "p95_during_ms": during}
    assert during <= min(MAX_TIMES * max(before, NOISE_MS), MAX_MS)


def first_failed_try_of(load: Load, endpoint: MisbehavingEndpoint) -> tuple[int | None, bool, int]:
    """Return status, whether there was an error, and milliseconds of the first try of what took several."""
    (name,) = (subscribed.name for subscribed, one in load.endpoints.items() if one is endpoint)
    deliveries = load.broker.get("deliveries", subscriber=name, limit="200")["items"]
    return try_of(load, min(one["id"] for one in deliveries if one["attempts"] > 1))


def first_tricked_try_of(load: Load, endpoint: MisbehavingEndpoint) -> tuple[int | None, bool, int]:
    """Return the same of the first request that got no proper answer."""
    return try_of(load, int(endpoint.misbehaved[0].webhook_id.removeprefix("dlv_")))


def try_of(load: Load, delivery_id: int) -> tuple[int | None, bool, int]:
    attempt = load.broker.get(f"deliveries/{delivery_id}")["history"][0]
    return attempt["status_code"], bool(attempt["error"]), attempt["duration_ms"]


@pytest.mark.behaviour("4.8", "4.11")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.case(f"endpoint-{name}"), id=name) for name, kind in SINGLE.items()]
)
def test_an_endpoint_that_misbehaves(load: Load, figures: Report, verdict: Verdict, kind: Kind) -> None:
    mad = misbehaving_endpoint(load, "mad")
    with only_these_affected(load, figures, verdict, [mad]):
        mad.misbehave(kind.misbehaviour)
        load.wait_for(CALM)
        wait_until(lambda: len(mad.misbehaved) >= kind.requests, saying=lambda: len(mad.misbehaved))
    status, has_error, milliseconds = first_tricked_try_of(load, mad)
    assert (status, has_error) == (kind.misbehaviour.status, kind.misbehaviour.status is None)
    assert (DEADLINE_MS <= milliseconds <= DEADLINE_MS + LATE_MS) if kind.lasts else milliseconds < DEADLINE_MS


@pytest.mark.behaviour("4.8")
@pytest.mark.case("endpoint-refuses-connections")
def test_an_endpoint_that_refuses_connections(
    load: Load, figures: Report, verdict: Verdict, other_receiver: Receiver
) -> None:
    mad = misbehaving_endpoint(load, "mad", other_receiver)
    with only_these_affected(load, figures, verdict, [mad]):
        other_receiver.close_port()
        load.wait_for(CALM)
        other_receiver.open_port()
    status, has_error, milliseconds = first_failed_try_of(load, mad)
    assert (status, has_error, milliseconds < DEADLINE_MS) == (None, True, True)


@pytest.mark.behaviour("4.6", "4.8")
@pytest.mark.case("endpoints-answer-garbage")
def test_endpoints_that_answer_garbage(load: Load, figures: Report, verdict: Verdict, other_receiver: Receiver) -> None:
    # Elsewhere, since some close a connection without notice that requests to the same address would go on using.
    mad = {name: misbehaving_endpoint(load, name, other_receiver) for name in GARBAGE}
    with only_these_affected(load, figures, verdict, mad.values()):
        for name, misbehaviour in GARBAGE.items():
            mad[name].misbehave(misbehaviour)
        load.wait_for(CALM)
        wait_until(lambda: all(len(endpoint.misbehaved) >= 2 for endpoint in mad.values()))
    tries = {name: first_tricked_try_of(load, endpoint)[:2] for name, endpoint in mad.items()}
    assert tries == {name: (misbehaviour.status, misbehaviour.status is None) for name, misbehaviour in GARBAGE.items()}


def tries_of(exchanges: list[Exchange]) -> dict[int, list[float]]:
    """Return when each event was sent."""
    tries = defaultdict(list)
    for one in exchanges:
        tries[one.number].append(one.at)
    return tries


@pytest.mark.case("six-hundred-stuck")
@pytest.mark.behaviour("4.6", "4.10")
def test_deliveries_behind_six_hundred_stuck_ones(load: Load, figures: Report) -> None:
    mad = misbehaving_endpoint(load, "mad")
    mad.misbehave(Misbehaviour(answer(500), 500), on=lambda number: number <= STUCK)
    load.publish(STUCK)
    wait_until(lambda: len({one.number for one in mad.misbehaved}) == STUCK)
    load.publisher(GOOD).publish()
    published = time.monotonic()
    wait_until(lambda: len(mad.accepted()) == GOOD)
    arrived = max(one.at for one in mad.exchanges if one.status == 200)
    assert mad.accepted() == {*range(STUCK + 1, STUCK + GOOD + 1)}
    assert arrived - published <= GOOD_SECONDS
    wait_until(lambda: min(map(len, tries_of(mad.misbehaved).values())) >= TRIES)
    mad.heal()
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    for moments in tries_of(mad.misbehaved).values():
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
@pytest.mark.behaviour("4.1", "4.8")
def test_fifty_of_three_hundred_subscribers_hang(load: Load, figures: Report, verdict: Verdict) -> None:
    with ThreadPoolExecutor(HANDS) as hands:
        hanging = [*hands.map(lambda number: misbehaving_endpoint(load, f"hanging-{number}"), range(HANGING))]
        answering = [*hands.map(lambda number: load.subscribe(f"answering-{number}"), range(ANSWERING))]
    with unharmed(load.broker, verdict):
        load.note_fault()
        phase = Phase()
        for endpoint in hanging:
            endpoint.misbehave(Misbehaviour(hang))
        publish_for(load, HANGING_SECONDS)
        wait_until(lambda: all(len(endpoint.misbehaved) >= 2 for endpoint in hanging))
        phase.end()
        for endpoint in hanging:
            endpoint.heal()
        seen = figures()
    verdict.measured |= {f"p{share}_ms": latency(load, answering, phase, percent=share) for share in (50, 99)}
    assert (seen.broken, seen.duplicated) == ({}, sum(len(endpoint.misbehaved) for endpoint in hanging))
    assert verdict.measured["p99_ms"] <= MAX_P99_MS
