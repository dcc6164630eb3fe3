"""What was in flight at two unclean ends of a worker is sent alone; what ends that process too is held."""

import asyncio
import os
from collections.abc import Callable

import pytest

from broker_project.stack.load.receiver import Behaviour, Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.models import Delivery
from delivery.operations import release
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventKind, Subscription
from tests.support import broker, factories
from tests.support.behaviours import kill_sender, sender_of

pytestmark = pytest.mark.behaviour("4.19")
REASON = "its request ended the process that sent it, alone (SIGKILL)"


def crash_again_and_again(wanted: Subscription, times: int) -> None:
    """Let that many workers end with the first delivery of a line in flight."""
    line = broker.line_of(wanted.subscriber)
    for _ in range(times):
        broker.crash_while_sending(line)
        broker.expire_lease(line)


def noting(sender: Callable[[int], object], then: Behaviour) -> Behaviour:
    """Behave so, and say who has sent the request."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        sender(sender_of(writer))
        return await then(reader, writer)

    return behave


@pytest.mark.parametrize(("ends", "is_alone"), [(1, False), (2, True)])
def test_a_delivery_is_sent_alone_from_the_second_unclean_end_until_it_has_an_outcome(
    receiver: Receiver, wanted: Subscription, ends: int, is_alone: bool
) -> None:
    senders: list[int] = []
    receiver.on("/a", noting(senders.append, answer(503)), noting(senders.append, answer()))
    broker.publish_numbered(wanted.event_type, 2)
    crash_again_and_again(wanted, ends)
    with broker.running_worker():
        broker.cut_pauses_until_done()
    sent = [(request.body, request.sequence, request.is_flagged) for request in receiver.log]
    assert sent == [(b"0", 1, True), (b"0", 1, True), (b"1", 2, False)]
    assert [sender != os.getpid() for sender in senders] == [is_alone, False, False]


def test_what_ends_the_process_that_sent_it_alone_is_held_and_nothing_else(
    receiver: Receiver, wanted: Subscription
) -> None:
    receiver.on("/a", kill_sender, answer())
    broker.publish_numbered(wanted.event_type, 3)
    crash_again_and_again(wanted, 2)
    with broker.running_worker():
        wait_until(lambda: Delivery.objects.filter(status="DELIVERED").count() == 2)
        held = Delivery.objects.get(status="HELD")
        assert (held.reason, held.sequence, held.uncertain) == (REASON, 1, True)
        assert release([held.pk]) == [held.pk]
        broker.wait_until_done()
    assert [request.body for request in receiver.log] == [b"0", b"1", b"2", b"0"]
    assert receiver.log[-1].is_flagged


def test_a_job_that_ends_its_process_is_given_to_another_endpoint(receiver: Receiver, storage: None) -> None:
    jobs = factories.event_type(kind=EventKind.QUEUE)
    for path in ("/a", "/b"):
        factories.subscription(event_type=jobs, endpoint=receiver.url(path))
    broker.publish_numbered(jobs, 1)
    Delivery.objects.update(unclean_ends=2)
    for path, then in (("/a", kill_sender), ("/b", kill_sender)):
        receiver.on(path, then)
    with broker.running_worker():
        wait_until(lambda: Delivery.objects.filter(status="HELD").count() == 2)
        receiver.on("/a", answer())
        receiver.on("/b", answer())
        release([*Delivery.objects.values_list("pk", flat=True)])
        broker.wait_until_done()
    assert {*Delivery.objects.values_list("status", flat=True)} == {DeliveryStatus.DELIVERED, DeliveryStatus.REDUNDANT}
    assert len(receiver.log) == 3
