"""Whose turn it is in a retry line, whatever one subscription has waiting there (behaviour 5.3, 5.4)."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from delivery.models import Delivery, Line
from delivery.worker.buffer import BodyBudget
from delivery.worker.pages import PageRequest, read_pages
from subscriptions.models import Subscriber, Subscription
from tests.driving import PLENTY, publish_numbered, retry_line_of
from tests.factories import subscriber, subscription

TURNS = 6


@pytest.fixture
def owner(storage: None) -> Subscriber:
    return subscriber()


def waiting_apart(owner: Subscriber, count: int, *, since: float) -> Subscription:
    """Return a subscription of which so many are due in the retry line since so many seconds."""
    made = subscription(owner)
    publish_numbered(made.event_type, count)
    due_at = Now() - timedelta(seconds=since)
    Delivery.objects.filter(subscription=made).update(line=retry_line_of(owner), due_at=due_at, attempts=1)
    return made


def page_of(line: Line, epoch: int) -> list[int]:
    """Return whose deliveries a page of the line has, in order, where it was claimed under that epoch."""
    hand = read_pages([PageRequest(line.pk, epoch, None, TURNS)], BodyBudget(PLENTY))[line.pk]
    taken = iter(lambda: hand.take(aside_next=True), None)
    return [delivery.destination.subscription_id for delivery in taken]


@pytest.mark.behaviour("5.3", "5.4")
def test_its_subscriptions_take_turns_however_long_one_has_been_due(owner: Subscriber) -> None:
    first, second = waiting_apart(owner, 20, since=3600.0), waiting_apart(owner, 2, since=1.0)
    ours = [page_of(retry_line_of(owner), epoch) for epoch in (1, 2)]
    assert sorted(ours) == [
        [first.pk, second.pk, first.pk, second.pk, first.pk, first.pk],
        [second.pk, first.pk, second.pk, first.pk, first.pk, first.pk],
    ]


@pytest.mark.behaviour("5.3", "5.4")
def test_each_of_them_begins_as_often_as_the_others_if_one_hangs_and_has_the_turn_for_itself(
    owner: Subscriber,
) -> None:
    due = {waiting_apart(owner, 5, since=60.0 * number).pk for number in range(3)}
    begins = [page_of(retry_line_of(owner), epoch)[0] for epoch in range(TURNS)]
    assert set(begins[:3]) == due
    assert begins[:3] == begins[3:]


@pytest.mark.behaviour("5.3", "5.4")
def test_those_of_which_nothing_is_due_have_no_turn(owner: Subscriber) -> None:
    for _ in range(4):
        subscription(owner)
    due = [waiting_apart(owner, 5, since=60.0).pk for _ in range(2)]
    for _ in range(4):
        subscription(owner)
    begins = [page_of(retry_line_of(owner), epoch)[0] for epoch in range(TURNS)]
    assert sorted(begins) == sorted(due * (TURNS // 2))
    assert begins[:2] * (TURNS // 2) == begins
