"""An ordered mailbox waits for whoever is at the oldest of its messages, and never passes it over (behaviour 9.7)."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, LiteralString

import psycopg
import pytest
from django.db import connection, transaction

from broker_project.core.db import forget_connection, rows
from delivery.mailbox.acknowledge import acknowledge, give_back
from delivery.mailbox.fetch_messages import FETCH
from delivery.models import Delivery
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.driving import begin_and_vanish, line_of, publish_numbered
from tests.factories import subscriber, subscription
from tests.mailboxes import fetched, time_out
from tests.receiver import wait_until

WAITING_FOR_US: LiteralString = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"""


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return subscription(subscriber(mailbox_ordered=True), event_type, delivery_mode=DeliveryMode.PULL)


@pytest.fixture
def pushed(storage: None, event_type: EventType) -> Subscription:
    """One that is pushed still, of a subscriber with an ordered mailbox."""
    return subscription(subscriber(mailbox_ordered=True), event_type)


@pytest.fixture
def another_client() -> Iterator[Callable[[Subscription], "Future[list[bytes]]"]]:
    """What another client does meanwhile: fetch; begun when it has got something, or waits for this one."""
    with ThreadPoolExecutor(1) as thread:

        def fetches(wanted: Subscription) -> list[bytes]:
            try:
                return bodies(wanted)
            finally:
                forget_connection()

        def begin(wanted: Subscription) -> "Future[list[bytes]]":
            got = thread.submit(fetches, wanted)
            wait_until(lambda: got.done() or is_anybody_waiting_for_us())
            return got

        yield begin


def is_anybody_waiting_for_us() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(WAITING_FOR_US)
        return bool(cursor.fetchone() != (0,))


def bodies(wanted: Subscription) -> list[bytes]:
    return [one.content.body for one in fetched(wanted)]


@pytest.mark.behaviour("9.7")
@pytest.mark.parametrize(("say", "next_one"), [(give_back, b"0"), (acknowledge, b"1")])
def test_whoever_says_something_late_of_the_oldest_is_waited_for(
    pulled: Subscription,
    another_client: Callable[[Subscription], "Future[list[bytes]]"],
    say: Callable[..., Any],
    next_one: bytes,
) -> None:
    publish_numbered(pulled.event_type, 2)
    (late,) = fetched(pulled)
    time_out()
    with transaction.atomic():
        say(pulled.subscriber_id, [late.receipt])
        got = another_client(pulled)
    assert got.result() == [next_one]


@pytest.mark.behaviour("9.7", "9.8")
def test_a_line_that_is_about_to_send_the_oldest_as_the_subscription_is_switched_is_waited_for(
    pushed: Subscription,
    another_client: Callable[[Subscription], "Future[list[bytes]]"],
    elsewhere: "psycopg.Connection[Any]",
) -> None:
    publish_numbered(pushed.event_type, 2)
    oldest = Delivery.objects.oldest_first()[0]
    with transaction.atomic():
        begin_and_vanish(line_of(pushed.subscriber))
        elsewhere.execute("UPDATE subscriptions_subscription SET delivery_mode = 'PULL' WHERE id = %s", [pushed.pk])
        elsewhere.commit()
        got = another_client(pushed)
    assert (got.result(), Delivery.objects.get(pk=oldest.pk).fetches) == ([], 0)


@pytest.mark.behaviour("9.7")
def test_whoever_fetches_as_the_mailbox_becomes_ordered_is_waited_for_once_he_has_something(
    pulled: Subscription,
    another_client: Callable[[Subscription], "Future[list[bytes]]"],
    elsewhere: "psycopg.Connection[Any]",
) -> None:
    Subscriber.objects.update(mailbox_ordered=False)
    publish_numbered(pulled.event_type, 2)
    with transaction.atomic():
        assert len(rows(FETCH, {"subscriber": pulled.subscriber_id, "most": 1, "reach": 50})) == 1
        elsewhere.execute("UPDATE subscriptions_subscriber SET mailbox_ordered = true")
        elsewhere.commit()
        got = another_client(pulled)
    assert got.result() == []


@pytest.mark.behaviour("9.7")
def test_of_what_timed_out_before_the_mailbox_was_ordered_the_oldest_comes_first(pulled: Subscription) -> None:
    Subscriber.objects.update(mailbox_ordered=False)
    publish_numbered(pulled.event_type, 80)
    fetched(pulled)
    time_out()
    with connection.cursor() as cursor:  # the oldest timed out last
        cursor.execute("UPDATE delivery_open SET fetched_until = fetched_until - (id %% 1000000) * interval '1 s'", [])
    Subscriber.objects.update(mailbox_ordered=True)
    assert bodies(pulled) == [b"0"]
