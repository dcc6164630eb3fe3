"""Workers are killed, stopped or joined by others: at most the requests in flight are repeated."""

import dataclasses
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from broker_project.stack.load.exchanges import Exchange, Published
from broker_project.stack.load.receiver import Receiver, hang
from broker_project.stack.load.wait import wait_until
from broker_project.stack.supervisor import Child
from tests.support.behaviours import kill_sender
from tests.support.faults.audit import by_status, unrecorded_gaps
from tests.support.faults.breakage import (
    flush_redis,
    frozen,
    hung,
    kill_again_and_again,
    kill_all,
    more_beats,
    more_workers,
    restarted,
    send,
)
from tests.support.faults.endpoints import APART, Endpoint, body_of
from tests.support.faults.exchanges import TRAVEL_SECONDS, extra_copies, first_sent
from tests.support.faults.figures import RESTARTED, TAKEN_OVER, Report
from tests.support.faults.figures import figures as figures_of
from tests.support.faults.load import AFTERWARDS, LARGE_BATCH, WARM, Load
from tests.support.faults.misbehaving_endpoints import MisbehavingEndpoint, Misbehaviour
from tests.support.faults.proxy import proxied
from tests.support.faults.verdicts import Verdict
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

STOP_SECONDS = 20.0


PROBE_SECONDS = 2.0


RETRY_KILLS = 4

DENSE = 200
"""Lines, each of which gets every event."""
EACH = 30
"""Events of each kind, before the endpoint works and after."""
TIMED_KILLS = 3
LATER_SECONDS = 4.0
SHORT_SECONDS = 6
"""No kill is over so soon: what lives no longer expires while the endpoint is down."""
LONG_SECONDS = 600

TURN_SECONDS = 30.0
TOGETHER_SECONDS = 4 * TURN_SECONDS
"""Each time that the turns of all lines end, one of the other fleet takes one of them, with few exceptions."""
LEASE_SECONDS = 20.0
LONG_REQUEST_SECONDS = 30.0
"""Longer than a lease, and than a turn."""
NOTICE_SECONDS = 15.0
"""How long it takes to notice an expired lease on a busy machine."""


@pytest.mark.behaviour("11.3", "11.9", "4.10", "4.11")
@pytest.mark.case("{killed}")
@pytest.mark.pause(RESTARTED)
@pytest.mark.parametrize(
    "killed",
    [pytest.param("worker-killed", marks=pytest.mark.selected), "workers-killed-redis-flushed", "celery-killed"],
)
def test_processes_are_killed_while_requests_are_in_flight(load: Load, figures: Report, killed: str) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    workers = load.broker.workers()
    victims = {
        "worker-killed": [load.first_driver()],
        "workers-killed-redis-flushed": workers,
        "celery-killed": [*workers, load.broker.stack.supervisor["beat"]],
    }[killed]
    with restarted(*victims):
        with load.fault():
            for victim in victims:
                victim.kill()
            if killed == "workers-killed-redis-flushed":
                flush_redis(load.broker)
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.max_per_line) == ({}, 1)
    assert killed == "worker-killed" or seen.duplicated == len(load.endpoints)
    copies = [copy.request for endpoint in load.endpoints.values() for copy in extra_copies(endpoint.exchanges)]
    assert all(copy.is_stored for copy in copies)


def publish_and_wait_for_some(load: Load) -> None:
    """Publish to all lines at once; return when a fifth is delivered."""
    load.publish(LARGE_BATCH)
    rest = 0.8 * load.pending()
    wait_until(lambda: load.pending() < rest)


@pytest.mark.behaviour("11.3", "4.10", "4.11")
@pytest.mark.case("dense-killed")
def test_workers_are_killed_while_rounds_settle_dozens_of_lines(load: Load, figures: Report) -> None:
    for number in range(DENSE - len(load.endpoints)):
        load.subscribe(f"dense-{number}")
    first, second = load.broker.workers()[:2]
    for victim in (first, second, first):
        publish_and_wait_for_some(load)
        with restarted(victim), load.fault():
            victim.kill()
    seen = figures()
    assert seen.broken == {}
    assert seen.max_per_line <= len(load.faults)


@pytest.mark.behaviour("4.11")
@pytest.mark.case("worker-asked-to-stop")
def test_a_stopping_worker_finishes_its_requests(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    worker = load.first_driver()
    asked = worker.pid
    with restarted(worker):
        with load.fault():
            send(signal.SIGTERM, worker)
        wait_until(lambda: "Warm shutdown" in worker.tail(), saying=worker.tail)
        wait_until(lambda: not worker.service.is_ready())
        assert worker.pid == asked
        load.go_on()
        wait_until(lambda: worker.pid != asked, STOP_SECONDS)
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert not any(one.flagged for endpoint in load.endpoints.values() for one in endpoint.exchanges)


SUSPENDING = {
    "on_unavailable": "HOLD",
    "initial_delay_seconds": 0.2,
    "max_delay_seconds": 0.2,
    "max_retries": 2,
    "on_exhausted": "SUSPEND",
    "probe_seconds": PROBE_SECONDS,
}


@pytest.mark.behaviour("4.10", "4.11", "5.6", "11.3")
@pytest.mark.case("suspended-killed")
def test_workers_are_killed_while_a_subscription_is_suspended_and_tried(
    load: Load, figures: Report, verdict: Verdict
) -> None:
    wanted = load.event_types[0]
    endpoint = Endpoint("suspended", load.receiver)
    policy = load.broker.retry_policy(**SUSPENDING)
    subscribed = load.broker.subscribe(load.receiver.url("/suspended"), wanted, retry_policy=policy)
    load.start()
    endpoint.is_busy = True
    wait_until(lambda: load.broker.subscription(subscribed.name)["paused_by"] == "POLICY")
    suspended_at = time.monotonic()
    endpoint.is_stuck = True
    wait_until(endpoint.has_one_in_flight)  # a trial
    kill_all(load)
    endpoint.is_stuck = False
    kill_again_and_again(load, RETRY_KILLS)
    healed_at = time.monotonic()
    endpoint.is_busy = False
    load.wait_for(AFTERWARDS)
    seen = figures()
    wait_until(lambda: load.broker.has_finished([subscribed]))

    events = {number: event for number, event in load.published().items() if event.type == wanted}
    own = figures_of(events, load.begun(), {"suspended": endpoint.exchanges}, faults=load.faults)
    verdict.figures += own
    trials = sum(suspended_at <= one.at < healed_at for one in endpoint.exchanges)
    verdict.measured["trials"] = trials
    assert (seen.broken, own.broken) == ({}, {})
    assert own.max_per_fault <= 1
    assert 0 < trials <= 1 + (healed_at - suspended_at) / PROBE_SECONDS + len(load.faults)
    assert by_status(load.broker, subscribed).keys() == {"DELIVERED"}
    assert load.broker.subscription(subscribed.name)["paused_by"] != "POLICY"


DIVERTING = APART | {"initial_delay_seconds": 2.0, "max_delay_seconds": 2.0, "max_retries": 100}


@pytest.mark.behaviour("4.11", "5.10", "11.3")
@pytest.mark.case("diverted-killed")
def test_workers_are_killed_while_a_subscription_is_diverted(load: Load, figures: Report, verdict: Verdict) -> None:
    wanted = load.event_types[0]
    endpoint = MisbehavingEndpoint("diverted", load.receiver)
    policy = load.broker.retry_policy(**DIVERTING)
    address = load.receiver.url("/diverted")
    subscribed = load.broker.subscribe(address, wanted, retry_policy=policy, timeout_seconds=1)
    load.start()
    endpoint.misbehave(Misbehaviour(hang))
    wait_until(endpoint.has_one_in_flight)
    kill_all(load)  # as it begins
    wait_until(lambda: load.broker.subscription(subscribed.name)["diverted_since"])
    kill_again_and_again(load, RETRY_KILLS)
    endpoint.heal()
    wait_until(lambda: len(endpoint.exchanges) > len(endpoint.misbehaved))
    kill_all(load)  # as it ends
    load.wait_for(AFTERWARDS)
    seen = figures()
    wait_until(lambda: load.broker.has_finished([subscribed]))

    events = {number: event for number, event in load.published().items() if event.type == wanted}
    own = figures_of(events, load.begun(), {"diverted": endpoint.exchanges}, faults=load.faults)
    verdict.figures += own
    hung = [one.number for one in endpoint.misbehaved]
    verdict.measured["tried"] = len(hung)
    # what hangs is repeated after its time-out, also where nothing was killed
    assert (seen.broken, own.broken.keys() - {"not_under_way"}) == ({}, set())
    assert len({*hung}) == 1, "what waits behind the first has no attempt"
    assert by_status(load.broker, subscribed).keys() == {"DELIVERED"}
    assert not load.broker.subscription(subscribed.name)["diverted_since"]


@dataclass(frozen=True, slots=True)
class Timed:
    """An event, and when it may be sent; times are monotonic, of the same machine as the broker's clock."""

    event: Published
    begins: float
    ends: float

    def is_out_of_time(self, request: Exchange) -> bool:
        """Return whether a request came before its time, or left after it."""
        return request.at < self.begins or request.at > self.ends + TRAVEL_SECONDS


def publish_timed(broker: Broker, event_type: str, numbers: Iterable[int], lives: int) -> Iterator[Timed]:
    """Publish events of three kinds in turn: plain, delayed, and with a time-to-live of `lives` seconds."""
    session, address = broker.publisher(), f"{broker.web}/api/v1/events/{event_type}"
    session.headers["Content-Type"] = "application/json"
    for number in numbers:
        started, later = time.monotonic(), datetime.fromtimestamp(time.time() + LATER_SECONDS, UTC)
        terms = ({}, {"Broker-Not-Before": later.isoformat()}, {"Broker-TTL": str(lives)})[number % 3]
        session.post(address, body_of(number), headers=terms, timeout=TIMEOUT_SECONDS).raise_for_status()
        event = Published(number, event_type, started, time.monotonic())
        begins = started + LATER_SECONDS if "Broker-Not-Before" in terms else 0.0
        yield Timed(event, begins, event.ended + lives if "Broker-TTL" in terms else float("inf"))


@pytest.mark.behaviour("2.10", "2.13", "4.15", "11.3")
@pytest.mark.case("delayed-and-expiring")
def test_workers_are_killed_while_messages_are_delayed_or_expire(load: Load, figures: Report, verdict: Verdict) -> None:
    event_type = load.broker.event_type()
    endpoint = Endpoint("timed", load.receiver)
    subscribed = load.broker.subscribe(load.receiver.url("/timed"), event_type)
    load.start()
    endpoint.is_busy = True
    early = [*publish_timed(load.broker, event_type, range(3 * EACH), SHORT_SECONDS)]
    doomed = {one.event.number for one in early if one.ends < float("inf")}
    kill_again_and_again(load, TIMED_KILLS)
    wait_until(lambda: by_status(load.broker, subscribed).get("EXPIRED", set()) >= doomed)
    endpoint.is_busy = False
    late = [*publish_timed(load.broker, event_type, range(3 * EACH, 6 * EACH), LONG_SECONDS)]
    kill_again_and_again(load, TIMED_KILLS)
    seen = figures()
    wait_until(lambda: load.broker.has_finished([subscribed]))

    timed = {one.event.number: one for one in (*early, *late)}
    through = [one for one in timed.values() if one.event.number not in doomed]
    in_order = {one.event.number: one.event for one in through if not one.begins}
    own = figures_of(in_order, timed.keys(), {"timed": endpoint.exchanges}, faults=load.faults)
    numbers = [one.sequence for one in first_sent(endpoint.exchanges)]
    gaps = unrecorded_gaps(load.broker, subscribed, numbers)
    own = dataclasses.replace(own, misnumbered=len(gaps), recovered=0)
    verdict.figures += own
    verdict.measured["out_of_time"] = sum(timed[one.number].is_out_of_time(one) for one in endpoint.exchanges)
    ended = by_status(load.broker, subscribed)
    assert (seen.broken, own.broken, verdict.measured["out_of_time"]) == ({}, {}, 0)
    assert numbers == sorted({*numbers})
    assert ended["EXPIRED"] == doomed
    assert ended["DELIVERED"] == {one.event.number for one in through} == endpoint.accepted()
    assert own.max_per_fault <= 1


@pytest.mark.behaviour("4.2", "11.3")
@pytest.mark.case("two-fleets-three-beats")
def test_two_fleets_of_workers_and_three_beats_run_at_once(load: Load, figures: Report) -> None:
    for endpoint in load.endpoints.values():
        endpoint.is_slow = True  # time enough for another worker to begin the next request
    load.publisher(1).start()  # no more than slow endpoints take, however long it lasts
    load.wait_for(WARM)
    drivers: set[str] = set()
    with more_workers(load.broker), more_beats(load.broker, 2):
        wait_until(lambda: drivers_of_both_fleets(load, drivers), TOGETHER_SECONDS)
        load.wait_for(AFTERWARDS)
        seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)


def drivers_of_both_fleets(load: Load, drivers: set[str]) -> bool:
    """Add the workers that drive a line now; return whether they were of both fleets."""
    drivers |= {load.broker.driver_of(subscribed) for subscribed in load.endpoints}
    return len({driver.partition(".")[2] for driver in drivers if driver}) == 2


@pytest.mark.behaviour("4.10", "4.11", "11.3")
@pytest.mark.case("worker-frozen-past-its-lease")
@pytest.mark.pause(TAKEN_OVER)
def test_a_frozen_worker_loses_its_lines_to_others(load: Load, figures: Report) -> None:
    with more_workers(load.broker):
        load.start()
        load.wait_until_all_are_under_way()
        victim = load.first_driver()
        with frozen(victim):
            with load.fault():
                pass
            load.go_on()  # the answers wait for it to wake up
            wait_until(lambda: all_have_left(victim, load), LEASE_SECONDS * 2)
            load.wait_for(AFTERWARDS)
        load.wait_for(AFTERWARDS)
        seen = figures()
    assert (seen.broken, seen.max_per_line) == ({}, 1)
    copies = [copy.request for endpoint in load.endpoints.values() for copy in extra_copies(endpoint.exchanges)]
    assert [answers_settled(load.broker, copy) for copy in copies] == [1] * seen.duplicated
    assert seen.pause >= LEASE_SECONDS - NOTICE_SECONDS


@pytest.mark.behaviour("4.10", "4.11", "4.16", "11.3")
@pytest.mark.case("workers-cut-off")
@pytest.mark.pause(TAKEN_OVER)
def test_workers_that_cannot_reach_postgresql_lose_their_lines_to_others(load: Load, figures: Report) -> None:
    cut_off = load.broker.workers()
    with proxied(load.broker, cut_off) as proxy:
        load.start()
        load.wait_until_all_are_under_way()
        with more_workers(load.broker), proxy.dropping():
            with load.fault():
                pass
            load.go_on()  # the answers cannot be stored
            wait_until(lambda: all(all_have_left(worker, load) for worker in cut_off), LEASE_SECONDS * 2)
            load.wait_for(AFTERWARDS)
        load.wait_for(AFTERWARDS)
        seen = figures()
    assert (seen.broken, seen.max_per_line, seen.duplicated) == ({}, 1, len(load.endpoints))


@pytest.mark.behaviour("4.11", "4.16", "4.17", "11.3")
@pytest.mark.case("long-request-{broken}")
@pytest.mark.parametrize("broken", ["undisturbed", "worker-killed", "postgresql-hung"])
def test_requests_take_longer_than_a_lease(broker: Broker, receiver: Receiver, broken: str) -> None:
    wanted = broker.event_type()
    endpoint = Endpoint("long", receiver)
    subscribed = broker.subscribe(receiver.url("/long"), wanted, timeout_seconds=60)
    endpoint.is_stuck = True
    for number in range(3):
        broker.publish(wanted, body_of(number)).raise_for_status()
    wait_until(lambda: endpoint.exchanges)
    worker = broker.worker_driving(subscribed)
    assert worker
    if broken == "worker-killed":
        with restarted(worker):
            worker.kill()
        wait_until(lambda: len(endpoint.exchanges) == 2, LEASE_SECONDS + NOTICE_SECONDS)
    elif broken == "postgresql-hung":
        with hung(broker.stack.supervisor["postgres"]):
            time.sleep(LEASE_SECONDS)
            endpoint.is_stuck = False
            wait_until(lambda: endpoint.exchanges[0].status)
            endpoint.is_stuck = True
        assert endpoint.exchanges[0].hung_up, "the worker ended it before its lease did"
        wait_until(lambda: len(endpoint.exchanges) == 2, LEASE_SECONDS + NOTICE_SECONDS)
    time.sleep(LONG_REQUEST_SECONDS)  # how long the request takes; nothing may happen meanwhile
    endpoint.is_stuck = False
    wait_until(lambda: broker.has_finished([subscribed]))
    again = [] if broken == "undisturbed" else [(0, True)]
    sent = [(one.number, one.flagged) for one in endpoint.exchanges]
    assert sent == [(0, False), *again, (1, False), (2, False)]
    assert [answers_settled(broker, one) for one in endpoint.exchanges] == [1] * len(sent)


@pytest.mark.behaviour("4.11", "4.19")
@pytest.mark.case("poison-delivery")
def test_a_delivery_that_ends_every_process_that_sends_it_is_held(broker: Broker, receiver: Receiver) -> None:
    wanted = broker.event_type()
    poisoned, neighbour = MisbehavingEndpoint("poisoned", receiver), Endpoint("neighbour", receiver)
    to, beside = (broker.subscribe(receiver.url(f"/{one.name}"), wanted) for one in (poisoned, neighbour))
    poisoned.misbehave(Misbehaviour(kill_sender), on=lambda number: number == 1)
    for number in range(EACH):
        broker.publish(wanted, body_of(number)).raise_for_status()
    rest = {*range(EACH)} - {1}
    wait_until(lambda: by_status(broker, to).get("DELIVERED") == rest)
    wait_until(lambda: broker.has_finished([beside]))
    assert [one.flagged for one in poisoned.misbehaved] == [False, True, True], "two workers, and a process of its own"
    sent = Counter(one.number for one in neighbour.exchanges)
    assert sent.keys() == {*range(EACH)}
    assert sum(one.flagged for one in neighbour.exchanges) == sent.total() - EACH <= 2
    (held,) = broker.get("deliveries", status="HELD")["items"]
    assert held["reason"] == "its request ended the process that sent nothing else (SIGKILL)"
    poisoned.heal()
    broker.management.send("POST", f"deliveries/{held['id']}/release")
    wait_until(lambda: by_status(broker, to) == {"DELIVERED": {*range(EACH)}})


@pytest.mark.behaviour("4.11", "4.19")
@pytest.mark.case("slow-endpoint-killed-often")
def test_nothing_is_held_because_workers_are_killed_while_an_endpoint_takes_its_time(
    broker: Broker, receiver: Receiver
) -> None:
    wanted, endpoint = broker.event_type(), Endpoint("slow", receiver)
    endpoint.is_stuck = True
    subscribed = broker.subscribe(receiver.url("/slow"), wanted, timeout_seconds=60)
    for number in range(3):
        broker.publish(wanted, body_of(number)).raise_for_status()
    for kill in range(RETRY_KILLS):
        wait_until(lambda: len(endpoint.exchanges) > kill)  # noqa: B023 - called at once
        with restarted(*broker.workers()):
            for worker in broker.workers():
                worker.kill()
    endpoint.is_stuck = False
    wait_until(lambda: broker.has_finished([subscribed]))
    assert by_status(broker, subscribed) == {"DELIVERED": {0, 1, 2}}
    sent = [(one.number, one.flagged) for one in endpoint.exchanges]
    assert sent == [(0, False), *[(0, True)] * RETRY_KILLS, (1, False), (2, False)]


def all_have_left(worker: Child, load: Load) -> bool:
    """Return whether every line has a driver, and it is not this worker."""
    return not {None, worker}.intersection(map(load.broker.worker_driving, load.endpoints))


def answers_settled(broker: Broker, request: Exchange) -> int:
    """Return how many 200 the broker has stored for the delivery of this request."""
    delivery = broker.get(f"deliveries/{request.webhook_id.removeprefix('dlv_')}")
    return sum(attempt["status_code"] == 200 for attempt in delivery["history"])
