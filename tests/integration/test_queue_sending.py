"""QUEUE messages on their way: one endpoint of each group takes each message, side by side (behaviour 6.4 to 6.6)."""

from collections import Counter

import pytest

from delivery.models import Delivery, QueueGroup
from subscriptions.models import EventKind, EventType
from tests import factories
from tests.driving import Worker, publish_bodies, wait_until_done
from tests.receiver import Receiver

ENDPOINTS = ["/a", "/b", "/c"]


@pytest.fixture
def jobs(receiver: Receiver, storage: None) -> EventType:
    """A QUEUE event type with three endpoints in a group."""
    kind = factories.event_type(kind=EventKind.QUEUE)
    for path in ENDPOINTS:
        factories.subscription(event_type=kind, endpoint=receiver.url(path))
    return kind


@pytest.mark.behaviour("6.4")
def test_each_message_is_taken_by_one_endpoint_of_its_group(
    receiver: Receiver, jobs: EventType, worker: Worker
) -> None:
    bodies = [b"%d" % number for number in range(60)]
    publish_bodies(jobs, *bodies)
    wait_until_done()
    assert Counter(request.body for request in receiver.log) == Counter(bodies)
    assert Counter(Delivery.objects.values_list("status", flat=True)) == {"DELIVERED": 60, "REDUNDANT": 120}
    assert not QueueGroup.objects.exists()
    assert {path for path in ENDPOINTS if receiver.of(path)} == {*ENDPOINTS}
