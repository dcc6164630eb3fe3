"""Leases that are renewed during a request, and requests that end before their lease does (contract 4.11, 4.16)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psycopg
import pytest

from broker_project.core.db import NotAnswered, Rows, rows, rows_of_each
from broker_project.stack.load.receiver import Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery.dispatch import claim
from delivery.dispatch.claim import renew
from delivery.models import Attempt, Line
from delivery.worker import leases, line, round_trip
from subscriptions.models import Subscription
from subscriptions.models.subscribers import Processing
from tests.support import broker
from tests.support.factories import subscriber, subscription

pytestmark = pytest.mark.behaviour("4.16")

LEASE_SECONDS: Final = 3.0
MARGIN_SECONDS: Final = 1.0
ENDLESS: Final = "SELECT pg_advisory_xact_lock(1)"
"""For all but the first."""
LOCK: Final = "SELECT FROM delivery_line WHERE id = %s FOR NO KEY UPDATE"
LEASE: Final = "SELECT extract(epoch FROM lease_until - clock_timestamp())::float8 FROM delivery_line WHERE id = %s"
CLAIMED_ELSEWHERE: Final = """
UPDATE delivery_line
   SET epoch = epoch + 1, worker = 'another', lease_until = clock_timestamp() + make_interval(secs => %s)
 WHERE id = %s
"""


@pytest.fixture
def own(wanted: Subscription) -> Line:
    return broker.line_of(wanted.subscriber)


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lease end after a moment, as a request may last ten times as long."""
    for module in (claim, leases, line):
        monkeypatch.setattr(module, "LEASE_SECONDS", LEASE_SECONDS)
    for module in (leases, line):
        monkeypatch.setattr(module, "LEASE_MARGIN_SECONDS", MARGIN_SECONDS)
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.2)
    monkeypatch.setattr(leases, "MIN_STATEMENT_SECONDS", 0.1)


def sent(receiver: Receiver) -> list[tuple[bytes, bool]]:
    """Return what was received, and whether it was flagged."""
    return [(request.body, request.is_flagged) for request in receiver.log]


@pytest.mark.behaviour("4.11")
def test_a_request_longer_than_the_lease_is_sent_once(
    receiver: Receiver, wanted: Subscription, own: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[Mapping[int, int]] = []

    def counted(lines: Mapping[int, int]) -> dict[int, bool]:
        renewed.append(lines)
        return renew(lines)

    monkeypatch.setattr(leases, "renew", counted)
    gate = receiver.gate("/a")
    broker.publish_numbered(wanted.event_type, 2)
    with broker.running_worker(), broker.running_worker("another"):
        wait_until(lambda: receiver.log)
        first = Line.objects.get(pk=own.pk)
        assert first.lease_until
        wait_until(lambda: rows(LEASE, [own.pk])[0][0] < LEASE_SECONDS and len(renewed) >= 10)
        own.refresh_from_db()
        assert own.lease_until
        assert (own.lease_until - first.lease_until).total_seconds() > LEASE_SECONDS
        gate.open()
        broker.wait_until_done()
    assert sent(receiver) == [(b"0", False), (b"1", False)]
    assert [*renewed] == [{own.pk: first.epoch}] * len(renewed)


@pytest.mark.behaviour("4.11")
def test_a_crash_during_a_long_request_costs_a_lease(receiver: Receiver, wanted: Subscription, own: Line) -> None:
    Subscription.objects.filter(pk=wanted.pk).update(timeout_seconds=60)
    broker.publish_numbered(wanted.event_type, 2)
    broker.crash_while_sending(own)
    with broker.running_worker():
        broker.wait_until_done(5 * LEASE_SECONDS)
    assert sent(receiver) == [(b"0", True), (b"1", False)]


@pytest.mark.behaviour("4.11")
def test_a_locked_line_ends_its_request_before_its_lease(
    receiver: Receiver, wanted: Subscription, own: Line, elsewhere: psycopg.Connection[Any]
) -> None:
    beside = subscription(endpoint=receiver.url("/beside"))
    beside_gate = receiver.gate("/beside")
    receiver.on("/a", hang, answer())
    broker.publish_numbered(wanted.event_type, 1)
    broker.publish_numbered(beside.event_type, 1)
    with broker.running_worker():
        wait_until(lambda: len(receiver.log) == 2)
        elsewhere.execute(LOCK, [own.pk])
        ((left,),) = rows(LEASE, [own.pk])
        wait_until(lambda: receiver.of("/a")[0].ended, left, saying=lambda: receiver.log)
        assert rows(LEASE, [own.pk])[0][0] > 0, "nobody could claim it yet"
        elsewhere.rollback()
        wait_until(lambda: broker.statuses(wanted) == ["DELIVERED"])
        beside_gate.open()
        broker.wait_until_done()
    assert [request.is_flagged for request in receiver.of("/a")] == [False, True]
    assert [request.is_flagged for request in receiver.of("/beside")] == [False]
    assert Attempt.objects.filter(status_code=None).count() == 0, "nobody knows what came of it"


@pytest.mark.behaviour("4.11")
def test_a_line_that_another_worker_has_ends_its_request(receiver: Receiver, wanted: Subscription, own: Line) -> None:
    receiver.on("/a", hang, answer())
    broker.publish_numbered(wanted.event_type, 1)
    with broker.running_worker():
        wait_until(lambda: receiver.log)
        rows(CLAIMED_ELSEWHERE, [LEASE_SECONDS, own.pk])
        wait_until(lambda: receiver.log[0].ended, LEASE_SECONDS)
        broker.wait_until_done()
    assert sent(receiver) == [(b"0", False), (b"0", True)]
    own.refresh_from_db()
    assert own.epoch == 3


@pytest.mark.behaviour("4.11")
def test_a_database_that_does_not_answer_ends_requests_in_time(
    receiver: Receiver,
    wanted: Subscription,
    own: Line,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: psycopg.Connection[Any],
) -> None:
    receiver.on("/a", hang, answer())
    broker.publish_numbered(wanted.event_type, 1)
    elsewhere.execute(ENDLESS)

    def hung(_lines: Mapping[int, int]) -> dict[int, bool]:
        rows(ENDLESS)
        raise AssertionError("it should not have been waited for")

    with broker.running_worker():
        wait_until(lambda: receiver.log)
        ((left,),) = rows(LEASE, [own.pk])
        with monkeypatch.context() as patched:
            patched.setattr(leases, "renew", hung)
            wait_until(lambda: receiver.log[0].ended, left)
        elsewhere.rollback()
        broker.wait_until_done()
    assert [request.is_flagged for request in receiver.log] == [False, True]


@pytest.mark.behaviour("4.11")
def test_lines_of_a_settle_without_an_answer_are_recovered(
    receiver: Receiver, wanted: Subscription, own: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may still carry it out, so only another epoch makes sure that it is no more in force."""
    hangs = iter([True])

    def unanswered(statements: Sequence[tuple[Any, dict[str, Any]]], meanwhile: Callable[[], object]) -> list[Rows]:
        if any(arguments.get("settlements", "[]") != "[]" for _, arguments in statements) and next(hangs, False):
            raise NotAnswered
        return rows_of_each(statements, meanwhile)

    monkeypatch.setattr(round_trip, "rows_of_each", unanswered)
    broker.publish_numbered(wanted.event_type, 2)
    with broker.running_worker():
        broker.wait_until_done()
    assert sent(receiver) == [(b"0", False), (b"0", True), (b"1", False)]
    own.refresh_from_db()
    assert own.epoch > 1


@pytest.mark.behaviour("4.13")
def test_what_was_answered_is_settled_although_the_lease_has_ended(
    receiver: Receiver, storage: None, elsewhere: psycopg.Connection[Any]
) -> None:
    many = subscription(subscriber(processing=Processing.CONCURRENT, concurrency=2), endpoint=receiver.url("/a"))
    own = broker.line_of(many.subscriber)
    gate = receiver.gate("/a", None, hang, answer())
    broker.publish_numbered(many.event_type, 2)
    with broker.running_worker():
        wait_until(lambda: len(receiver.log) == 2)
        elsewhere.execute(LOCK, [own.pk])
        gate.open()
        wait_until(lambda: receiver.log[1].ended)
        elsewhere.rollback()
        broker.wait_until_done()
    first, second = receiver.log[0].body, receiver.log[1].body
    assert sent(receiver) == [(first, False), (second, False), (second, True)]
