"""Workers killed while deliveries are tried again apart, or wait with their subscription: all comes, as it should."""

import time

import pytest

from tests.faults.apart import APART, RETRIES, is_doomed, times_refused
from tests.faults.books import by_status
from tests.faults.endpoints import Endpoint
from tests.faults.figures import Report
from tests.faults.figures import figures as figures_of
from tests.faults.killing import LONGEST_RESTART, kill_again_and_again, kill_all
from tests.faults.lanes import figures_of_lanes, have_one_under_way, lanes
from tests.faults.load import AFTERWARDS, THROUGH_SECONDS, Load
from tests.faults.refusing import Refusing
from tests.faults.verdicts import Verdict
from tests.real_broker import Broker, Subscribed
from tests.receiver import wait_until

PROBE_SECONDS = 2.0
SUSPENDING = {
    "on_unavailable": "HOLD",
    "initial_delay_seconds": 0.2,
    "max_delay_seconds": 0.2,
    "max_retries": 2,
    "on_exhausted": "SUSPEND",
    "probe_seconds": PROBE_SECONDS,
}
KILLS = 4


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.11", "5.3")
@pytest.mark.case("retry-line-killed")
def test_workers_are_killed_while_deliveries_are_tried_again_apart(
    load: Load, figures: Report, verdict: Verdict
) -> None:
    endpoint = Refusing("apart", load.receiver, times=times_refused)
    policy = load.broker.retry_policy(**APART)
    subscribed = load.broker.subscribe(load.receiver.url("/apart"), *load.event_types, retry_policy=policy)
    load.start()
    endpoint.is_stuck = True
    wait_until(lambda: have_one_under_way(endpoint.exchanges), THROUGH_SECONDS)
    kill_all(load)
    endpoint.is_stuck = False
    kill_again_and_again(load, KILLS)
    load.wait_for(AFTERWARDS)
    seen = figures()
    wait_until(lambda: load.broker.has_finished([subscribed]), THROUGH_SECONDS)

    published = [event for publisher in load.publishers for event in publisher.published]
    doomed = {event.number for event in published if is_doomed(event.number)}
    begun = {number for publisher in load.publishers for number in publisher.begun}
    own = figures_of_lanes(published, begun, endpoint.exchanges, doomed=doomed, faults=load.faults)
    verdict.figures += own
    verdict.measured["apart"] = len(lanes(endpoint.exchanges)[1])
    ended = by_status(load.broker, subscribed)
    assert (seen.broken, own.broken) == ({}, {})
    assert 0 < own.duplicated <= 2 * len(load.faults)  # one of the line and one of the retry line at a time
    assert ended.keys() == {"DELIVERED", "FAILED"}
    assert ended["FAILED"] == dict.fromkeys(doomed, 1 + RETRIES)
    assert seen.pause <= LONGEST_RESTART


def is_suspended(broker: Broker, subscribed: Subscribed) -> bool:
    """Say whether the one subscription of a subscriber is paused by its policy."""
    (one,) = broker.get("subscriptions", subscriber=subscribed.name)["items"]
    return bool(one["paused_by"] == "POLICY")


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("5.6")
@pytest.mark.behaviour("4.10", "4.11")
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
    wait_until(lambda: is_suspended(load.broker, subscribed), THROUGH_SECONDS)
    suspended_at = time.monotonic()
    endpoint.is_stuck = True
    wait_until(endpoint.has_one_under_way, THROUGH_SECONDS)  # a trial
    kill_all(load)
    endpoint.is_stuck = False
    kill_again_and_again(load, KILLS)
    healed_at = time.monotonic()
    endpoint.is_busy = False
    load.wait_for(AFTERWARDS)
    seen = figures()
    wait_until(lambda: load.broker.has_finished([subscribed]), THROUGH_SECONDS)

    events = [event for publisher in load.publishers for event in publisher.published if event.type == wanted]
    begun = {number for publisher in load.publishers for number in publisher.begun}
    own = figures_of(events, begun, {"suspended": endpoint.exchanges}, faults=load.faults)
    verdict.figures += own
    trials = sum(suspended_at <= one.at < healed_at for one in endpoint.exchanges)
    verdict.measured["trials"] = trials
    assert (seen.broken, own.broken) == ({}, {})
    assert own.most_of_a_fault <= 1
    assert 0 < trials <= 1 + (healed_at - suspended_at) / PROBE_SECONDS + len(load.faults)
    assert by_status(load.broker, subscribed).keys() == {"DELIVERED"}
    assert not is_suspended(load.broker, subscribed)
