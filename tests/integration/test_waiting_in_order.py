"""Whoever waits for what is handed out does so in order of id, whatever else is in what order; so never in a ring."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest
from django.db.models.functions import Now

from delivery.mailbox.acknowledge import acknowledge, extend, give_back
from delivery.mailbox.mailbox import Receipt
from delivery.mailbox.unread import Purged, purge
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.driving import begin_and_vanish, line_of, publish_numbered, statuses
from tests.factories import subscription
from tests.mailboxes import fetched, switch
from tests.waiting import beside, hand_out_newest_first

FREE: LiteralString = "SELECT id FROM delivery_open ORDER BY id FOR UPDATE SKIP LOCKED"

Say = Callable[[int, list[Receipt]], Any]


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)


def purge_all(subscriber_id: int, _: list[Receipt]) -> Purged:
    return purge(subscriber_id, seconds=60)


@pytest.mark.behaviour("9.2", "9.7", "11.3")
@pytest.mark.parametrize("hours", [1, -1], ids=["in flight", "timed out"])
@pytest.mark.parametrize("waits", [purge_all, acknowledge, give_back, partial(extend, seconds=60)])
def test_whoever_waits_for_a_delivery_has_locked_none_that_is_newer(
    pulled: Subscription, elsewhere: "psycopg.Connection[Any]", waits: Say, hours: int
) -> None:
    receipts = hand_out_newest_first(pulled, 5, hours=hours)
    oldest, *newer = sorted(one.delivery_id for one in receipts)
    elsewhere.execute("SELECT FROM delivery_open WHERE id = %s FOR UPDATE", [oldest])
    with beside(lambda: waits(pulled.subscriber_id, receipts)) as done:
        free = [found for (found,) in elsewhere.execute(FREE)]
        elsewhere.rollback()
        done.result()
    assert free == [oldest, *newer]


@pytest.mark.behaviour("2.10", "9.2")
def test_whoever_ends_what_has_expired_waits_for_no_client(
    pulled: Subscription, elsewhere: "psycopg.Connection[Any]"
) -> None:
    oldest = hand_out_newest_first(pulled, 5, hours=-1)[-1].delivery_id
    elsewhere.execute("SELECT FROM delivery_open WHERE id = %s FOR UPDATE", [oldest])
    assert expire_overdue() == 4
    elsewhere.rollback()
    assert expire_overdue() == 1


@pytest.mark.behaviour("2.10", "9.6")
def test_what_has_expired_in_flight_ends_once_it_has_timed_out(pulled: Subscription) -> None:
    hand_out_newest_first(pulled, 1, hours=1)
    assert expire_overdue() == 0
    Delivery.objects.update(fetched_until=Now() - timedelta(milliseconds=1))
    assert (expire_overdue(), statuses(pulled)) == (1, [DeliveryStatus.EXPIRED])


@pytest.mark.behaviour("9.4", "9.8")
@pytest.mark.parametrize("say", [acknowledge, give_back, partial(extend, seconds=60)])
def test_a_receipt_of_what_is_being_sent_by_now_waits_for_nobody(
    pulled: Subscription, elsewhere: "psycopg.Connection[Any]", say: Say
) -> None:
    publish_numbered(pulled.event_type, 1)
    (one,) = fetched(pulled)
    give_back(pulled.subscriber_id, [one.receipt])
    switch(pulled, DeliveryMode.PUSH)
    begin_and_vanish(line_of(pulled.subscriber))
    elsewhere.execute("SELECT FROM delivery_open FOR UPDATE")
    (told,) = say(pulled.subscriber_id, [one.receipt]).values()
    assert (told.status, told.code, told.delivery_status) == (409, "stale_receipt", DeliveryStatus.IN_FLIGHT)
