"""Clients that wait for a message: who gets it, and what wakes them (contract 9.1)."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.db.models.functions import Now

from broker_project.core.db import NotAnswered, forget_connection, rows
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.mailbox import long_poll
from delivery.mailbox.long_poll import (
    MAX_POLLS,
    WAITING,
    MailboxPoller,
    Poll,
    PollResult,
    WaitingPolls,
    wait_for_messages,
)
from delivery.models import Delivery, Lane, Line
from delivery.statuses import DeliveryStatus
from subscriptions.models import ApiKey, EventType, Subscriber, Subscription
from tests.support import factories
from tests.support.api import client_of
from tests.support.broker import activate, inactivate, publish_numbered, terminate_backends
from tests.support.database import do_and_disconnect
from tests.support.mailboxes import (
    bodies_of,
    fetch_bodies,
    hand_out,
    mailbox_of,
    pulled_subscription,
    time_out_hand_outs,
)

pytestmark = pytest.mark.behaviour("9.1")

ENDPOINT = "http://127.0.0.1:9/hook"

SECOND = timedelta(seconds=1)
LONGER = 2 * PATIENCE_SECONDS
"""How many seconds a poll may wait: more than a test does, so none of them ends because its time is over."""


@pytest.fixture
def polls() -> Iterator[WaitingPolls]:
    polls = WaitingPolls()
    yield polls
    polls.close()


def poll(pulled: Subscription, polls: WaitingPolls, **options: Any) -> PollResult:
    terms: dict[str, Any] = {"max_messages": 1, "wait_seconds": LONGER, "polls": polls, **options}
    return wait_for_messages(mailbox_of(pulled.subscriber), **terms)


def in_use() -> int:
    """Return how many connections of this process's pool somebody has."""
    default: Any = connection
    pool = default.pool.get_stats()
    return int(pool["pool_size"] - pool["pool_available"])


@contextmanager
def polling(polls: WaitingPolls, *pulled: Subscription, most: int = 1) -> Iterator[list[Any]]:
    """Let a poll for each of these wait, in their order; hand out their futures, and let them go in the end."""

    def poll_once(wanted: Subscription) -> list[bytes]:
        try:
            return bodies_of(poll(wanted, polls, max_messages=most).messages)
        finally:
            connection.close()

    with ThreadPoolExecutor(len(pulled)) as threads:
        waiting = []
        for wanted in pulled:
            waiting.append(threads.submit(poll_once, wanted))
            wait_until(lambda: sum(polls.counts().values()) == len(waiting))
        try:
            yield waiting
        finally:
            polls.close()


@pytest.mark.parametrize("wait_seconds", [0, 0.01])
def test_polls_without_messages_end_in_time(pulled: Subscription, polls: WaitingPolls, wait_seconds: float) -> None:
    assert poll(pulled, polls, max_messages=10, wait_seconds=wait_seconds) == PollResult([], had_slot=True)
    assert polls.counts() == {}


def test_a_poll_reports_how_long_it_waited(pulled: Subscription, polls: WaitingPolls) -> None:
    def publish() -> None:
        wait_until(polls.counts)
        publish_numbered(pulled.event_type, 1)

    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(do_and_disconnect, publish)
        polled = poll(pulled, polls)
    assert bodies_of(polled.messages) == [b"0"]
    assert 0 < polled.waited_seconds < time.monotonic() - began


@pytest.mark.parametrize("comes", ["published", "timed out", "activated"])
def test_a_waiting_poll_gets_a_new_message(pulled: Subscription, polls: WaitingPolls, comes: str) -> None:
    if comes != "published":
        publish_numbered(pulled.event_type, 1)
        hand_out(Delivery.objects.get()) if comes == "timed out" else inactivate(pulled)
    with polling(polls, pulled) as (waiting,):
        if comes == "published":
            publish_numbered(pulled.event_type, 1)
        elif comes == "timed out":
            time_out_hand_outs()
        else:
            activate(pulled)
        assert waiting.result(PATIENCE_SECONDS) == [b"0"]


@pytest.mark.behaviour("9.3")
def test_a_message_goes_only_to_the_poll_that_waited_longest(pulled: Subscription, polls: WaitingPolls) -> None:
    with polling(polls, pulled, pulled, pulled) as waiting:
        for number, one in enumerate(waiting):
            publish_numbered(pulled.event_type, 1, first=number)
            assert one.result(PATIENCE_SECONDS) == [b"%d" % number]
            assert [poll.done() for poll in waiting].count(True) == number + 1


@pytest.mark.behaviour("9.3")
def test_forty_eight_polls_hold_no_connection_and_get_a_message_each(
    pulled: Subscription, polls: WaitingPolls, elsewhere: "psycopg.Connection[Any]"
) -> None:
    with polling(polls, *[pulled] * MAX_POLLS) as waiting:
        assert poll(pulled, polls) == PollResult([], had_slot=False)
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        (connections,) = elsewhere.execute(query).fetchone() or (0,)
        assert connections <= 25, "not one for each"
        published = publish_numbered(pulled.event_type, MAX_POLLS)
        got = [one.result(PATIENCE_SECONDS) for one in waiting]
    assert sorted(body for (body,) in got) == sorted(published)
    assert {*Delivery.objects.values_list("status", "fetches")} == {(DeliveryStatus.IN_FLIGHT, 1)}


def test_a_poll_woken_for_nothing_holds_no_connection_meanwhile(pulled: Subscription, polls: WaitingPolls) -> None:
    with polling(polls, *[pulled] * MAX_POLLS):
        polls.wake({pulled.subscriber_id: MAX_POLLS})
        wait_until(lambda: not any(poll.is_woken for poll in polls._polls))
        wait_until(lambda: in_use() <= 2)  # this thread's, and that of who looks out for them
        assert polls.counts() == {pulled.subscriber_id: MAX_POLLS}, "each has got one, and waits on"


def test_a_poll_that_loses_its_slot_to_another_mailbox_reports_that(pulled: Subscription, polls: WaitingPolls) -> None:
    polls.set_limit(2)
    with ThreadPoolExecutor(1) as threads, polls.slot(pulled.subscriber_id):
        second = threads.submit(poll, pulled, polls)
        wait_until(lambda: polls.counts() == {pulled.subscriber_id: 2})
        with polls.slot(pulled.subscriber_id + 1):
            assert second.result(PATIENCE_SECONDS) == PollResult([], had_slot=False)


@pytest.mark.behaviour("9.7")
def test_an_ordered_mailbox_gives_to_one_poll_at_a_time(pulled: Subscription, polls: WaitingPolls) -> None:
    pulled.subscriber.mailbox_ordered = True
    pulled.subscriber.save()
    with polling(polls, pulled, pulled) as (first, second):
        publish_numbered(pulled.event_type, 2)
        assert first.result(PATIENCE_SECONDS) == [b"0"]
        assert not second.done()
        time_out_hand_outs()
        assert second.result(PATIENCE_SECONDS) == [b"0"], "the oldest again"


def test_a_client_that_hangs_up_gets_nothing_and_leaves_its_seat(pulled: Subscription, polls: WaitingPolls) -> None:
    gone: Future[None] = Future()
    found: list[PollResult] = []
    waiting = threading.Thread(target=lambda: found.append(poll(pulled, polls, watch_disconnect=lambda: gone)))
    waiting.start()
    wait_until(polls.counts)
    gone.set_result(None)
    publish_numbered(pulled.event_type, 1)
    waiting.join(PATIENCE_SECONDS)
    assert (found, polls.counts()) == ([PollResult([], had_slot=False)], {})
    assert fetch_bodies(pulled) == [b"0"], "it is there for somebody else"


def test_a_client_that_hangs_up_while_its_key_is_looked_up_gets_nothing(
    pulled: Subscription, polls: WaitingPolls
) -> None:
    gone: Future[None] = Future()

    def look_up() -> bool:
        gone.set_result(None)
        return True

    publish_numbered(pulled.event_type, 1)
    polled = poll(pulled, polls, watch_disconnect=lambda: gone, may_fetch=look_up)
    assert (polled.messages, Delivery.objects.get().status) == ([], DeliveryStatus.PENDING)


def test_nobody_watches_a_client_that_has_been_answered(pulled: Subscription, polls: WaitingPolls) -> None:
    gone: Future[None] = Future()
    poll(pulled, polls, wait_seconds=0.01, watch_disconnect=lambda: gone)
    assert gone.cancelled()


def test_a_process_that_stops_lets_all_polls_go_and_takes_no_more(pulled: Subscription, polls: WaitingPolls) -> None:
    with polling(polls, pulled, pulled) as waiting:
        polls.close()
        assert [one.result(PATIENCE_SECONDS) for one in waiting] == [[], []]
        assert poll(pulled, polls) == PollResult([], had_slot=False)


def test_polls_outlive_the_connection_of_the_poller(
    pulled: Subscription, polls: WaitingPolls, elsewhere: "psycopg.Connection[Any]"
) -> None:
    elsewhere.autocommit = True
    look = "SELECT FROM pg_stat_activity WHERE query LIKE '%AS w (subscriber_id, waiting)%' AND pid <> pg_backend_pid()"
    with polling(polls, pulled) as (waiting,):
        wait_until(lambda: elsewhere.execute(look).fetchall())
        terminate_backends()
        publish_numbered(pulled.event_type, 1)
        assert waiting.result(PATIENCE_SECONDS) == [b"0"]


def test_a_look_that_is_not_answered_is_soon_given_up(
    pulled: Subscription,
    polls: WaitingPolls,
    elsewhere: "psycopg.Connection[Any]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_poll, "LOOK_SECONDS", 0.2)
    elsewhere.execute("LOCK TABLE subscriptions_subscription IN ACCESS EXCLUSIVE MODE")
    with polls.slot(pulled.subscriber_id), pytest.raises(NotAnswered):
        MailboxPoller(polls).look()
    forget_connection()
    elsewhere.rollback()


@pytest.fixture
def uncommitted_mailbox(event_type: EventType) -> Subscription:
    return pulled_subscription(event_type=event_type)


def found(*subscribers: Subscriber, poll_count: int = 3) -> list[int]:
    """Return how many polls of each subscriber one look wakes, where `poll_count` wait."""
    polls = WaitingPolls()
    with ExitStack() as seats:
        seated: list[list[Poll | None]] = [
            [seats.enter_context(polls.slot(one.pk)) for _ in range(poll_count)] for one in subscribers
        ]
        MailboxPoller(polls).look()
        return [sum(poll is not None and poll.is_woken for poll in its) for its in seated]


def set_aside(lane: Lane, *, seconds: int) -> None:
    """Let all have been set aside by a push, to be tried again after so long."""
    line = Line.objects.get(subscriber=Subscription.objects.get().subscriber, lane=lane)
    Delivery.objects.update(
        line=line, waits_for="RETRY", due_at=Now() + timedelta(seconds=seconds), times_deferred=1, attempts=1
    )


def handed_out() -> None:
    hand_out(*Delivery.objects.all())


def timed_out(**fields: Any) -> None:
    handed_out()
    time_out_hand_outs()
    Delivery.objects.update(**fields)


def used_up(most: int) -> None:
    Subscriber.objects.update(max_redeliveries=most)
    timed_out()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("act", "woken"),
    [
        pytest.param(lambda: None, 2, id="published"),
        pytest.param(timed_out, 2, id="timed out"),
        pytest.param(lambda: used_up(1), 2, id="redeliveries left"),
        pytest.param(lambda: set_aside(Lane.MAIN, seconds=60), 2, id="set aside in the main line"),
        pytest.param(lambda: set_aside(Lane.RETRY, seconds=60), 2, id="set aside in the retry line"),
        pytest.param(lambda: Delivery.objects.update(expires_at=Now() + timedelta(days=1)), 2, id="lives"),
        pytest.param(handed_out, 0, id="in flight"),
        pytest.param(lambda: used_up(0), 0, id="redeliveries used up"),
        pytest.param(lambda: timed_out(cancel_requested=True), 0, id="timed out and cancelled"),
        pytest.param(
            lambda: Delivery.objects.update(waits_for="START", not_before=Now() + timedelta(days=1)), 0, id="delayed"
        ),
        pytest.param(lambda: Delivery.objects.update(status=DeliveryStatus.HELD, waits_for="RELEASE"), 0, id="HELD"),
        pytest.param(
            lambda: Delivery.objects.update(status=DeliveryStatus.IN_FLIGHT), 0, id="under way by an earlier push"
        ),
        pytest.param(lambda: Delivery.objects.update(expires_at=Now() - timedelta(seconds=1)), 0, id="too old"),
        pytest.param(lambda: Subscription.objects.update(paused_since=Now(), paused_by="HAND"), 0, id="paused"),
        pytest.param(lambda: inactivate(Subscription.objects.get()), 0, id="subscription inactive"),
        pytest.param(lambda: inactivate(Subscriber.objects.get()), 0, id="subscriber inactive"),
        pytest.param(lambda: Subscription.objects.update(delivery_mode="PUSH", endpoint=ENDPOINT), 0, id="pushed now"),
    ],
)
def test_messages_wake_polls(uncommitted_mailbox: Subscription, act: Callable[[], object], woken: int) -> None:
    publish_numbered(uncommitted_mailbox.event_type, 2)
    act()
    assert found(uncommitted_mailbox.subscriber) == [woken]


@pytest.mark.django_db
def test_each_mailbox_is_looked_at_for_itself(uncommitted_mailbox: Subscription, event_type: EventType) -> None:
    other, empty = pulled_subscription(event_type=event_type), factories.subscriber()
    publish_numbered(event_type, 5)
    hand_out(*Delivery.objects.filter(subscription=other).oldest_first()[:4])
    assert found(uncommitted_mailbox.subscriber, empty, other.subscriber) == [3, 0, 1]


@pytest.mark.django_db
def test_a_subscriber_has_one_mailbox(uncommitted_mailbox: Subscription, event_type: EventType) -> None:
    pulled_subscription(uncommitted_mailbox.subscriber, event_type)
    publish_numbered(event_type, 1)
    assert found(uncommitted_mailbox.subscriber) == [2]


@pytest.mark.django_db
@pytest.mark.behaviour("9.7")
def test_an_ordered_mailbox_wakes_one_poll_at_a_time(uncommitted_mailbox: Subscription, event_type: EventType) -> None:
    Subscriber.objects.update(mailbox_ordered=True)
    another = pulled_subscription(uncommitted_mailbox.subscriber, event_type)
    publish_numbered(event_type, 3)
    assert found(uncommitted_mailbox.subscriber) == [1]
    hand_out(Delivery.objects.filter(subscription=another).oldest_first()[0])
    assert found(uncommitted_mailbox.subscriber) == [0]
    inactivate(another)
    assert found(uncommitted_mailbox.subscriber) == [0], "a client still has it"
    time_out_hand_outs()
    assert found(uncommitted_mailbox.subscriber) == [1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("failure", [OperationalError("the connection is lost"), ValueError("any other failure")])
def test_the_poller_goes_on_after_failures(
    uncommitted_mailbox: Subscription, event_type: EventType, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    failures = iter([failure] * 4)

    def failing_first(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*arguments: Any) -> Any:
            for one in failures:
                raise one
            return act(*arguments)

        return acted

    monkeypatch.setattr(long_poll, "FAILURE_SECONDS", 0.001)
    monkeypatch.setattr(long_poll, "forget_connection", failing_first(forget_connection))
    monkeypatch.setattr(long_poll, "rows", failing_first(rows))
    publish_numbered(event_type, 1)
    polls = WaitingPolls()
    with polls.slot(uncommitted_mailbox.subscriber_id) as poll:
        look_out = MailboxPoller(polls)
        look_out.start()
        assert poll
        assert poll.wait(PATIENCE_SECONDS), "it looked again in the end"
        polls.close()
    look_out.join(PATIENCE_SECONDS)
    assert not look_out.is_alive()


@pytest.mark.usefixtures("storage")
@pytest.mark.behaviour("1.2")
@pytest.mark.parametrize(
    ("act", "status"),
    [
        (lambda: ApiKey.objects.update(revoked_at=Now() - SECOND), DeliveryStatus.PENDING),
        (lambda: ApiKey.objects.update(expires_at=Now() - SECOND), DeliveryStatus.PENDING),
        (lambda: ApiKey.objects.update(expires_at=Now() + timedelta(days=1)), DeliveryStatus.IN_FLIGHT),
    ],
    ids=["revoked", "expired", "good still"],
)
def test_a_waiting_poll_gets_nothing_once_its_key_is_invalid(
    event_type: EventType, act: Callable[[], object], status: DeliveryStatus
) -> None:
    pulled = pulled_subscription(event_type=event_type)
    client = client_of(pulled.subscriber)
    with ThreadPoolExecutor(1) as threads:
        path = f"/api/v1/mailboxes/{pulled.subscriber.name}/next"
        ask = partial(client.post, path, {"wait_seconds": 20})
        waiting = threads.submit(do_and_disconnect, ask)
        wait_until(WAITING.counts)
        act()
        publish_numbered(event_type, 1)
        answer = waiting.result(PATIENCE_SECONDS)
    assert Delivery.objects.get().status == status
    got = HTTPStatus.OK if status == DeliveryStatus.IN_FLIGHT else HTTPStatus.NO_CONTENT
    assert answer.status_code == got
