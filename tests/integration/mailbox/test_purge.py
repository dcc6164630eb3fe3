"""Purge a mailbox, also beside its clients (contract 9.7)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now

from broker_project.core.db import forget_connection
from delivery import operations
from delivery.mailbox.acknowledge import acknowledge, nack
from delivery.mailbox.receipts import Receipt
from delivery.mailbox.unread import purge, return_overdue
from delivery.maintenance.expiry import EXPIRE_OVERDUE, expire_overdue
from delivery.models import Delivery
from delivery.operations import CANCEL, Cancelled
from delivery.outcomes import redact_reason
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.support import mailboxes
from tests.support.broker import inactivate, line_of, publish_bodies, publish_numbered, statuses
from tests.support.database import do_and_disconnect, execute, in_other_thread
from tests.support.factories import subscription
from tests.support.query_plans import costly_statements, explained_statements

pytestmark = pytest.mark.behaviour("9.7")

CANCELLED, DELIVERED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED
IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING

ROUNDS = 3
HANDED_OUT = 600
CLIENTS = 4
BATCH = 50

Say = Callable[[int, list[Receipt]], Any]

OUT = 20_000
SLICE = 500
CANCEL_IN_SLICES = CANCEL.replace("5000", str(SLICE))
SORTS = 4
EACH = 200
OF_EACH = 4
"""Times that a delivery which is ended is read: found, locked, found again, and deleted."""


def test_a_purge_cancels_what_is_there_and_asks_for_what_is_in_flight(pulled: Subscription) -> None:
    beside, pushed = mailboxes.pulled_subscription(pulled.subscriber), subscription(pulled.subscriber)
    stranger = mailboxes.pulled_subscription(event_type=pulled.event_type)
    publish_bodies(pulled.event_type, b"later", not_before="2999-01-01T00:00:00Z")
    publish_numbered(pulled.event_type, 4)
    held, late, kept, dropped, _ = Delivery.objects.filter(subscription=pulled).oldest_first()
    Delivery.objects.filter(pk=held.pk).update(status="HELD", waits_for="RELEASE")
    mailboxes.fetch_all(pulled, 1)
    mailboxes.time_out_hand_outs()
    Delivery.objects.filter(pk=late.pk).update(cancel_requested=True)
    first, second = mailboxes.fetch_all(pulled, 2)
    assert (first.delivery_id, second.delivery_id) == (kept.pk, dropped.pk)
    publish_numbered(beside.event_type, 1)
    inactivate(beside)
    for one in (pushed, stranger):
        publish_numbered(one.event_type, 1)

    cancelled, in_flight, is_complete = purge(pulled.subscriber_id, seconds=60)

    assert (cancelled, in_flight, is_complete) == (5, 2, True)
    acknowledge(pulled.subscriber_id, [first.receipt])
    nack(pulled.subscriber_id, [second.receipt])
    assert statuses(pulled) == [CANCELLED, CANCELLED, DELIVERED, CANCELLED, CANCELLED, CANCELLED]
    assert statuses(beside) == [CANCELLED]
    assert {*statuses(pushed), *statuses(stranger)} == {PENDING}
    assert redact_reason(Delivery.objects.get(pk=held.pk).reason) == "purged"
    assert purge(pulled.subscriber_id, seconds=60) == (0, 0, True)


def test_a_purge_that_takes_too_long_is_not_complete(pulled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_numbered(pulled.event_type, 5)
    monkeypatch.setattr(operations, "SLICE", 2)
    monkeypatch.setattr(operations, "CANCEL", CANCEL.replace("5000", "2"))
    purges = [purge(pulled.subscriber_id, seconds=0) for _ in range(4)]
    assert purges == [(2, 0, False), (2, 0, False), (1, 0, False), (0, 0, True)]


def test_messages_in_flight_end_slice_by_slice(pulled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_numbered(pulled.event_type, 5)
    mailboxes.fetch_all(pulled)
    monkeypatch.setattr(operations, "CANCEL", CANCEL.replace("5000", "2"))
    assert purge(pulled.subscriber_id, seconds=0) == (0, 2, False)
    assert purge(pulled.subscriber_id, seconds=60) == (0, 3, True)
    mailboxes.time_out_hand_outs()
    assert (mailboxes.fetch_all(pulled), return_overdue(), statuses(pulled)) == ([], 5, [CANCELLED] * 5)


@pytest.mark.behaviour("9.4")
@pytest.mark.parametrize(("say", "cancelled", "status"), [(nack, 1, CANCELLED), (acknowledge, 0, DELIVERED)])
def test_a_purge_waits_for_a_client_that_returns_or_acknowledges(
    pulled: Subscription, say: Callable[..., Any], cancelled: int, status: DeliveryStatus
) -> None:
    publish_numbered(pulled.event_type, 1)
    (one,) = mailboxes.fetch_all(pulled)
    with ExitStack() as purges, transaction.atomic():
        say(pulled.subscriber_id, [one.receipt])
        purged = purges.enter_context(in_other_thread(lambda: purge(pulled.subscriber_id, seconds=60)))
    assert purged.result() == Cancelled(cancelled, in_flight=0, is_complete=True)
    assert (mailboxes.fetch_all(pulled), statuses(pulled)) == ([], [status])


@pytest.mark.behaviour("9.3", "11.3")
def test_a_storm_of_clients_and_purges_leaves_nothing_available_and_fails_nobody(pulled: Subscription) -> None:
    for number in range(ROUNDS):
        receipts = mailboxes.hand_out_newest_first(pulled, HANDED_OUT, hours=1 if number % 2 else -1)
        starts = threading.Barrier(CLIENTS + 1)
        with ThreadPoolExecutor(CLIENTS + 1) as threads:
            says = [(acknowledge, nack)[one % 2] for one in range(CLIENTS)]
            clients = [
                threads.submit(do_and_disconnect, partial(_say_all, starts, say, pulled, receipts[one::CLIENTS]))
                for one, say in enumerate(says)
            ]
            purging = threads.submit(do_and_disconnect, partial(_purge, starts, pulled))
            for one in clients:
                one.result()
            assert purging.result().is_complete
        assert mailboxes.fetch_all(pulled) == []
        assert {*statuses(pulled)} <= {CANCELLED, DELIVERED}


def _say_all(starts: threading.Barrier, say: Say, pulled: Subscription, receipts: list[Receipt]) -> None:
    starts.wait()
    for at in range(0, len(receipts), BATCH):
        say(pulled.subscriber_id, receipts[at : at + BATCH])


def _purge(starts: threading.Barrier, pulled: Subscription) -> Cancelled:
    starts.wait()
    return purge(pulled.subscriber_id, seconds=60)


FILL = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, waits_for, due_at, fetches,
                           fetched_until, expires_at, cancel_requested)
SELECT (SELECT min(id) FROM delivery_message), %(line)s, %(subscription)s, 'IN_FLIGHT', 2, 'RETURN', NULL, 1,
       now() + interval '1 h' + n * interval '1 ms', now() - interval '1 s', false
  FROM generate_series(1, %(out)s) n
UNION ALL
SELECT (SELECT min(id) FROM delivery_message), %(line)s, %(subscription)s,
       CASE sort WHEN 3 THEN 'HELD' ELSE 'PENDING' END, 2,
       (ARRAY['TURN', 'RETRY', 'RELEASE', 'START'])[sort], CASE sort WHEN 2 THEN timestamptz '2026-01-01' END,
       0, NULL, NULL, false
  FROM generate_series(1, %(each)s) n CROSS JOIN generate_series(1, 4) sort
"""
"""Much that is in flight, its time to live over, and some of each sort that waits."""


@pytest.fixture
def crowded_mailbox(storage: None, event_type: EventType) -> Subscription:
    """A mailbox of which clients have much, beside another one like it."""
    first, second = (subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL) for _ in range(2))
    publish_numbered(event_type, 1)
    fill(first)
    fill(second)
    execute("VACUUM delivery_open")
    forget_connection()
    return first


def fill(wanted: Subscription) -> None:
    line = line_of(wanted.subscriber).pk
    execute(FILL, {"line": line, "subscription": wanted.pk, "out": OUT, "each": EACH})


@pytest.fixture
def in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slices be so small that many of them are needed."""
    monkeypatch.setattr(operations, "SLICE", SLICE)
    monkeypatch.setattr(operations, "CANCEL", CANCEL_IN_SLICES)


@pytest.mark.behaviour("11.4")
@pytest.mark.usefixtures("in_slices")
def test_a_slice_of_a_purge_reads_what_it_ends(crowded_mailbox: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    with explained_statements(monkeypatch) as found:
        assert purge(crowded_mailbox.subscriber_id, seconds=600) == Cancelled(SORTS * EACH + 1, OUT, is_complete=True)
    slices = [one for one in found if one.statement == CANCEL_IN_SLICES]
    first, *others, last = slices
    assert len(slices) == OUT // SLICE + 2
    assert costly_statements([first], OF_EACH * (SLICE + SORTS * EACH + 1)) == []
    assert costly_statements(others, OF_EACH * SLICE + 1) == []
    assert last.rows_read == OUT


@pytest.mark.behaviour("2.10", "11.4")
def test_expired_ones_are_found_among_many(crowded_mailbox: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Delivery.objects.filter(subscription=crowded_mailbox, fetched_until__isnull=False).oldest_first()[:EACH]
    Delivery.objects.filter(pk__in=[one.pk for one in late]).update(fetched_until=Now() - timedelta(seconds=1))
    with explained_statements(monkeypatch) as found:
        assert (expire_overdue(), expire_overdue()) == (EACH, 0)
    first, second = (one for one in found if one.statement == EXPIRE_OVERDUE)
    assert costly_statements([first], OF_EACH * EACH) == []
    assert second.rows_read == 0
