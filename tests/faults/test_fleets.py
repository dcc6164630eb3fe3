"""Further workers and beats on the same stores: one takes over from another, never two at once."""

import time

import pytest

from broker_project.stack.supervisor import Child
from tests.faults.breaking import frozen
from tests.faults.exchanges import Exchange, extra_copies
from tests.faults.figures import Report
from tests.faults.fleets import more_beats, more_workers
from tests.faults.load import AFTERWARDS, Load
from tests.real_broker import Broker
from tests.receiver import wait_until

TOGETHER_SECONDS = 20.0
LEASE_SECONDS = 20.0
NOTICE_SECONDS = 15.0
"""Until somebody has seen that a lease has run out, on a busy machine."""


@pytest.mark.behaviour("4.2")
@pytest.mark.behaviour("11.3")
@pytest.mark.case("two-fleets-three-beats")
def test_two_fleets_of_workers_and_three_beats_run_at_once(load: Load, figures: Report) -> None:
    for endpoint in load.endpoints.values():
        endpoint.is_slow = True  # time enough for somebody else to begin the next request, if anybody did
    load.start()
    drivers: set[str] = set()
    with more_workers(load.broker), more_beats(load.broker, 2):
        until = time.monotonic() + TOGETHER_SECONDS
        while time.monotonic() < until:
            drivers |= {load.broker.driver_of(subscribed) for subscribed in load.endpoints}
        seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert len({driver.partition(".")[2] for driver in drivers if driver}) == 2


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.10")
@pytest.mark.behaviour("4.11")
@pytest.mark.case("worker-frozen-past-its-lease")
def test_a_worker_stands_still_until_others_have_taken_over(load: Load, figures: Report) -> None:
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
    assert (seen.broken, seen.most_of_a_line) == ({}, 1)
    copies = [copy.request for endpoint in load.endpoints.values() for copy in extra_copies(endpoint.exchanges)]
    assert [answers_settled(load.broker, copy) for copy in copies] == [1] * seen.duplicated
    assert LEASE_SECONDS - NOTICE_SECONDS <= seen.pause <= LEASE_SECONDS + NOTICE_SECONDS


def all_have_left(worker: Child, load: Load) -> bool:
    """Say whether every line has a driver, and that is somebody else."""
    return not {None, worker}.intersection(map(load.broker.worker_driving, load.endpoints))


def answers_settled(broker: Broker, request: Exchange) -> int:
    """Return how many 200 the broker has stored for the delivery of this request."""
    delivery = broker.get(f"deliveries/{request.webhook_id.removeprefix('dlv_')}")
    return sum(attempt["status_code"] == 200 for attempt in delivery["history"])
