"""Workers killed while a subscriber is sent several at a time: as many come once more at most, and then one by one."""

import pytest
import requests

from tests.faults.endpoints import Endpoint
from tests.faults.exchanges import Exchange, Fault, misnumbered, overlapping
from tests.faults.figures import Figures, Report, renamed
from tests.faults.jobs import extra_copies, unexplained, was_under_way
from tests.faults.killing import kill_again_and_again, kill_all
from tests.faults.load import AFTERWARDS, THROUGH_SECONDS, Load
from tests.faults.verdicts import Verdict
from tests.real_broker import TIMEOUT, Broker, Subscribed
from tests.receiver import wait_until

AT_A_TIME = 8
KILLS = 4


def copies_of(requests: list[Exchange], fault: Fault) -> int:
    """Return how many copies repeat what was under way during the fault."""
    pairs = extra_copies(requests)
    return sum(copy.at > fault.begun and was_under_way(repeated, fault) for copy, repeated in pairs)


def judged(load: Load, requests: list[Exchange]) -> Figures:
    """Judge the requests of a subscriber that gets everything in no order."""
    acknowledged = {event.number for publisher in load.publishers for event in publisher.published}
    begun = {number for publisher in load.publishers for number in publisher.begun}
    accepted = {one.number for one in requests if one.status == 200}
    copies = [copy for copy, _ in extra_copies(requests)]
    return Figures(
        acknowledged=len(acknowledged),
        delivered=len(accepted),
        lost=len(acknowledged - accepted),
        recovered=len(accepted - acknowledged),
        unexpected=sum(one.number not in begun for one in requests),
        duplicated=len(copies),
        unflagged=sum(not one.flagged for one in copies) + renamed({"": requests}),
        not_under_way=len(unexplained(requests, load.faults)),
        altered=sum(one.altered for one in requests),
        most_of_a_fault=max(copies_of(requests, fault) for fault in load.faults),
    )


def send_one_by_one(broker: Broker, subscribed: Subscribed) -> None:
    """Let a subscriber be sent one delivery after the other from now on."""
    headers = {"Authorization": f"Bearer {broker.management.token}", "If-Match": "*"}
    address = f"{broker.web}/api/v1/subscribers/{subscribed.name}"
    serial = {"processing": "SERIAL", "concurrency": 1}
    requests.patch(address, json=serial, headers=headers, timeout=TIMEOUT).raise_for_status()


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("4.11", "4.13")
@pytest.mark.case("concurrent-killed")
def test_workers_are_killed_while_a_subscriber_is_sent_several_at_a_time(
    load: Load, figures: Report, verdict: Verdict
) -> None:
    endpoint = Endpoint("several", load.receiver)
    subscribed = load.broker.subscribe(load.receiver.url("/several"), *load.event_types, concurrency=AT_A_TIME)
    load.start()
    endpoint.is_stuck = True
    wait_until(lambda: sum(one.status is None for one in endpoint.exchanges) == AT_A_TIME, THROUGH_SECONDS)
    kill_all(load)
    endpoint.is_stuck = False
    kill_again_and_again(load, KILLS)
    load.wait_for(AFTERWARDS)
    several = len(endpoint.exchanges)
    send_one_by_one(load.broker, subscribed)
    wait_until(lambda: endpoint.exchanges[-1].sequence, THROUGH_SECONDS)
    load.wait_for(AFTERWARDS)
    seen = figures()
    wait_until(lambda: load.broker.has_finished([subscribed]), THROUGH_SECONDS)

    own = judged(load, endpoint.exchanges)
    verdict.figures += own
    first = next(place for place, one in enumerate(endpoint.exchanges) if one.sequence)
    one_by_one = endpoint.exchanges[first:]
    assert (seen.broken, own.broken) == ({}, {})
    assert 0 < own.most_of_a_fault <= AT_A_TIME == load.receiver.most_at_once["/several"]
    assert several <= first
    assert (overlapping(one_by_one), misnumbered(one_by_one)) == (0, 0)
