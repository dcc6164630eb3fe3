"""Endpoints of QUEUE messages that hang leave strands of their senders to the others (behaviour 6.4 to 6.6)."""

from collections.abc import Iterator

import pytest

from delivery.models import QueueGroup
from subscriptions.models import EventKind, EventType
from tests import factories
from tests.driving import Worker, publish_bodies, wait_until_done
from tests.receiver import Receiver, answer, hang, wait_until

SENDERS = 5
UNDER_WAY = 16
MANY = 2 * SENDERS * UNDER_WAY
SOON = 12.0
"""Long before a request that hangs is given up."""


def queue_of(receiver: Receiver, *paths: str) -> EventType:
    kind = factories.event_type(kind=EventKind.QUEUE)
    for path in paths:
        factories.subscription(event_type=kind, endpoint=receiver.url(path))
    return kind


@pytest.fixture
def hung(receiver: Receiver, worker: Worker) -> Iterator[str]:
    """Return the path of an endpoint that hangs, until the test is over."""
    receiver.on("/hung", hang)
    yield "/hung"
    receiver.on("/hung", answer())
    receiver.close_port()
    receiver.open_port()
    wait_until_done()


@pytest.mark.behaviour("6.4", "6.6")
@pytest.mark.parametrize("good", [1, 2])
def test_an_endpoint_that_hangs_leaves_the_messages_to_a_good_one_of_its_group(
    receiver: Receiver, hung: str, good: int
) -> None:
    paths = [hung, *[f"/good{number}" for number in range(good)]]
    kind = queue_of(receiver, *paths)
    publish_bodies(kind, *[b"x"] * 5 * MANY)
    asked = SENDERS * UNDER_WAY
    wait_until(lambda: QueueGroup.objects.count() <= asked, SOON, saying=QueueGroup.objects.count)
    assert 0 < len(receiver.of(hung)) < asked


@pytest.mark.behaviour("6.4", "6.6")
def test_two_that_hang_leave_them_to_the_third(receiver: Receiver, hung: str) -> None:
    kind = queue_of(receiver, hung, hung, "/good")
    publish_bodies(kind, *[b"x"] * 5 * MANY)
    asked = SENDERS * UNDER_WAY
    wait_until(lambda: QueueGroup.objects.count() <= asked, SOON, saying=QueueGroup.objects.count)
    assert len(receiver.of(hung)) < asked


@pytest.mark.behaviour("6.6")
@pytest.mark.parametrize("failing", [[], ["/failing"]], ids=["alone", "with one that fails"])
def test_an_endpoint_that_hangs_does_not_stop_the_messages_to_others(
    receiver: Receiver, hung: str, failing: list[str]
) -> None:
    stuck, quick = queue_of(receiver, hung, *failing), queue_of(receiver, "/quick")
    receiver.on("/failing", answer(500))
    publish_bodies(stuck, *[b"stuck"] * 2 * MANY)
    wait_until(lambda: len(receiver.of(hung)) >= SENDERS * UNDER_WAY // 2)
    publish_bodies(quick, *[b"quick"] * MANY)
    wait_until(lambda: len(receiver.of("/quick")) == MANY, SOON, saying=lambda: len(receiver.of("/quick")))
    assert len(receiver.of(hung)) == SENDERS * UNDER_WAY // 2
