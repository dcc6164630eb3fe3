"""Purging beside clients that fetch, acknowledge and return: nothing slips through, nobody fails (behaviour 9.7)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from delivery.mailbox.acknowledge import acknowledge, give_back
from delivery.mailbox.mailbox import Receipt
from delivery.mailbox.unread import Purged, purge
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.driving import publish_numbered, statuses
from tests.factories import subscription
from tests.mailboxes import fetched
from tests.waiting import alone, beside, hand_out_newest_first

CANCELLED, DELIVERED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED
ROUNDS = 3
IN_FLIGHT = 600
CLIENTS = 4
BATCH = 50

Say = Callable[[int, list[Receipt]], Any]


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)


@pytest.mark.behaviour("9.7")
def test_what_a_client_gives_back_while_a_purge_waits_for_it_is_purged(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 1)
    (one,) = fetched(pulled)
    with ExitStack() as purges, transaction.atomic():
        give_back(pulled.subscriber_id, [one.receipt])
        purged = purges.enter_context(beside(lambda: purge(pulled.subscriber_id, seconds=60)))
    assert purged.result() == Purged(cancelled=1, in_flight=0, is_complete=True)
    assert (fetched(pulled), statuses(pulled)) == ([], [CANCELLED])


@pytest.mark.behaviour("9.7")
def test_what_a_client_fetches_while_a_purge_waits_for_it_is_asked_to_end(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 1)
    with ExitStack() as purges, transaction.atomic():
        (one,) = fetched(pulled)
        purged = purges.enter_context(beside(lambda: purge(pulled.subscriber_id, seconds=60)))
    assert purged.result() == Purged(cancelled=0, in_flight=1, is_complete=True)
    give_back(pulled.subscriber_id, [one.receipt])
    assert statuses(pulled) == [CANCELLED]


@pytest.mark.behaviour("9.4", "9.7")
def test_what_a_client_acknowledges_while_a_purge_waits_for_it_is_delivered(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 1)
    (one,) = fetched(pulled)
    with ExitStack() as purges, transaction.atomic():
        acknowledge(pulled.subscriber_id, [one.receipt])
        purged = purges.enter_context(beside(lambda: purge(pulled.subscriber_id, seconds=60)))
    assert purged.result() == Purged(cancelled=0, in_flight=0, is_complete=True)
    assert statuses(pulled) == [DELIVERED]


@pytest.mark.behaviour("9.3", "9.7", "11.3")
def test_a_storm_of_clients_and_purges_leaves_nothing_available_and_fails_nobody(pulled: Subscription) -> None:
    for number in range(ROUNDS):
        receipts = hand_out_newest_first(pulled, IN_FLIGHT, hours=1 if number % 2 else -1)
        starts = threading.Barrier(CLIENTS + 1)
        with ThreadPoolExecutor(CLIENTS + 1) as threads:
            says = [(acknowledge, give_back)[one % 2] for one in range(CLIENTS)]
            clients = [
                threads.submit(alone, partial(_say_all, starts, say, pulled, receipts[one::CLIENTS]))
                for one, say in enumerate(says)
            ]
            purging = threads.submit(alone, partial(_purge, starts, pulled))
            for one in clients:
                one.result()
            assert purging.result().is_complete
        assert fetched(pulled) == []
        assert {*statuses(pulled)} <= {CANCELLED, DELIVERED}


def _say_all(starts: threading.Barrier, say: Say, pulled: Subscription, receipts: list[Receipt]) -> None:
    starts.wait()
    for at in range(0, len(receipts), BATCH):
        say(pulled.subscriber_id, receipts[at : at + BATCH])


def _purge(starts: threading.Barrier, pulled: Subscription) -> Purged:
    starts.wait()
    return purge(pulled.subscriber_id, seconds=60)
