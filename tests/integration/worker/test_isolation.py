"""What was in flight at two unclean ends of a worker is sent in a process of its own; what ends that too is held."""

import asyncio
import errno
import os
import subprocess
import threading
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.models import Delivery
from delivery.operations import cancel, release
from delivery.statuses import DeliveryStatus
from delivery.worker import isolation
from subscriptions.models import EventKind, Subscription
from tests.support import broker, factories
from tests.support.behaviours import kill_sender, noting, stop_sender

pytestmark = pytest.mark.behaviour("4.19")
REASON = "its request ended the process that sent nothing else (SIGKILL)"
HUNG = "its request ended the process that sent nothing else (hung, SIGKILL)"


def crash_again_and_again(wanted: Subscription, times: int) -> None:
    """Let that many workers end with the first delivery of a line in flight."""
    line = broker.line_of(wanted.subscriber)
    for _ in range(times):
        broker.crash_while_sending(line)
        broker.expire_lease(line)


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


def test_a_delivery_with_which_the_process_hangs_is_held_too_and_says_so(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "ISOLATED_GRACE_SECONDS", 1)
    Subscription.objects.update(timeout_seconds=1)
    receiver.on("/a", stop_sender, answer())
    broker.publish_numbered(wanted.event_type, 2)
    crash_again_and_again(wanted, 2)
    with broker.running_worker():
        wait_until(lambda: broker.statuses(wanted) == ["HELD", "DELIVERED"])
    assert Delivery.objects.get(status="HELD").reason == HUNG


@pytest.mark.parametrize("cancels", [False, True])
def test_a_poison_message_stops_nothing_while_its_line_is_locked_and_can_be_cancelled(
    receiver: Receiver, wanted: Subscription, elsewhere: psycopg.Connection[Any], *, cancels: bool
) -> None:
    other = factories.subscription(endpoint=receiver.url("/b"))
    has_come, may_go = threading.Event(), threading.Event()

    async def then_kill(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        has_come.set()
        await asyncio.to_thread(may_go.wait)
        return await kill_sender(reader, writer)

    receiver.on("/a", then_kill, answer())
    broker.publish_numbered(wanted.event_type, 2)
    crash_again_and_again(wanted, 2)
    with broker.running_worker():
        assert has_come.wait(20)
        if cancels:
            cancel([Delivery.objects.earliest("pk").pk], reason="unwanted")
        elsewhere.execute("SELECT FROM delivery_line WHERE subscriber_id = %s FOR UPDATE", [wanted.subscriber_id])
        may_go.set()
        broker.publish_numbered(other.event_type, 3)
        wait_until(lambda: broker.statuses(other) == ["DELIVERED"] * 3, 10)
        elsewhere.rollback()
        wait_until(lambda: broker.statuses(wanted) == ["CANCELLED" if cancels else "HELD", "DELIVERED"], 10)


def test_a_delivery_waits_until_a_process_can_be_started_or_its_worker_stops(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    crash_again_and_again(wanted, 2)
    has_failed = threading.Event()

    def fail(*_: object, **__: object) -> None:
        has_failed.set()
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(isolation, "START_AGAIN_SECONDS", 0.1)
    with monkeypatch.context() as memory_is_full, broker.running_worker():
        memory_is_full.setattr(subprocess, "Popen", fail)
        assert has_failed.wait(20)
        has_failed.clear()
        assert has_failed.wait(20)
    waiting = Delivery.objects.get()
    assert (waiting.status, waiting.attempts, waiting.crash_count) == ("PENDING", 0, 2)
    with broker.running_worker():
        broker.wait_until_done()
    assert [request.is_flagged for request in receiver.log] == [True]


@pytest.mark.parametrize(("was_sent", "crash_count"), [(True, 0), (False, 2)])
def test_only_a_request_that_was_sent_ends_the_count(wanted: Subscription, *, was_sent: bool, crash_count: int) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    crash_again_and_again(wanted, 2)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    ended = broker.settlement(line, delivery, **(broker.NO_ANSWER | {"uncertain": was_sent}))
    broker.settle(line, settlements=[ended])
    assert Delivery.objects.get().crash_count == crash_count


def test_the_last_process_is_for_a_line_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "IsolatedProcess", lambda: Mock(is_ready=True, socket=os.eventfd(0)))
    processes = isolation.Isolation()
    greedy, other = object(), object()
    slots = [Mock(line=greedy) for _ in range(4)] + [Mock(line=other) for _ in range(2)]
    for slot in slots:
        processes.is_ready(slot)
    assert [processes.is_ready(slot) for slot in slots] == [True, True, True, False, True, False]


def test_a_job_that_ends_its_process_is_given_to_another_endpoint(receiver: Receiver, storage: None) -> None:
    jobs = factories.event_type(kind=EventKind.QUEUE)
    for path in ("/a", "/b"):
        factories.subscription(event_type=jobs, endpoint=receiver.url(path))
    broker.publish_numbered(jobs, 1)
    Delivery.objects.update(crash_count=2)
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
