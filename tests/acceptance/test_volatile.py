"""Volatile messages through a whole broker, until its web process and its workers are asked to stop."""

import pytest

from tests.support.real_broker import TIMEOUT, Broker
from tests.support.receiver import Receiver, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.behaviour("2.9")]

COUNTS = """
    SELECT sum(accepted)::int, sum(delivered + lost)::int FROM delivery_volatilecount count
      JOIN subscriptions_eventtype event_type ON event_type.id = count.event_type_id
     WHERE event_type.name = %(event_type)s AND subscription_id IS NOT NULL
"""


def test_what_was_counted_is_written_down_when_processes_stop(broker: Broker, receiver: Receiver) -> None:
    event_type = broker.event_type()
    broker.subscribe(receiver.url("/hook"), event_type)
    publisher = broker.publisher()
    address = f"{broker.web}/api/v1/events/{event_type}"
    answer = publisher.post(address, json=7, headers={"Broker-Durability": "volatile"}, timeout=TIMEOUT)
    assert (answer.status_code, answer.json()["deliveries"]) == (202, 1)
    wait_until(lambda: receiver.bodies("/hook") == [b"7"])

    processes = [broker.stack.supervisor["web"], *broker.workers()]
    for process in processes:
        process.stop()
    counted = broker.ask(COUNTS, event_type=event_type)
    for process in processes:
        process.start()
        process.wait_until_ready()
    assert counted == [(1, 1)]
    broker.inactivate_all()
