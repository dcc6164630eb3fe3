"""A database that fails, refuses, or commits without saying so: nothing is lost, nobody else is harmed."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models.functions import Now

from delivery.models import Attempt, Delivery, QueueGroup
from delivery.statuses import DeliveryStatus
from delivery.worker import pending_settles, run_lines, steps
from delivery.worker.event_loop import MOST_BODY_BYTES
from delivery.worker.queue_settle import settle_groups
from delivery.worker.settle import settle
from delivery.worker.settlements import Settled
from subscriptions.models import EventKind, Subscription
from tests.driving import (
    Worker,
    attempts_of,
    expire_lease,
    hurry_until_done,
    line_of,
    publish_numbered,
    statuses,
    terminate_backends,
    wait_until_done,
    working,
)
from tests.factories import event_type, subscription
from tests.receiver import PATIENCE, Behaviour, Receiver, answer, wait_until

DELIVERED, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.PENDING


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    return subscription(endpoint=receiver.url("/a"))


def budget_left(worker: Worker) -> int:
    return worker.driver.budget._left


@pytest.mark.behaviour("4.10", "4.11", "11.3")
def test_connections_cut_again_and_again_lose_and_repeat_nothing(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    gates = [receiver.gate("/a") for _ in range(4)]
    behaviours: list[Behaviour] = []
    for gate in gates:
        behaviours += [*[answer()] * 60, gate]
    receiver.on("/a", *behaviours, answer())
    bodies = publish_numbered(wanted.event_type, 300)
    for number, gate in enumerate(gates, start=1):
        wait_until(lambda: len(receiver.log) > 30 + 61 * (number - 1))  # noqa: B023 - called at once
        wait_until(terminate_backends)  # wherever it is in the sixty that go on meanwhile
        wait_until(lambda: len(receiver.log) == 61 * number)  # noqa: B023 - called at once
        wait_until(terminate_backends)  # while an answer is waited for
        gate.open()
    wait_until_done()
    assert receiver.bodies("/a") == bodies
    assert [request.sequence for request in receiver.log] == [*range(1, 301)]


@pytest.mark.behaviour("4.11")
def test_an_answer_that_comes_while_the_database_is_cut_is_recorded(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    gate = receiver.gate("/a")
    publish_numbered(wanted.event_type, 2)
    wait_until(lambda: receiver.log)
    terminate_backends()
    gate.open()
    wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1"]
    assert attempts_of(receiver.log[0].delivery_id) == [(1, 200)]


@pytest.fixture
def refusing_teapots(storage: None) -> Iterator[None]:
    """A database that refuses to record one kind of answer."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE delivery_attempt ADD CONSTRAINT no_teapots CHECK (status_code <> 418)")
        yield
        cursor.execute("ALTER TABLE delivery_attempt DROP CONSTRAINT no_teapots")


def test_data_that_the_database_refuses_stops_its_own_line_only(
    refusing_teapots: None, receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    refused = subscription(endpoint=receiver.url("/teapot"))
    receiver.on("/teapot", answer(418), answer(200))
    gates = [receiver.gate("/a"), receiver.gate("/teapot", answer(418), answer())]
    publish_numbered(wanted.event_type, 20)
    publish_numbered(refused.event_type, 2)
    wait_until(lambda: len(receiver.log) == 2)
    for gate in gates:
        gate.open()
    wait_until(lambda: statuses(wanted) == [DELIVERED] * 20)
    assert statuses(refused) == [DeliveryStatus.IN_FLIGHT, PENDING]
    expire_lease(line_of(refused.subscriber))
    wait_until_done()
    assert receiver.bodies("/teapot") == [b"0", b"0", b"1"]
    assert [request.is_flagged for request in receiver.of("/teapot")] == [False, True, False]
    wait_until(lambda: budget_left(worker) == MOST_BODY_BYTES)


@pytest.mark.behaviour("6.6")
def test_a_queue_message_whose_outcome_the_database_refuses_waits_and_its_sender_goes_on(
    refusing_teapots: None, receiver: Receiver, worker: Worker
) -> None:
    jobs = event_type(kind=EventKind.QUEUE)
    subscription(event_type=jobs, endpoint=receiver.url("/teapot"))
    receiver.on("/teapot", answer(418), answer())
    publish_numbered(jobs, 30)
    wait_until(lambda: ends() == {DELIVERED: 29, PENDING: 1})
    publish_numbered(jobs, 30, first=30)
    wait_until(lambda: ends() == {DELIVERED: 59, PENDING: 1})
    group = QueueGroup.objects.get(due_at__gt=Now() + timedelta(seconds=30))
    assert (group.uncertain, group.first_id) == (True, Delivery.objects.open().get().pk)
    hurry_until_done()
    assert len(receiver.log) == 61
    assert [request.body for request in receiver.log if request.is_flagged] == [receiver.log[0].body]
    wait_until(lambda: budget_left(worker) == MOST_BODY_BYTES)


def ends() -> Counter[str]:
    return Counter(Delivery.objects.values_list("status", flat=True))


class Unheard:
    """Settles as asked, but once lets the answer get lost on the way back."""

    def __init__(self, when: str, settle: Callable[..., Settled] = settle) -> None:
        self.when = when
        self.settle = settle
        self.meanwhile: Callable[[], object] = int
        """What happens before it is settled again."""
        self.lost = 0

    def __call__(self, *arguments: Any, **options: Any) -> Settled:
        settled = self.settle(*arguments, **options)
        if options.get(self.when) and not self.lost:
            self.lost += 1
            self.meanwhile()
            raise OperationalError("server closed the connection unexpectedly")
        return settled


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("when", ["marks", "settlements", "states"])
@pytest.mark.parametrize("status", [200, 404, 500, 503])
def test_a_commit_that_was_not_heard_of_is_not_doubled(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch, when: str, status: int
) -> None:
    unheard = Unheard(when)
    monkeypatch.setattr(pending_settles, "settle", unheard)
    receiver.on("/a", answer(status), answer())
    publish_numbered(wanted.event_type, 3)
    worker = Worker()
    worker.start()
    hurry_until_done()
    worker.stop()
    tries = 1 if status < 500 else 2
    sent = sorted(receiver.bodies("/a"))
    assert (unheard.lost, sent) == (1, [b"0"] * tries + [b"1", b"2"])
    assert Attempt.objects.count() == len(sent)
    assert sorted({request.sequence for request in receiver.log}) == [1, 2, 3]


@pytest.mark.behaviour("4.10", "4.15")
def test_a_mark_that_was_not_heard_of_and_may_not_be_sent_any_more_is_not_forgotten(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard = Unheard("marks")
    moved = receiver.url("/moved")
    unheard.meanwhile = lambda: Subscription.objects.filter(pk=wanted.pk).update(endpoint=moved)
    monkeypatch.setattr(pending_settles, "settle", unheard)
    publish_numbered(wanted.event_type, 3)
    worker = Worker()
    worker.start()
    wait_until(lambda: unheard.lost and not worker.driver.lines)
    assert receiver.log == []
    expire_lease(line_of(wanted.subscriber))
    wait_until_done()
    worker.stop()
    assert receiver.bodies("/moved") == [b"0", b"1", b"2"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3]


@pytest.mark.behaviour("4.15", "6.6")
def test_a_queue_message_whose_mark_was_not_heard_of_goes_elsewhere_and_its_sender_goes_on(
    receiver: Receiver, storage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = event_type(kind=EventKind.QUEUE)
    wanted = subscription(event_type=jobs, endpoint=receiver.url("/a"))
    unheard = Unheard("marks", settle_groups)
    unheard.meanwhile = lambda: Subscription.objects.filter(pk=wanted.pk).update(endpoint=receiver.url("/moved"))
    monkeypatch.setattr(pending_settles, "settle_groups", unheard)
    publish_numbered(jobs, 30)
    with working():
        hurry_until_done()
    assert (unheard.lost, ends()) == (1, {DELIVERED: 30})
    assert sorted(map(int, receiver.bodies("/moved"))) == [*range(30)]


def test_a_turn_that_finds_nothing_to_claim_ends_at_once(
    worker: Worker, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lines, "TURN_SECONDS", PATIENCE)
    monkeypatch.setattr(steps, "STILL_SECONDS", PATIENCE)
    before = time.monotonic()
    assert run_lines.run_lines([], worker.driver) == []
    assert time.monotonic() - before < PATIENCE / 2
    assert Delivery.objects.count() == 0
