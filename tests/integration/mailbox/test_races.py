"""Two who are at the same message at the same moment: the slower finds what the quicker has done (contract 9)."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import psycopg
import pytest

from delivery.dispatch.turn_floors import note_floors
from delivery.mailbox import fetch_messages, unread
from delivery.mailbox.acknowledge import acknowledge, extend, nack
from delivery.mailbox.fetch_messages import FETCH, FETCH_IN_ORDER, LOCK
from delivery.mailbox.unread import expire_unread, purge, return_overdue
from delivery.models import Delivery, TurnFloor
from delivery.operations import Cancelled, release
from delivery.statuses import DeliveryStatus
from subscriptions.models import Subscriber, Subscription
from tests.support.broker import publish_numbered, raise_floors, statuses
from tests.support.database import in_other_thread
from tests.support.mailboxes import (
    bodies_of,
    fetch_all,
    let_days_pass,
    mailbox_of,
    pulled_subscription,
    time_out_hand_outs,
)

HELD, IN_FLIGHT, PENDING = DeliveryStatus.HELD, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING
FOUND = re.compile(r"\(SELECT (?:id|\*) FROM (\w+) ORDER BY id\)")
Elsewhere = psycopg.Connection[Any]
T = TypeVar("T")


@contextmanager
def between_looking_and_taking(
    module: ModuleType, name: str, do: Callable[[], T], elsewhere: Elsewhere
) -> "Iterator[Future[T]]":
    """Let somebody do it as far as his statement has found what there is and locked none of it; then comes the block.

    The statement is that of this name in the module.
    """
    stopping, found = FOUND.subn(
        r"(SELECT *, pg_advisory_xact_lock_shared(1) FROM \1 ORDER BY id)", getattr(module, name)
    )
    assert found == 1
    elsewhere.execute("SELECT pg_advisory_xact_lock(1)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, stopping)
        with in_other_thread(do) as somebody:
            patch.undo()
            yield somebody
            elsewhere.rollback()


def hand_out_elsewhere(pulled: Subscription, elsewhere: Elsewhere) -> None:
    """Let another client's fetch be under way: it has the oldest message, and nobody can see it yet."""
    box = mailbox_of(pulled.subscriber)
    elsewhere.execute(LOCK, [box.subscriber_id])
    asked = {"subscriber": box.subscriber_id, "max_messages": 1, "depth": 50}
    assert elsewhere.execute(FETCH_IN_ORDER if box.is_ordered else FETCH, asked).fetchall()[0][2]


@pytest.mark.behaviour("9.3")
@pytest.mark.parametrize("is_late", [False, True], ids=["fresh", "timed out"])
def test_a_taken_message_is_not_handed_out(pulled: Subscription, elsewhere: Elsewhere, *, is_late: bool) -> None:
    publish_numbered(pulled.event_type, 2)
    if is_late:
        fetch_all(pulled)
        time_out_hand_outs()
    with between_looking_and_taking(fetch_messages, "FETCH", lambda: fetch_all(pulled, 1), elsewhere) as slower:
        assert bodies_of(fetch_all(pulled, 1)) == [b"0"]
    assert bodies_of(slower.result()) == [b"1"]


@pytest.mark.behaviour("9.3", "9.4")
def test_a_message_acknowledged_late_is_not_handed_out_again(pulled: Subscription, elsewhere: Elsewhere) -> None:
    publish_numbered(pulled.event_type, 2)
    late, _ = fetch_all(pulled)
    time_out_hand_outs()
    with between_looking_and_taking(fetch_messages, "FETCH", lambda: fetch_all(pulled, 1), elsewhere) as slower:
        acknowledge(pulled.subscriber_id, [late.receipt])
    assert bodies_of(slower.result()) == [b"1"]


@pytest.mark.behaviour("9.7")
def test_a_fetch_from_an_ordered_mailbox_waits_for_another_fetch(pulled: Subscription, elsewhere: Elsewhere) -> None:
    Subscriber.objects.update(mailbox_ordered=True)
    publish_numbered(pulled.event_type, 2)
    hand_out_elsewhere(pulled, elsewhere)
    with in_other_thread(lambda: fetch_all(pulled)) as slower:
        elsewhere.commit()
    assert (slower.result(), statuses(pulled)) == ([], [IN_FLIGHT, PENDING])


@pytest.mark.behaviour("9.7")
def test_of_two_fetches_from_an_ordered_mailbox_one_gets_a_message_although_an_older_one_is_released_between(
    pulled: Subscription, elsewhere: Elsewhere
) -> None:
    Subscriber.objects.update(mailbox_ordered=True)
    publish_numbered(pulled.event_type, 2)
    oldest = Delivery.objects.open().order_by("id")[:1].get()
    Delivery.objects.open().filter(pk=oldest.pk).update(status=HELD, waits_for="RELEASE")
    taking = between_looking_and_taking(fetch_messages, "FETCH_IN_ORDER", lambda: fetch_all(pulled), elsewhere)
    with ExitStack() as afterwards, taking as first:
        release([oldest.pk])
        second = afterwards.enter_context(in_other_thread(lambda: fetch_all(pulled)))
    assert (bodies_of(first.result()), bodies_of(second.result())) == ([b"1"], [])


@pytest.mark.behaviour("9.7")
def test_an_extension_waits_for_the_lock_of_the_mailbox(pulled: Subscription, elsewhere: Elsewhere) -> None:
    publish_numbered(pulled.event_type, 1)
    (one,) = fetch_all(pulled)
    elsewhere.execute(LOCK, [pulled.subscriber_id])
    with in_other_thread(lambda: extend(pulled.subscriber_id, [one.receipt], seconds=60)) as slower:
        assert not slower.done()
        elsewhere.rollback()
    assert slower.result()[one.receipt].status == 200


LOCK_FLOOR = "SELECT FROM delivery_turnfloor WHERE subscription_id = %s FOR UPDATE"


@pytest.mark.behaviour("9.4", "11.6")
def test_clients_return_messages_of_the_same_subscriptions_in_any_order(
    pulled: Subscription, elsewhere: Elsewhere
) -> None:
    beside = pulled_subscription(pulled.subscriber)
    for one in (pulled, beside, beside, pulled):
        publish_numbered(one.event_type, 1)
    receipts = [one.receipt for one in fetch_all(pulled)]
    raise_floors()
    elsewhere.execute(LOCK_FLOOR, [pulled.pk])
    with ExitStack() as clients:
        returned = [
            clients.enter_context(in_other_thread(partial(nack, pulled.subscriber_id, some)))
            for some in (receipts[:2], receipts[2:])
        ]
        elsewhere.rollback()
    assert [{one.status for one in results.result().values()} for results in returned] == [{200}, {200}]
    assert [one.receipt.delivery_id for one in fetch_all(pulled)] == [one.delivery_id for one in receipts]


@pytest.mark.behaviour("9.4", "11.6")
def test_messages_are_returned_while_floors_end(pulled: Subscription, elsewhere: Elsewhere) -> None:
    beside = pulled_subscription(pulled.subscriber)
    for one in (beside, pulled):
        publish_numbered(one.event_type, 1)
    receipts = [one.receipt for one in fetch_all(pulled)]
    raise_floors()
    elsewhere.execute(LOCK_FLOOR, [pulled.pk])
    with in_other_thread(note_floors) as ending, in_other_thread(lambda: nack(pulled.subscriber_id, receipts)) as back:
        elsewhere.rollback()
    assert (ending.result(), [one.status for one in back.result().values()]) == (1, [200, 200])
    note_floors()
    assert not TurnFloor.objects.exists()


@pytest.mark.behaviour("9.6")
def test_a_message_fetched_at_the_last_moment_does_not_expire(pulled: Subscription, elsewhere: Elsewhere) -> None:
    publish_numbered(pulled.event_type, 2)
    let_days_pass(days=4)
    with between_looking_and_taking(unread, "EXPIRE", expire_unread, elsewhere) as chore:
        fetch_all(pulled, 1)
    assert (chore.result(), statuses(pulled)) == (1, [IN_FLIGHT, DeliveryStatus.EXPIRED])


@pytest.mark.behaviour("9.4", "9.7")
def test_a_message_extended_at_the_last_moment_does_not_fail(pulled: Subscription, elsewhere: Elsewhere) -> None:
    Subscriber.objects.update(max_redeliveries=0)
    publish_numbered(pulled.event_type, 2)
    late, _ = fetch_all(pulled)
    time_out_hand_outs()
    with between_looking_and_taking(unread, "RETURN", return_overdue, elsewhere) as chore:
        extend(pulled.subscriber_id, [late.receipt], seconds=60)
    assert (chore.result(), statuses(pulled)) == (1, [IN_FLIGHT, DeliveryStatus.FAILED])


@pytest.mark.behaviour("9.7")
def test_a_purge_leaves_what_is_being_fetched_to_its_client(pulled: Subscription, elsewhere: Elsewhere) -> None:
    publish_numbered(pulled.event_type, 2)
    hand_out_elsewhere(pulled, elsewhere)
    with in_other_thread(lambda: purge(pulled.subscriber_id, seconds=60)) as purging:
        elsewhere.commit()
    assert purging.result() == Cancelled(ended=1, in_flight=1, is_complete=True)
    assert statuses(pulled) == [IN_FLIGHT, DeliveryStatus.CANCELLED]
