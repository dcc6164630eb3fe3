"""Fetch from a mailbox: the oldest first, each message to one client (contract 9.1, 9.3)."""

import threading
from typing import Any

import psycopg
import pytest
from django.db import transaction
from structlog.testing import capture_logs

from broker_project.core.db import rows
from delivery.mailbox import fetch_messages
from delivery.mailbox.acknowledge import acknowledge
from delivery.mailbox.fetch_messages import DEPTH_PER_MESSAGE, FETCH, FETCH_IN_ORDER, MIN_DEPTH, fetch
from delivery.mailbox.long_poll import COUNT_AVAILABLE
from delivery.mailbox.receipts import FetchedMessage, MailboxRef
from delivery.models import Delivery
from delivery.operations import release
from delivery.statuses import DeliveryStatus
from subscriptions.models import Subscriber, Subscription
from subscriptions.payload_format import PayloadFormat
from tests.integration.mailbox.test_plans import FILL, fill
from tests.support import mailboxes
from tests.support.broker import activate, inactivate, publish_bodies, publish_numbered
from tests.support.database import execute, in_parallel
from tests.support.query_plans import ExplainedStatement, costly_statements, explained_statements

pytestmark = pytest.mark.behaviour("9.1", "9.3")

IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING

SUBSCRIPTIONS = 300
SORTS = 3
"""Fresh, set aside before, timed out."""
BESIDE = 50


def test_the_oldest_are_handed_out_first_each_with_a_receipt_of_its_own(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 5)
    first, second = mailboxes.fetch_all(pulled, 3), mailboxes.fetch_all(pulled, 3)
    assert [mailboxes.bodies_of(one) for one in (first, second)] == [[b"0", b"1", b"2"], [b"3", b"4"]]
    assert mailboxes.fetch_all(pulled) == []
    assert len({one.receipt for one in first + second}) == 5
    told = {(one.redeliveries, one.is_uncertain, one.possible_duplicate) for one in first + second}
    assert told == {(0, False, False)}
    rows = Delivery.objects.oldest_first().values_list("status", "fetches", "fetched_until", "attempts", "sequence")
    assert [*rows] == [(IN_FLIGHT, 1, one.until, 0, None) for one in first + second]


def test_subscriptions_of_one_mailbox_are_fetched_in_the_order_of_publishing(pulled: Subscription) -> None:
    beside = mailboxes.pulled_subscription(pulled.subscriber)
    for number in range(4):
        publish_numbered((pulled, beside)[number % 2].event_type, 1, first=number)
    told = [(one.content.body, one.subscription_id) for one in mailboxes.fetch_all(pulled)]
    assert told == [(b"0", pulled.pk), (b"1", beside.pk), (b"2", pulled.pk), (b"3", beside.pk)]


def test_one_fetch_takes_a_mebibyte_or_one_message(pulled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch_messages.MAX_FETCH_BYTES == 1024 * 1024
    half = b"x" * (fetch_messages.MAX_FETCH_BYTES // 2)
    publish_bodies(pulled.event_type, half, half, b"y", half * 2 + b"x", b"z", content_type="text/plain")
    lengths = [[len(one) for one in mailboxes.fetch_bodies(pulled)] for _ in range(5)]
    assert lengths == [[len(half)] * 2, [1], [len(half) * 2 + 1], [1], []]


@pytest.mark.behaviour("9.2", "4.11")
def test_timed_out_messages_come_again_first_and_flagged(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 4)
    first = mailboxes.fetch_all(pulled, 2)
    mailboxes.time_out_hand_outs()
    again = mailboxes.fetch_all(pulled, 3)
    assert mailboxes.bodies_of(again) == [b"0", b"1", b"2"]
    assert [(one.redeliveries, one.possible_duplicate) for one in again] == [(1, True), (1, True), (0, False)]
    assert not {one.receipt for one in first} & {one.receipt for one in again}


def test_no_two_of_eight_clients_get_the_same_message(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 160)
    start = threading.Barrier(8)

    def drain() -> list[FetchedMessage]:
        start.wait()
        mine: list[FetchedMessage] = []
        while len(mine) < 160 and Delivery.objects.filter(status=PENDING).exists():
            mine += fetch(MailboxRef(pulled.subscriber_id, is_ordered=False), max_messages=3)
        return mine

    shares = in_parallel(8, drain)
    receipts = [one.receipt for share in shares for one in share]
    assert (len(receipts), len({*receipts}), len({one.delivery_id for one in receipts})) == (160, 160, 160)
    assert {one.redeliveries for share in shares for one in share} == {0}
    assert all([one.delivery_id for one in share] == sorted(one.delivery_id for one in share) for share in shares)


@pytest.mark.behaviour("1.7")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
def test_messages_of_inactive_subscriptions_are_kept(pulled: Subscription, whose: str) -> None:
    publish_numbered(pulled.event_type, 2)
    thing = pulled if whose == "subscription" else pulled.subscriber
    (held,) = mailboxes.fetch_all(pulled, 1)
    inactivate(thing)
    assert mailboxes.fetch_all(pulled) == []
    assert acknowledge(pulled.subscriber_id, [held.receipt])[held.receipt].status == 200
    activate(thing)
    assert mailboxes.fetch_bodies(pulled) == [b"1"]


@pytest.mark.behaviour("2.10", "2.13")
def test_expired_and_delayed_messages_are_not_handed_out(pulled: Subscription) -> None:
    publish_bodies(pulled.event_type, b"0", b"1", ttl=60.0)
    publish_bodies(pulled.event_type, b"2", not_before="2999-01-01T00:00:00Z")
    publish_bodies(pulled.event_type, b"3")
    (first, *_) = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk=first.pk).update(expires_at="2026-01-01T00:00:00Z")
    assert mailboxes.fetch_bodies(pulled) == [b"1", b"3"]
    Delivery.objects.update(expires_at="2026-01-01T00:00:00Z")
    Delivery.objects.filter(status="IN_FLIGHT").update(fetched_until="2026-01-01T00:00:00Z")
    assert mailboxes.fetch_all(pulled) == []


@pytest.mark.behaviour("3.6")
def test_a_held_message_is_handed_out_after_its_release(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 2)
    first, _ = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk=first.pk).update(status="HELD", waits_for="RELEASE")
    assert mailboxes.fetch_bodies(pulled) == [b"1"]
    release([first.pk])
    assert mailboxes.fetch_bodies(pulled) == [b"0"]


@pytest.mark.behaviour("2.12")
def test_a_message_comes_in_the_form_that_its_subscription_wants(pulled: Subscription) -> None:
    Subscription.objects.filter(pk=pulled.pk).update(output=PayloadFormat.CLOUDEVENTS_STRUCTURED)
    publish_bodies(pulled.event_type, b'{"a":1}')
    (one,) = mailboxes.fetch_all(pulled)
    assert dict(one.content.headers)["Content-Type"] == "application/cloudevents+json"
    assert b'"data":{"a":1}' in one.content.body


def test_locked_messages_are_passed_over(pulled: Subscription, elsewhere: "psycopg.Connection[Any]") -> None:
    publish_numbered(pulled.event_type, 2)
    first, _ = Delivery.objects.oldest_first()
    elsewhere.execute("SELECT FROM delivery_open WHERE id = %s FOR UPDATE", [first.pk])
    assert [mailboxes.fetch_bodies(pulled), mailboxes.fetch_all(pulled)] == [[b"1"], []]
    elsewhere.rollback()
    assert mailboxes.fetch_bodies(pulled) == [b"0"]


@pytest.mark.behaviour("9.7")
def test_a_fetch_follows_the_current_order_setting_of_the_mailbox(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 4)
    stale = mailboxes.mailbox_of(pulled.subscriber)
    Subscriber.objects.update(mailbox_ordered=True)
    assert mailboxes.bodies_of(fetch(stale, max_messages=10)) == [b"0"]
    mailboxes.time_out_hand_outs()
    stale = mailboxes.mailbox_of(pulled.subscriber)
    Subscriber.objects.update(mailbox_ordered=False)
    assert mailboxes.bodies_of(fetch(stale, max_messages=10)) == [b"0", b"1", b"2", b"3"]
    assert fetch(MailboxRef(0, is_ordered=False), max_messages=10) == []


def test_a_fetch_of_one_succeeds_while_another_fetch_holds_the_first_hundred(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 101)
    box = mailboxes.mailbox_of(pulled.subscriber)
    with transaction.atomic():
        assert len(fetch(box, max_messages=100)) == 100
        ((one,),) = in_parallel(1, lambda: fetch(box, max_messages=1))
    assert one.content.body == b"100"


def test_a_delivery_without_its_message_is_logged_and_does_not_block_the_others(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 2)
    lost, _ = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk=lost.pk).update(message=0)
    with capture_logs() as logged:
        assert [one.content.body for one in mailboxes.fetch_all(pulled)] == [b"1"]
    assert [(one["event"], one["delivery_id"]) for one in logged] == [("mailboxes.message_missing", lost.pk)]


@pytest.fixture
def crowd(pulled: Subscription) -> Subscription:
    """One of very many subscriptions of a subscriber."""
    for _ in range(SUBSCRIPTIONS - 1):
        mailboxes.pulled_subscription(pulled.subscriber, pulled.event_type)
    publish_numbered(pulled.event_type, 1)
    return pulled


def test_a_mailbox_costs_so_much_a_subscription(crowd: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(300)
    execute("UPDATE delivery_open SET fetched_until = now() - interval '1 s' WHERE fetched_until > now()")
    with explained_statements(monkeypatch) as found:
        fetch(mailboxes.mailbox_of(crowd.subscriber), max_messages=1)
        rows(COUNT_AVAILABLE, [[crowd.subscriber_id], [1]])
    depth = MIN_DEPTH + DEPTH_PER_MESSAGE
    assert costly_statements(those(found, FETCH), SUBSCRIPTIONS * SORTS * depth + BESIDE) == []
    assert costly_statements(those(found, COUNT_AVAILABLE), SUBSCRIPTIONS * SORTS + BESIDE) == []


@pytest.mark.behaviour("9.7")
def test_an_ordered_mailbox_costs_so_much_for_each(crowd: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(f"{FILL} WHERE n %% 4 < 2", [300])
    Subscriber.objects.update(mailbox_ordered=True)
    with explained_statements(monkeypatch) as found:
        fetch(mailboxes.mailbox_of(crowd.subscriber), max_messages=1)
    assert costly_statements(those(found, FETCH_IN_ORDER), SUBSCRIPTIONS * SORTS + BESIDE) == []


def those(found: list[ExplainedStatement], statement: str) -> list[ExplainedStatement]:
    """Return what was found of a statement, which was carried out."""
    ours = [one for one in found if one.statement == statement]
    assert ours
    return ours
