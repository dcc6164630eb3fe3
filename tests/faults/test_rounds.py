"""A worker's round is interrupted, refused or held up: what one line meets costs no other, and nothing twice."""

import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import pytest

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from tests.support.faults.breakage import (
    MAX_RESTART,
    drop_triggers,
    kill_all,
    locked,
    refused,
    refusing_connections,
    restarted,
    stopped,
    terminate,
)
from tests.support.faults.endpoints import Endpoint, note_stored
from tests.support.faults.exchanges import extra_copies
from tests.support.faults.figures import UNDER_WAY, Figures, promised_pause
from tests.support.faults.load import AFTERWARDS, WARM, Load
from tests.support.faults.queue_load import QueueLoad, queue_loaded
from tests.support.faults.topic_workloads import AT_A_TIME, ConcurrentWorkload, KeyedWorkload
from tests.support.faults.verdicts import Verdict
from tests.support.faults.workload import EVERY
from tests.support.real_broker import Broker

pytestmark = pytest.mark.behaviour("4.11", "11.3")

PLACES = {
    "marks": "UPDATE ON delivery_open FOR EACH ROW WHEN (NEW.status = 'IN_FLIGHT' AND OLD.status = 'PENDING')",
    "settles": "INSERT ON delivery_attempt FOR EACH ROW",
    "reads": "INSERT ON delivery_pageread FOR EACH ROW",
    "recovers": "UPDATE ON delivery_open FOR EACH ROW WHEN (NEW.uncertain AND NOT OLD.uncertain)",
}
"""Changes that a worker makes in a round."""
DELIVERY = "SELECT FROM delivery_open WHERE id = %(delivery_id)s"
POISON = "INSERT ON delivery_attempt FOR EACH ROW WHEN (NEW.delivery_id = {})"

STANDS_SECONDS = 2.0
"""How long what a dead worker had begun stands there: its successor comes meanwhile."""
SESSIONS = 5
"""How often sessions end in the middle of a settle."""
REFUSED_SECONDS = 3.0
LOCKED_SECONDS = 3.0
MAX_PAUSE = promised_pause("somebody locks a row: all other lines")
OTHERS = 63
SLOWLY = 0.2
"""Seconds between two events for 64 lines."""
LINE = "SELECT FROM delivery_line WHERE subscriber_id = (SELECT id FROM subscriptions_subscriber WHERE name = %(name)s)"


@dataclass(slots=True)
class Traffic:
    """Strict lines, two that send several at a time, one of these by keys, and a QUEUE, all of the same workers."""

    load: Load
    several: ConcurrentWorkload
    keyed: KeyedWorkload
    jobs: QueueLoad
    verdict: Verdict

    def start(self) -> None:
        self.jobs.start()
        self.load.start()

    def endpoints(self) -> list[Endpoint]:
        return [*self.load.endpoints.values(), self.several.endpoint, self.keyed.endpoint, *self.jobs.endpoints]

    def hold_all(self) -> None:
        """Let every endpoint keep its requests waiting."""
        for endpoint in self.endpoints():
            endpoint.is_stuck = True
        wait_until(lambda: all(one.has_one_in_flight() for one in self.endpoints()))

    def go_on(self) -> None:
        for endpoint in self.endpoints():
            endpoint.is_stuck = False

    def end(self) -> dict[str, Figures]:
        """Wait until everything is through; return the figures of each kind, and check what must be 0."""
        self.load.wait_for(AFTERWARDS)
        self.jobs.stop()
        self.load.stop()
        seen = {"topic": self.load.figures(), "queue": self.jobs.figures()}
        for several in (self.several, self.keyed):
            wait_until(several.is_through)
            note_stored(self.load.broker, [several.endpoint])
            seen[several.kind] = several.figures()
            self.verdict.figures += seen[several.kind]  # the others are added by their fixtures
        assert {kind: each.broken for kind, each in seen.items()} == {kind: {} for kind in seen}
        return seen


@pytest.fixture
def traffic(load: Load, receiver: Receiver, broker: Broker, verdict: Verdict) -> Iterator[Traffic]:
    several, keyed = ConcurrentWorkload.of(load), KeyedWorkload.of(load)
    with queue_loaded(broker, receiver, every=EVERY) as jobs:
        jobs.faults = load.faults
        yield Traffic(load, several, keyed, jobs, verdict)
        verdict.figures += jobs.figures()
    drop_triggers(broker)


def assert_repeated_at_most_once(seen: dict[str, Figures]) -> None:
    """Check that a fault has cost each line at most what it had in flight."""
    copies = {kind: each.max_per_fault for kind, each in seen.items()}
    assert copies["topic"] <= 1, copies
    assert max(copies["concurrent"], copies["keyed"]) <= AT_A_TIME, copies
    assert copies["queue"] <= UNDER_WAY, copies


def assert_went_on(endpoints: Collection[Endpoint], since: float, until: float) -> None:
    """Check that each of these got requests all the time."""
    for endpoint in endpoints:
        moments = [since, *(one.at for one in endpoint.exchanges if since < one.at < until), until]
        pauses = [after - before for before, after in pairwise(moments)]
        assert max(pauses) <= MAX_PAUSE, endpoint.name


@pytest.mark.behaviour("4.10", "6.4")
@pytest.mark.case("worker-killed-while-it-{place}")
@pytest.mark.parametrize("place", PLACES)
def test_workers_are_killed_in_the_middle_of_a_round(traffic: Traffic, broker: Broker, place: str) -> None:
    traffic.start()
    workers = broker.workers()
    if place == "recovers":
        traffic.hold_all()
    with restarted(*workers), stopped(broker, PLACES[place]) as sessions:
        if place == "recovers":
            kill_all(traffic.load)
            traffic.go_on()
        wait_until(sessions)
        kill_all(traffic.load)
        time.sleep(STANDS_SECONDS)
    seen = traffic.end()
    assert_repeated_at_most_once(seen)
    assert seen["topic"].pause <= MAX_RESTART * len(traffic.load.faults)


@pytest.mark.behaviour("4.10", "6.4")
@pytest.mark.case("sessions-ended-in-rounds")
def test_the_database_is_away_between_two_statements(traffic: Traffic, broker: Broker) -> None:
    traffic.start()
    traffic.hold_all()  # marked, and not settled
    with traffic.load.fault(), refusing_connections(broker):
        pass
    traffic.go_on()
    traffic.load.wait_for(WARM)
    with stopped(broker, PLACES["settles"]) as sessions:
        for _ in range(SESSIONS):
            wait_until(sessions)
            with traffic.load.fault():
                terminate(broker, sessions())
    traffic.load.wait_for(WARM)
    with traffic.load.fault(), refusing_connections(broker):
        time.sleep(REFUSED_SECONDS)
    seen = traffic.end()
    assert_repeated_at_most_once(seen)
    assert seen["topic"].pause <= MAX_RESTART


@pytest.mark.behaviour("4.1")
@pytest.mark.case("line-locked")
@pytest.mark.selected
def test_a_locked_line_holds_up_no_other(traffic: Traffic, broker: Broker) -> None:
    traffic.start()
    (subscribed, mine), *_ = traffic.load.endpoints.items()
    assert_holds_up_no_other(traffic, mine, locked(broker, LINE, name=subscribed.name))


@pytest.mark.behaviour("4.1", "4.11", "11.3")
@pytest.mark.case("delivery-locked")
def test_a_locked_delivery_holds_up_no_other_line(traffic: Traffic, broker: Broker) -> None:
    traffic.start()
    (_, mine), *_ = traffic.load.endpoints.items()
    mine.is_stuck = True
    wait_until(mine.has_one_in_flight)
    assert_holds_up_no_other(traffic, mine, locked(broker, DELIVERY, delivery_id=delivery_at(mine)))


def assert_holds_up_no_other(traffic: Traffic, mine: Endpoint, lock: AbstractContextManager[object]) -> None:
    """Lock something for a while; check that others go on meanwhile, and `mine` afterwards, and nothing is repeated."""
    with traffic.load.fault(), lock:
        since = time.monotonic()
        mine.is_stuck = False
        time.sleep(LOCKED_SECONDS)
        before, until = len(mine.exchanges), time.monotonic()
    seen = traffic.end()
    assert len(mine.exchanges) > before
    assert {kind: each.duplicated for kind, each in seen.items()} == dict.fromkeys(seen, 0)
    assert_went_on([one for one in traffic.endpoints() if one is not mine], since, until)


def delivery_at(endpoint: Endpoint) -> int:
    """Return the delivery that was sent last."""
    return int(endpoint.exchanges[-1].webhook_id.removeprefix("dlv_"))


@pytest.mark.behaviour("4.10")
@pytest.mark.case("one-of-sixty-four-refused")
def test_a_delivery_that_the_database_refuses_costs_its_own_line(traffic: Traffic, broker: Broker) -> None:
    load, (_, poisoned) = traffic.load, next(iter(traffic.load.endpoints.items()))
    for number in range(OTHERS + 1 - len(load.endpoints)):
        load.subscribe(f"other-{number}")
    traffic.jobs.start()
    load.publisher(1, SLOWLY).start()
    load.wait_for(WARM // 10)
    poisoned.is_stuck = True
    wait_until(poisoned.has_one_in_flight)
    sent = len(poisoned.exchanges)
    with load.fault(), refused(broker, POISON.format(delivery_at(poisoned))) as has_been_refused:
        since = time.monotonic()
        poisoned.is_stuck = False
        wait_until(has_been_refused)
        time.sleep(REFUSED_SECONDS)
        until = time.monotonic()
    assert len(poisoned.exchanges) == sent
    wait_until(lambda: len(poisoned.exchanges) > sent)
    seen = traffic.end()
    copies = [copy.request for copy in extra_copies(poisoned.exchanges)]
    assert [one.flagged for one in copies] == [True]
    assert {kind: each.duplicated for kind, each in seen.items()} == dict.fromkeys(seen, 0) | {"topic": 1}
    assert_went_on([one for one in traffic.endpoints() if one is not poisoned], since, until)
