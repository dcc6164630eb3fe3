"""Clients that wait for a message: who gets it, and what wakes them (contract 9.1)."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.long_poll import MOST_SEATS, Polled, Room, next_messages
from delivery.mailbox.mailbox import Box, Fetched
from delivery.models import Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventType, Subscription
from tests.support.mailboxes import hand_out, pulled_subscription, time_out
from tests.support.receiver import PATIENCE, wait_until
from tests.support.worker import activate, inactivate, publish_numbered, terminate_backends

pytestmark = [pytest.mark.usefixtures("storage"), pytest.mark.behaviour("9.1")]


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return pulled_subscription(event_type=event_type)


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.close()


def box_of(pulled: Subscription) -> Box:
    return Box(pulled.subscriber_id, is_ordered=pulled.subscriber.mailbox_ordered)


def bodies(messages: list[Fetched]) -> list[bytes]:
    return [one.content.body for one in messages]


def in_use() -> int:
    """Return how many connections of this process's pool somebody has."""
    default: Any = connection
    pool = default.pool.get_stats()
    return int(pool["pool_size"] - pool["pool_available"])


@contextmanager
def polls(room: Room, *pulled: Subscription, most: int = 1) -> Iterator[list[Any]]:
    """Let a poll for each of these wait, in their order; hand out their futures, and let them go in the end."""

    def poll(wanted: Subscription) -> list[bytes]:
        try:
            return bodies(next_messages(box_of(wanted), most=most, wait=PATIENCE, room=room).messages)
        finally:
            connection.close()

    with ThreadPoolExecutor(len(pulled)) as threads:
        waiting = []
        for wanted in pulled:
            waiting.append(threads.submit(poll, wanted))
            wait_until(lambda: sum(room.waiting().values()) == len(waiting))
        try:
            yield waiting
        finally:
            room.close()


def test_who_does_not_want_to_wait_is_answered_at_once(pulled: Subscription, room: Room) -> None:
    assert next_messages(box_of(pulled), most=10, wait=0, room=room) == Polled([], was_seated=True)


def test_what_is_there_is_fetched_without_waiting(pulled: Subscription, room: Room) -> None:
    published = publish_numbered(pulled.event_type, 3)
    polled = next_messages(box_of(pulled), most=2, wait=PATIENCE, room=room)
    assert (bodies(polled.messages), polled.was_seated, polled.waited) == (published[:2], True, 0.0)


def test_who_waits_in_vain_gets_nothing_when_the_time_is_over(pulled: Subscription, room: Room) -> None:
    assert next_messages(box_of(pulled), most=1, wait=0.01, room=room) == Polled([], was_seated=True)
    assert room.waiting() == {}


def test_whoever_waited_is_told_how_long_that_was(pulled: Subscription, room: Room) -> None:
    def publish() -> None:
        try:
            wait_until(room.waiting)
            publish_numbered(pulled.event_type, 1)
        finally:
            connection.close()

    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(publish)
        polled = next_messages(box_of(pulled), most=1, wait=PATIENCE, room=room)
    assert bodies(polled.messages) == [b"0"]
    assert 0 < polled.waited < time.monotonic() - began


@pytest.mark.parametrize("comes", ["published", "timed out", "activated"])
def test_whoever_waits_gets_what_becomes_available(pulled: Subscription, room: Room, comes: str) -> None:
    if comes != "published":
        publish_numbered(pulled.event_type, 1)
        hand_out(Delivery.objects.get()) if comes == "timed out" else inactivate(pulled)
    with polls(room, pulled) as (waiting,):
        if comes == "published":
            publish_numbered(pulled.event_type, 1)
        elif comes == "timed out":
            time_out()
        else:
            activate(pulled)
        assert waiting.result(PATIENCE) == [b"0"]


@pytest.mark.behaviour("9.3")
def test_a_message_goes_to_whoever_has_waited_longest_and_to_nobody_else(pulled: Subscription, room: Room) -> None:
    with polls(room, pulled, pulled, pulled) as waiting:
        for number, one in enumerate(waiting):
            publish_numbered(pulled.event_type, 1, first=number)
            assert one.result(PATIENCE) == [b"%d" % number]
            assert [poll.done() for poll in waiting].count(True) == number + 1


def test_each_mailbox_has_polls_of_its_own(pulled: Subscription, room: Room) -> None:
    other = pulled_subscription()
    with polls(room, pulled, other) as (ours, theirs):
        publish_numbered(other.event_type, 1)
        assert theirs.result(PATIENCE) == [b"0"]
        assert not ours.done()


@pytest.mark.behaviour("9.3")
def test_forty_eight_polls_hold_no_connection_and_get_a_message_each(
    pulled: Subscription, room: Room, elsewhere: "psycopg.Connection[Any]"
) -> None:
    with polls(room, *[pulled] * MOST_SEATS) as waiting:
        assert next_messages(box_of(pulled), most=1, wait=PATIENCE, room=room) == Polled([], was_seated=False)
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        (connections,) = elsewhere.execute(query).fetchone() or (0,)
        assert connections <= 25, "not one for each"
        published = publish_numbered(pulled.event_type, MOST_SEATS)
        got = [one.result(PATIENCE) for one in waiting]
    assert sorted(body for (body,) in got) == sorted(published)
    assert {*Delivery.objects.values_list("status", "fetches")} == {(DeliveryStatus.IN_FLIGHT, 1)}


def test_whoever_is_woken_in_vain_holds_no_connection_while_it_waits_on(pulled: Subscription, room: Room) -> None:
    with polls(room, *[pulled] * MOST_SEATS):
        room.wake({pulled.subscriber_id: MOST_SEATS})
        wait_until(lambda: not any(poll.is_woken for poll in room._polls))
        wait_until(lambda: in_use() <= 2)  # this thread's, and that of who looks out for them
        assert room.waiting() == {pulled.subscriber_id: MOST_SEATS}, "each has got one, and waits on"


def test_who_gives_up_its_seat_to_another_mailbox_is_told_so(pulled: Subscription, room: Room) -> None:
    room.limit(2)
    with ThreadPoolExecutor(1) as threads, room.seat(pulled.subscriber_id):
        second = threads.submit(next_messages, box_of(pulled), most=1, wait=PATIENCE, room=room)
        wait_until(lambda: room.waiting() == {pulled.subscriber_id: 2})
        with room.seat(pulled.subscriber_id + 1):
            assert second.result(PATIENCE) == Polled([], was_seated=False)


@pytest.mark.behaviour("9.7")
def test_an_ordered_mailbox_gives_to_one_poll_at_a_time(pulled: Subscription, room: Room) -> None:
    pulled.subscriber.mailbox_ordered = True
    pulled.subscriber.save()
    with polls(room, pulled, pulled) as (first, second):
        publish_numbered(pulled.event_type, 2)
        assert first.result(PATIENCE) == [b"0"]
        assert not second.done()
        time_out()
        assert second.result(PATIENCE) == [b"0"], "the oldest again"


def test_a_client_that_hangs_up_gets_nothing_and_leaves_its_seat(pulled: Subscription, room: Room) -> None:
    gone: Future[None] = Future()
    found: list[Polled] = []
    act = lambda: found.append(  # noqa: E731 - what the thread does
        next_messages(box_of(pulled), most=1, wait=PATIENCE, departure=lambda: gone, room=room)
    )
    waiting = threading.Thread(target=act)
    waiting.start()
    wait_until(room.waiting)
    gone.set_result(None)
    publish_numbered(pulled.event_type, 1)
    waiting.join(PATIENCE)
    assert (found, room.waiting()) == ([Polled([], was_seated=False)], {})
    assert bodies(fetch(box_of(pulled), most=1)) == [b"0"], "it is there for somebody else"


def test_nobody_watches_a_client_that_has_been_answered(pulled: Subscription, room: Room) -> None:
    gone: Future[None] = Future()
    next_messages(box_of(pulled), most=1, wait=0.01, departure=lambda: gone, room=room)
    assert gone.cancelled()


def test_a_process_that_stops_lets_all_polls_go_and_takes_no_more(pulled: Subscription, room: Room) -> None:
    with polls(room, pulled, pulled) as waiting:
        room.close()
        assert [one.result(PATIENCE) for one in waiting] == [[], []]
        assert next_messages(box_of(pulled), most=1, wait=PATIENCE, room=room) == Polled([], was_seated=False)


def test_polls_outlive_the_connection_of_who_looks_out_for_them(
    pulled: Subscription, room: Room, elsewhere: "psycopg.Connection[Any]"
) -> None:
    elsewhere.autocommit = True
    looks = (
        "SELECT FROM pg_stat_activity WHERE query LIKE '%AS w (subscriber_id, waiting)%' AND pid <> pg_backend_pid()"
    )
    with polls(room, pulled) as (waiting,):
        wait_until(lambda: elsewhere.execute(looks).fetchall())
        terminate_backends()
        publish_numbered(pulled.event_type, 1)
        assert waiting.result(PATIENCE) == [b"0"]
