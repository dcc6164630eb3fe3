"""Whatever one endpoint does instead of answering, the others get theirs as before, and it gets its own later."""

from collections.abc import Callable, Iterator

import pytest

from tests.faults.figures import Figures
from tests.faults.load import Load
from tests.faults.measuring import Phase, latency, unharmed
from tests.faults.misbehaving import Misbehaving, misbehaving
from tests.faults.tricks import GARBAGE, SINGLE, Kind
from tests.faults.verdicts import Verdict
from tests.receiver import Receiver, receiving, wait_until

CALM = 60
"""Events before and during a fault whose latency is compared."""
DEADLINE_MS = 15_000
LATE_MS = 2_000
"""How much later than its deadline a request may end on a busy machine."""
PATIENCE = 60.0

NOISE_MS = 50
"""Below which latencies do not differ."""
MOST_TIMES = 2
"""How many times as long as before the others may take."""
MOST_MS = 1_000
"""That the others may take in any case."""

Report = Callable[[], Figures]


@pytest.fixture
def other_receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def publish_gently(load: Load) -> Phase:
    """Let one publisher publish; return the calm phase."""
    load.publisher(1).start()
    load.wait_for(CALM // 2)
    phase = Phase()
    load.wait_for(CALM)
    return phase


def assert_others_do_not_notice(load: Load, verdict: Verdict, calm: Phase, fault: Phase) -> None:
    """Compare what took how long for the endpoints that never fail."""
    others = [endpoint for endpoint in load.endpoints.values() if endpoint.name.startswith("steady")]
    before, during = (latency(load, others, phase, percent=95) for phase in (calm, fault))
    verdict.measured |= {"p95_before_ms": before, "p95_during_ms": during}
    assert during <= MOST_TIMES * max(before, NOISE_MS)
    assert during <= MOST_MS


def first_failed_try_of(load: Load, endpoint: Misbehaving) -> tuple[int | None, bool, int]:
    """Return status, whether there was an error, and milliseconds of the first try of what took several."""
    (name,) = (subscribed.name for subscribed, one in load.endpoints.items() if one is endpoint)
    deliveries = load.broker.get("deliveries", subscriber=name, limit="200")["items"]
    return try_of(load, min(one["id"] for one in deliveries if one["attempts"] > 1))


def first_tricked_try_of(load: Load, endpoint: Misbehaving) -> tuple[int | None, bool, int]:
    """Return the same of the first request that got no proper answer."""
    return try_of(load, int(endpoint.tricked[0].webhook_id.removeprefix("dlv_")))


def try_of(load: Load, delivery_id: int) -> tuple[int | None, bool, int]:
    attempt = load.broker.get(f"deliveries/{delivery_id}")["history"][0]
    return attempt["status_code"], bool(attempt["error"]), attempt["duration_ms"]


@pytest.mark.behaviour("4.8")
@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.case(f"endpoint-{name}"), id=name) for name, kind in SINGLE.items()]
)
def test_an_endpoint_that_misbehaves(load: Load, figures: Report, verdict: Verdict, kind: Kind) -> None:
    mad = misbehaving(load, "mad")
    calm = publish_gently(load)
    with unharmed(load.broker, verdict):
        fault = calm.end()
        load.note_fault()
        mad.misbehave(kind.trick)
        load.wait_for(CALM)
        wait_until(lambda: len(mad.tricked) >= kind.requests, PATIENCE, saying=lambda: len(mad.tricked))
        fault.end()
        mad.heal()
        seen = figures()
    unanswered = [one for one in mad.exchanges if one.status is None]
    assert (seen.broken, seen.duplicated) == ({}, len(unanswered))
    assert_others_do_not_notice(load, verdict, calm, fault)
    status, has_error, milliseconds = first_tricked_try_of(load, mad)
    assert (status, has_error) == (kind.trick.status, kind.trick.status is None)
    assert (DEADLINE_MS <= milliseconds <= DEADLINE_MS + LATE_MS) if kind.lasts else milliseconds < DEADLINE_MS


@pytest.mark.behaviour("4.8")
@pytest.mark.case("endpoint-refuses-connections")
def test_an_endpoint_that_refuses_connections(
    load: Load, figures: Report, verdict: Verdict, other_receiver: Receiver
) -> None:
    mad = misbehaving(load, "mad", other_receiver)
    calm = publish_gently(load)
    with unharmed(load.broker, verdict):
        fault = calm.end()
        load.note_fault()
        other_receiver.close_port()
        load.wait_for(CALM)
        fault.end()
        other_receiver.open_port()
        seen = figures()
    unanswered = [one for one in mad.exchanges if one.status is None]
    assert (seen.broken, seen.duplicated) == ({}, len(unanswered))
    assert_others_do_not_notice(load, verdict, calm, fault)
    status, has_error, milliseconds = first_failed_try_of(load, mad)
    assert (status, has_error, milliseconds < DEADLINE_MS) == (None, True, True)


@pytest.mark.behaviour("4.6")
@pytest.mark.behaviour("4.8")
@pytest.mark.case("endpoints-answer-garbage")
def test_endpoints_that_answer_garbage(load: Load, figures: Report, verdict: Verdict, other_receiver: Receiver) -> None:
    # Elsewhere, since some close a connection without notice that requests to the same address would go on using.
    mad = {name: misbehaving(load, name, other_receiver) for name in GARBAGE}
    calm = publish_gently(load)
    with unharmed(load.broker, verdict):
        fault = calm.end()
        load.note_fault()
        for name, trick in GARBAGE.items():
            mad[name].misbehave(trick)
        load.wait_for(CALM)
        wait_until(lambda: all(len(endpoint.tricked) >= 2 for endpoint in mad.values()), PATIENCE)
        fault.end()
        for endpoint in mad.values():
            endpoint.heal()
        seen = figures()
    unanswered = [one for endpoint in mad.values() for one in endpoint.exchanges if one.status is None]
    assert (seen.broken, seen.duplicated) == ({}, len(unanswered))
    assert_others_do_not_notice(load, verdict, calm, fault)
    tries = {name: first_tricked_try_of(load, endpoint)[:2] for name, endpoint in mad.items()}
    assert tries == {name: (trick.status, trick.status is None) for name, trick in GARBAGE.items()}
