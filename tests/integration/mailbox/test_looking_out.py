"""Polls are woken by whatever makes a message available, and by nothing else (contract 9.1)."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from broker_project.core.db import forget_connection, rows
from delivery.mailbox import long_poll
from delivery.mailbox.long_poll import LOOK, MailboxPoller, Poll, Room
from delivery.models import UNTIL_DUE, UNTIL_RELEASED, Delivery, Lane, Line
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventType, Subscriber, Subscription
from tests.support import factories
from tests.support.mailboxes import hand_out, pulled_subscription, time_out
from tests.support.query_plans import explaining, too_much
from tests.support.receiver import PATIENCE
from tests.support.worker import inactivate, publish_numbered

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("9.1")]


ENDPOINT = "http://127.0.0.1:9/hook"


@pytest.fixture
def uncommitted_mailbox(event_type: EventType) -> Subscription:
    return pulled_subscription(event_type=event_type)


def found(*subscribers: Subscriber, polls: int = 3) -> list[int]:
    """Return how many polls of each subscriber one look wakes, where so many wait."""
    room = Room()
    with ExitStack() as seats:
        seated: list[list[Poll | None]] = [
            [seats.enter_context(room.seat(one.pk)) for _ in range(polls)] for one in subscribers
        ]
        look_out = MailboxPoller(room)
        look_out.look()
        return [sum(poll is not None and poll.is_woken for poll in its) for its in seated]


def set_aside(lane: Lane, *, seconds: int) -> None:
    """Let all have been set aside by a push, to be tried again after so long."""
    line = Line.objects.get(subscriber=Subscription.objects.get().subscriber, lane=lane)
    Delivery.objects.update(line=line, due_at=Now() + timedelta(seconds=seconds), times_set_aside=1, attempts=1)


def handed_out() -> None:
    hand_out(*Delivery.objects.all())


def timed_out(**fields: Any) -> None:
    handed_out()
    time_out()
    Delivery.objects.update(**fields)


def used_up(most: int) -> None:
    Subscriber.objects.update(max_redeliveries=most)
    timed_out()


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
            lambda: Delivery.objects.update(due_at=UNTIL_DUE, not_before=Now() + timedelta(days=1)), 0, id="delayed"
        ),
        pytest.param(lambda: Delivery.objects.update(status=DeliveryStatus.HELD, due_at=UNTIL_RELEASED), 0, id="HELD"),
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
def test_what_is_available_wakes_polls_however_it_came_about(
    uncommitted_mailbox: Subscription, act: Callable[[], object], woken: int
) -> None:
    publish_numbered(uncommitted_mailbox.event_type, 2)
    act()
    assert found(uncommitted_mailbox.subscriber) == [woken]


def test_each_mailbox_is_looked_at_for_itself(uncommitted_mailbox: Subscription, event_type: EventType) -> None:
    other, empty = pulled_subscription(event_type=event_type), factories.subscriber()
    publish_numbered(event_type, 5)
    hand_out(*Delivery.objects.filter(subscription=other).oldest_first()[:4])
    assert found(uncommitted_mailbox.subscriber, empty, other.subscriber) == [3, 0, 1]


def test_all_subscriptions_of_a_subscriber_are_one_mailbox(
    uncommitted_mailbox: Subscription, event_type: EventType
) -> None:
    pulled_subscription(uncommitted_mailbox.subscriber, event_type)
    publish_numbered(event_type, 1)
    assert found(uncommitted_mailbox.subscriber) == [2]


@pytest.mark.behaviour("9.7")
def test_an_ordered_mailbox_wakes_one_poll_and_none_while_something_is_in_flight(
    uncommitted_mailbox: Subscription, event_type: EventType
) -> None:
    Subscriber.objects.update(mailbox_ordered=True)
    another = pulled_subscription(uncommitted_mailbox.subscriber, event_type)
    publish_numbered(event_type, 3)
    assert found(uncommitted_mailbox.subscriber) == [1]
    hand_out(Delivery.objects.filter(subscription=another).oldest_first()[0])
    assert found(uncommitted_mailbox.subscriber) == [0]
    inactivate(another)
    assert found(uncommitted_mailbox.subscriber) == [0], "a client still has it"
    time_out()
    assert found(uncommitted_mailbox.subscriber) == [1]


def test_a_look_reads_what_there_are_polls_for_and_no_more(
    uncommitted_mailbox: Subscription, event_type: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbered(event_type, 400)
    hand_out(*Delivery.objects.oldest_first()[:50])
    with explaining(monkeypatch) as explained:
        assert rows(LOOK, [[uncommitted_mailbox.subscriber_id], [3]]) == [(uncommitted_mailbox.subscriber_id, 3)]
        time_out()
        assert rows(LOOK, [[uncommitted_mailbox.subscriber_id], [5]]) == [(uncommitted_mailbox.subscriber_id, 5)]
    looks = [one for one in explained if "unnest" in one.statement]
    assert (len(looks), too_much(looks, most_rows=20, most_in_vain=0)) == (2, [])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("failure", [OperationalError("the connection is lost"), ValueError("whatever it is")])
def test_whoever_looks_out_goes_on_though_nothing_works_for_a_while(
    uncommitted_mailbox: Subscription, event_type: EventType, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    failures = iter([failure] * 4)

    def failing_first(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*arguments: Any) -> Any:
            for one in failures:
                raise one
            return act(*arguments)

        return acted

    monkeypatch.setattr(long_poll, "AFTER_FAILURE_SECONDS", 0.001)
    monkeypatch.setattr(long_poll, "forget_connection", failing_first(forget_connection))
    monkeypatch.setattr(long_poll, "rows", failing_first(rows))
    publish_numbered(event_type, 1)
    room = Room()
    with room.seat(uncommitted_mailbox.subscriber_id) as poll:
        look_out = MailboxPoller(room)
        look_out.start()
        assert poll
        assert poll.wait(PATIENCE), "it looked again in the end"
        room.close()
    look_out.join(PATIENCE)
    assert not look_out.is_alive()
