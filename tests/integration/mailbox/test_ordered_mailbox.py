"""An ordered mailbox hands out nothing newer while something older is in flight (contract 9.7)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest
from django.db import transaction
from django.db.models.functions import Now

from broker_project.core.db import rows
from delivery.dispatch.claim import claim
from delivery.mailbox.acknowledge import ReceiptCode, acknowledge, extend, nack
from delivery.mailbox.fetch_messages import FETCH, FETCH_IN_ORDER, fetch
from delivery.mailbox.long_poll import COUNT_AVAILABLE
from delivery.mailbox.receipts import MailboxRef, Receipt
from delivery.mailbox.unread import purge
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, Line
from delivery.operations import Cancelled
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.support import broker, mailboxes
from tests.support.database import execute, in_other_thread, in_parallel
from tests.support.factories import subscriber, subscription
from tests.support.query_plans import costly_statements, explained_statements

pytestmark = pytest.mark.behaviour("9.7")

NOTES, OF_A_NOTE = 10, 200
NOTED: LiteralString = """
INSERT INTO delivery_pageread (line_id, epoch, delivery_ids)
SELECT l.id, l.epoch, ARRAY(SELECT id FROM delivery_open ORDER BY id DESC LIMIT %s)
  FROM delivery_line l CROSS JOIN generate_series(1, %s) WHERE l.subscriber_id = %s AND l.lane = 'main'"""

FREE: LiteralString = "SELECT id FROM delivery_open ORDER BY id FOR UPDATE SKIP LOCKED"

Say = Callable[[int, list[Receipt]], Any]


@pytest.fixture
def ordered(storage: None, event_type: EventType) -> Subscription:
    return subscription(subscriber(mailbox_ordered=True), event_type, delivery_mode=DeliveryMode.PULL)


@pytest.fixture
def other_mailbox(ordered: Subscription) -> Subscription:
    """Another subscription of the same mailbox."""
    return mailboxes.pulled_subscription(ordered.subscriber)


def next_body(wanted: Subscription) -> bytes | None:
    """Fetch as many as there are: one at most."""
    messages = mailboxes.fetch_all(wanted)
    assert len(messages) <= 1
    return messages[0].content.body if messages else None


def test_the_next_message_follows_the_acknowledgement(ordered: Subscription, other_mailbox: Subscription) -> None:
    for number in range(4):
        broker.publish_numbered((ordered, other_mailbox)[number % 2].event_type, 1, first=number)
    for number in range(4):
        (one,) = mailboxes.fetch_all(ordered)
        assert (one.content.body, mailboxes.fetch_all(ordered)) == (str(number).encode(), [])
        acknowledge(ordered.subscriber_id, [one.receipt])
    assert next_body(ordered) is None


@pytest.mark.behaviour("9.8")
@pytest.mark.parametrize("how", ["inactive", "paused", "pushed"])
def test_a_message_in_flight_blocks_the_others(ordered: Subscription, other_mailbox: Subscription, how: str) -> None:
    broker.publish_numbered(ordered.event_type, 1)
    broker.publish_bodies(other_mailbox.event_type, b"beside")
    (one,) = mailboxes.fetch_all(ordered)
    if how == "inactive":
        broker.inactivate(ordered)
    elif how == "paused":
        Subscription.objects.filter(pk=ordered.pk).update(paused_since="2026-01-01T00:00:00Z", paused_by="HAND")
    else:
        mailboxes.switch_delivery_mode(ordered, DeliveryMode.PUSH)
    assert next_body(ordered) is None
    acknowledge(ordered.subscriber_id, [one.receipt])
    assert next_body(ordered) == b"beside"


@pytest.mark.behaviour("3.6", "2.13")
def test_delayed_and_held_messages_block_nothing(ordered: Subscription) -> None:
    broker.publish_bodies(ordered.event_type, b"delayed", not_before="2999-01-01T00:00:00Z")
    broker.publish_bodies(ordered.event_type, b"held", b"next")
    held = Delivery.objects.oldest_first()[1]
    Delivery.objects.filter(pk=held.pk).update(status="HELD", waits_for="RELEASE")
    assert next_body(ordered) == b"next"


@pytest.mark.behaviour("9.4")
def test_a_timed_out_message_is_not_extended_in_an_ordered_mailbox(ordered: Subscription) -> None:
    broker.publish_numbered(ordered.event_type, 1)
    (one,) = mailboxes.fetch_all(ordered)
    assert extend(ordered.subscriber_id, [one.receipt], seconds=60)[one.receipt].code == ReceiptCode.EXTENDED
    mailboxes.time_out_hand_outs()
    late = extend(ordered.subscriber_id, [one.receipt], seconds=60)[one.receipt]
    assert (late.code, late.delivery_status) == (ReceiptCode.TIMED_OUT, DeliveryStatus.PENDING)
    assert next_body(ordered) == b"0"


@pytest.mark.behaviour("9.3")
def test_eight_clients_get_the_messages_one_after_the_other(ordered: Subscription, other_mailbox: Subscription) -> None:
    for number in range(24):
        broker.publish_numbered((ordered, other_mailbox)[number % 2].event_type, 1, first=number)
    start = threading.Barrier(8)
    worked_off: list[bytes] = []
    at_work = threading.Semaphore(1)

    def turns() -> Iterator[bytes]:
        while Delivery.objects.open().exists():
            for one in fetch(MailboxRef(ordered.subscriber_id, is_ordered=True), max_messages=10):
                assert at_work.acquire(blocking=False), "somebody else has one in flight"
                yield one.content.body
                at_work.release()
                acknowledge(ordered.subscriber_id, [one.receipt])

    def work_off() -> None:
        start.wait()
        worked_off.extend(turns())

    in_parallel(8, work_off)
    assert sorted(worked_off, key=int) == [str(number).encode() for number in range(24)]
    finished = Delivery.objects.order_by("finished_at").values_list("id", flat=True)
    assert [*finished] == sorted(finished)


@pytest.fixture
def pushed(storage: None, event_type: EventType) -> Subscription:
    """One that is pushed still, of a subscriber with an ordered mailbox."""
    return subscription(subscriber(mailbox_ordered=True), event_type)


@pytest.mark.parametrize(("say", "next_one"), [(nack, b"0"), (acknowledge, b"1")])
def test_a_fetch_waits_for_late_receipts(ordered: Subscription, say: Callable[..., Any], next_one: bytes) -> None:
    broker.publish_numbered(ordered.event_type, 2)
    (late,) = mailboxes.fetch_all(ordered)
    mailboxes.time_out_hand_outs()
    with ExitStack() as others, transaction.atomic():
        say(ordered.subscriber_id, [late.receipt])
        got = others.enter_context(in_other_thread(lambda: mailboxes.fetch_bodies(ordered)))
    assert got.result() == [next_one]


@pytest.mark.behaviour("9.8")
def test_a_line_that_is_about_to_send_the_oldest_as_the_subscription_is_switched_is_waited_for(
    pushed: Subscription, elsewhere: "psycopg.Connection[Any]"
) -> None:
    broker.publish_numbered(pushed.event_type, 2)
    oldest = Delivery.objects.oldest_first()[0]
    with ExitStack() as others, transaction.atomic():
        broker.crash_while_sending(broker.line_of(pushed.subscriber))
        elsewhere.execute("UPDATE subscriptions_subscription SET delivery_mode = 'PULL' WHERE id = %s", [pushed.pk])
        elsewhere.commit()
        got = others.enter_context(in_other_thread(lambda: mailboxes.fetch_bodies(pushed)))
    assert (got.result(), Delivery.objects.get(pk=oldest.pk).fetches) == ([], 0)


def test_a_fetch_waits_for_an_unordered_one(ordered: Subscription, elsewhere: "psycopg.Connection[Any]") -> None:
    Subscriber.objects.update(mailbox_ordered=False)
    broker.publish_numbered(ordered.event_type, 2)
    with ExitStack() as others, transaction.atomic():
        assert len(rows(FETCH, {"subscriber": ordered.subscriber_id, "max_messages": 1, "depth": 50})) == 1
        elsewhere.execute("UPDATE subscriptions_subscriber SET mailbox_ordered = true")
        elsewhere.commit()
        got = others.enter_context(in_other_thread(lambda: mailboxes.fetch_bodies(ordered)))
    assert got.result() == []


def test_the_oldest_of_many_timed_out_messages_comes_first(ordered: Subscription) -> None:
    Subscriber.objects.update(mailbox_ordered=False)
    broker.publish_numbered(ordered.event_type, 80)
    mailboxes.fetch_all(ordered)
    mailboxes.time_out_hand_outs()
    # the oldest timed out last
    execute("UPDATE delivery_open SET fetched_until = fetched_until - (id %% 1000000) * interval '1 s'", [])
    Subscriber.objects.update(mailbox_ordered=True)
    assert mailboxes.fetch_bodies(ordered) == [b"0"]


def looked(wanted: Subscription) -> list[Any]:
    """Return what a poll for its mailbox would be woken for."""
    return rows(COUNT_AVAILABLE, [[wanted.subscriber_id], [3]])


@pytest.mark.behaviour("9.8")
@pytest.mark.parametrize("status_code", [200, 503])
def test_a_request_in_flight_blocks_the_mailbox_after_a_switch(pushed: Subscription, status_code: int) -> None:
    broker.publish_numbered(pushed.event_type, 2)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(pushed.subscriber))
    mailboxes.switch_delivery_mode(pushed, DeliveryMode.PULL)
    assert (mailboxes.fetch_bodies(pushed), looked(pushed)) == ([], [])
    if status_code == 503:
        outcome: dict[str, Any] = {"status": DeliveryStatus.PENDING, "pause": 3600.0, "status_code": 503}
    else:
        outcome = {}
    broker.settle({line.id: line.claim.epoch}, settlements=[broker.settlement(line, delivery, **outcome)])
    assert looked(pushed) == [(pushed.subscriber_id, 1)]
    assert mailboxes.fetch_bodies(pushed) == ([b"0"] if status_code == 503 else [b"1"])


@pytest.mark.behaviour("9.8", "4.11")
def test_a_request_of_a_lost_worker_blocks_the_mailbox_until_its_line_is_claimed(pushed: Subscription) -> None:
    broker.publish_numbered(pushed.event_type, 2)
    broker.crash_while_sending(broker.line_of(pushed.subscriber))
    mailboxes.switch_delivery_mode(pushed, DeliveryMode.PULL)
    broker.expire_lease(broker.line_of(pushed.subscriber))
    assert (mailboxes.fetch_bodies(pushed), looked(pushed)) == ([], [])
    claim([broker.line_of(pushed.subscriber).pk], worker="another")
    assert mailboxes.fetch_bodies(pushed) == [b"0"]


def test_a_request_of_a_pushed_subscription_does_not_block_the_mailbox(pushed: Subscription) -> None:
    beside = mailboxes.pulled_subscription(pushed.subscriber)
    broker.publish_numbered(pushed.event_type, 1)
    broker.publish_numbered(beside.event_type, 1, first=1)
    broker.crash_while_sending(broker.line_of(pushed.subscriber))
    assert mailboxes.fetch_bodies(beside) == [b"1"]


@pytest.mark.behaviour("11.4")
def test_pages_of_other_lines_are_not_read(pushed: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish_numbered(pushed.event_type, NOTES * OF_A_NOTE)
    broker.crash_while_sending(broker.line_of(pushed.subscriber))
    mailboxes.switch_delivery_mode(pushed, DeliveryMode.PULL)
    execute(NOTED, [1, 5_000, subscriber().pk])
    execute(NOTED, [OF_A_NOTE, NOTES, pushed.subscriber_id])
    Line.objects.filter(lease_until=None).update(lease_until="2999-01-01T00:00:00Z")
    with explained_statements(monkeypatch) as found:
        assert (mailboxes.fetch_bodies(pushed), looked(pushed)) == ([], [])
    looks = [one for one in found if one.statement in {FETCH_IN_ORDER, COUNT_AVAILABLE}]
    assert (len(looks), costly_statements(looks, max_rows=2 * NOTES * OF_A_NOTE)) == (2, [])


def purge_all(subscriber_id: int, _: list[Receipt]) -> Cancelled:
    return purge(subscriber_id, seconds=60)


@pytest.mark.behaviour("9.2", "11.3")
@pytest.mark.parametrize("hours", [1, -1], ids=["in flight", "timed out"])
@pytest.mark.parametrize("waits", [purge_all, acknowledge, nack, partial(extend, seconds=60)])
def test_a_call_that_waits_for_a_delivery_has_locked_no_newer_one(
    pulled: Subscription, elsewhere: "psycopg.Connection[Any]", waits: Say, hours: int
) -> None:
    receipts = mailboxes.hand_out_newest_first(pulled, 5, hours=hours)
    oldest, *newer = sorted(one.delivery_id for one in receipts)
    elsewhere.execute("SELECT FROM delivery_open WHERE id = %s FOR UPDATE", [oldest])
    with in_other_thread(lambda: waits(pulled.subscriber_id, receipts)) as done:
        free = [found for (found,) in elsewhere.execute(FREE)]
        elsewhere.rollback()
        done.result()
    assert free == [oldest, *newer]


@pytest.mark.behaviour("2.10", "9.2")
def test_expiry_waits_for_no_client(pulled: Subscription, elsewhere: "psycopg.Connection[Any]") -> None:
    oldest = mailboxes.hand_out_newest_first(pulled, 5, hours=-1)[-1].delivery_id
    elsewhere.execute("SELECT FROM delivery_open WHERE id = %s FOR UPDATE", [oldest])
    assert expire_overdue() == 4
    elsewhere.rollback()
    assert expire_overdue() == 1


@pytest.mark.behaviour("2.10", "9.6")
def test_an_expired_message_in_flight_ends_after_its_time_out(pulled: Subscription) -> None:
    mailboxes.hand_out_newest_first(pulled, 1, hours=1)
    assert expire_overdue() == 0
    Delivery.objects.update(fetched_until=Now() - timedelta(milliseconds=1))
    assert (expire_overdue(), broker.statuses(pulled)) == (1, [DeliveryStatus.EXPIRED])


@pytest.mark.behaviour("9.4", "9.8")
@pytest.mark.parametrize("say", [acknowledge, nack, partial(extend, seconds=60)])
def test_receipts_wait_for_no_request(pulled: Subscription, elsewhere: "psycopg.Connection[Any]", say: Say) -> None:
    broker.publish_numbered(pulled.event_type, 1)
    (one,) = mailboxes.fetch_all(pulled)
    nack(pulled.subscriber_id, [one.receipt])
    mailboxes.switch_delivery_mode(pulled, DeliveryMode.PUSH)
    broker.crash_while_sending(broker.line_of(pulled.subscriber))
    elsewhere.execute("SELECT FROM delivery_open FOR UPDATE")
    (told,) = say(pulled.subscriber_id, [one.receipt]).values()
    assert (told.status, told.code, told.delivery_status) == (409, "stale_receipt", DeliveryStatus.IN_FLIGHT)
