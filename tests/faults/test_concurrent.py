"""Workers killed while a subscriber is sent several at a time: as many come once more at most, and then one by one."""

import pytest
import requests

from tests.faults.endpoints import Endpoint
from tests.faults.exchanges import misnumbered, overlapping
from tests.faults.figures import Report
from tests.faults.killing import kill_again_and_again, kill_all
from tests.faults.load import AFTERWARDS, THROUGH_SECONDS, Load
from tests.faults.publishers import begun_by, published_by
from tests.faults.several import figures_of_several
from tests.faults.verdicts import Verdict
from tests.real_broker import TIMEOUT, Broker, Subscribed
from tests.receiver import wait_until

AT_A_TIME = 8
KILLS = 4


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

    published, begun = published_by(load.publishers), begun_by(load.publishers)
    own = figures_of_several(published, begun, endpoint.exchanges, faults=load.faults)
    verdict.figures += own
    first = next(place for place, one in enumerate(endpoint.exchanges) if one.sequence)
    one_by_one = endpoint.exchanges[first:]
    assert (seen.broken, own.broken) == ({}, {})
    assert 0 < own.most_of_a_fault <= AT_A_TIME == load.receiver.most_at_once["/several"]
    assert several <= first
    assert (overlapping(one_by_one), misnumbered(one_by_one)) == (0, 0)
