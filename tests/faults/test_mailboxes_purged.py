"""A mailbox that is purged under its clients: whatever they say meanwhile, nothing is left and nobody fails."""

import time

import pytest

from broker_client import Mailbox
from tests.support.faults.mailbox_clients import acknowledge, give_back_some, late, never
from tests.support.faults.mailbox_load import Box

PURGES = 40
BETWEEN = 5
"""Events published between two of them."""


@pytest.mark.behaviour("9.7")
@pytest.mark.case("mailbox-purged")
def test_a_mailbox_is_purged_again_and_again_under_its_clients(box: Box) -> None:
    mailbox = Mailbox(box.broker.web, box.subscriber, box.token)
    box.publishers[0].publish()
    assert mailbox.purge() == {"cancelled": 1, "in_flight": 0, "complete": True}
    box.read_by(acknowledge, give_back_some, give_back_some, late, never)
    box.start()
    purges = []
    for _ in range(PURGES):
        box.wait_for(BETWEEN)
        purges.append(mailbox.purge())
    box.stop_publishing()
    purges.append(mailbox.purge())
    purged_at = time.time()
    left = mailbox.status()
    box.stop()
    assert all(purge["complete"] for purge in purges)
    assert (left["available"], left["waiting"]) == (0, 0)
    assert [one for one in box.handed() if one.begun > purged_at] == []
    assert [client.refused for client in box.clients] == [[]] * len(box.clients)
    assert any(purge["in_flight"] for purge in purges)
    assert {"acknowledged", "returned", "cancelled"} <= {one.code for one in box.said("ack") + box.said("nack")}
    assert box.figures().broken == {}
