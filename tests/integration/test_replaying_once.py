"""What a replay leaves out: what has been made again already, and QUEUE jobs that somebody else has or had."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_project.core.db import forget_connection
from delivery.models import Callback, Delivery, Replay
from delivery.replay.replay_job import begin, count, go_on
from delivery.replay.resubmit import Edit, NotResubmittable, resubmit
from subscriptions.models import EventKind, Subscription
from tests import factories
from tests.clients import client_of
from tests.driving import SENDERS, publish_bodies, statuses, wait_until_done, working
from tests.publishing import EVENT, JSON, problem
from tests.receiver import Receiver, answer
from tests.replaying import ended, of, repeated, run, start

pytestmark = pytest.mark.behaviour("5.8")


@pytest.fixture
def shop(storage: None, receiver: Receiver) -> Subscription:
    return factories.subscription(factories.subscriber("shop"), factories.event_type(EVENT), receiver.url("/hook"))


def again(delivery: Delivery, body: bytes | None = None) -> Delivery:
    made = resubmit(delivery.pk, edit=Edit(body) if body else None, most_bytes=1_000, senders=SENDERS)
    return Delivery.objects.get(pk=made)


def test_one_that_fails_does_not_double_the_next(shop: Subscription, receiver: Receiver) -> None:
    old = ended(shop, receiver, 3)
    receiver.on("/hook", answer(404))
    for _ in range(3):
        assert start(of(shop)).total == 3
        run()
        with working():
            wait_until_done()
    assert len(repeated()) == 9
    receiver.on("/hook", answer(200))
    start(of(shop))
    run()
    with working():
        wait_until_done()
    assert statuses(shop) == ["REJECTED"] * 12 + ["DELIVERED"] * 3
    assert count(of(shop)).total == 0, "each was taken in the end"
    assert len({one.delivery_id for one in receiver.of("/hook")}) == 3 + 12
    assert Delivery.objects.filter(pk__in=[one.pk for one in old], status="REJECTED").count() == 3


def test_one_that_was_corrected_by_hand_is_not_sent_as_it_was(shop: Subscription, receiver: Receiver) -> None:
    first, second = ended(shop, receiver, 2)
    again(first, b"10")
    start(of(shop))
    run()
    assert repeated() == [second.pk]


def test_two_at_once_share_what_there_is(
    shop: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ended(shop, receiver, 40)
    monkeypatch.setattr("delivery.replay.replay_job.SLICE", 3)
    replays = [start(of(shop)) for _ in range(2)]

    def work() -> None:
        try:
            while Replay.objects.filter(finished_at=None).exists():
                go_on()
        finally:
            forget_connection()

    with ThreadPoolExecutor(4) as threads:
        for working_on_it in [threads.submit(work) for _ in range(4)]:
            working_on_it.result()
    assert sorted(one or 0 for one in repeated()) == [one.pk for one in old]
    done = [*Replay.objects.filter(pk__in=[one.pk for one in replays])]
    assert sum(one.filed for one in done) == 40
    assert any("made again by somebody" in one.reason for one in done)


Group = tuple[Delivery, Delivery]


@pytest.fixture
def refused(storage: None, receiver: Receiver) -> Group:
    """Return the deliveries of a QUEUE job that neither of its two endpoints would have."""
    queue = factories.event_type("Shop.Job", kind=EventKind.QUEUE)
    for path in ("/1", "/2"):
        factories.subscription(event_type=queue, endpoint=receiver.url(path))
        receiver.on(path, answer(404), answer(200))
    publish_bodies(queue, b"1", callback_url=receiver.url("/reply"))
    with working():
        wait_until_done()
    first, second = Delivery.objects.filter(group_id__isnull=False).order_by("id")
    return first, second


def of_one(delivery: Delivery) -> Any:
    assert delivery.subscription
    return of(delivery.subscription)


@pytest.mark.behaviour("6.4")
def test_a_job_that_is_asked_for_again_has_one_taker(refused: Group, receiver: Receiver) -> None:
    first, second = refused
    repeats = again(first)
    with pytest.raises(NotResubmittable, match="still to be asked"):
        again(second)
    with working():
        wait_until_done()
    assert Delivery.objects.get(pk=repeats.pk).status == "DELIVERED"
    with pytest.raises(NotResubmittable, match="took the message"):
        again(second)
    answered = client_of().post(f"/api/v1/deliveries/{second.pk}/resubmit", {}, content_type=JSON)
    assert problem(answered) == (409, "not_resubmittable")


@pytest.mark.behaviour("6.4")
def test_that_the_job_was_asked_for_with_another_body_changes_nothing(refused: Group) -> None:
    first, second = refused
    again(first, b"2")
    with pytest.raises(NotResubmittable, match="still to be asked"):
        again(second)
    start(of_one(second))
    run()
    assert repeated() == []


@pytest.mark.behaviour("6.4")
@pytest.mark.parametrize("is_taken", [False, True])
def test_two_replays_of_one_job_have_one_taker(refused: Group, *, is_taken: bool) -> None:
    first, second = refused
    start(of_one(first))
    run()
    if is_taken:
        deliver()
    other = start(of_one(second))
    run()
    other.refresh_from_db()
    assert (repeated(), other.total, other.filed, other.skipped) == ([first.pk], 1, 0, 1)


def deliver() -> None:
    with working():
        wait_until_done()


@pytest.mark.behaviour("6.4")
def test_once_the_one_asked_again_has_refused_another_is_asked_and_still_replied_for(
    refused: Group, receiver: Receiver
) -> None:
    first, second = refused
    receiver.on("/1", answer(404))
    receiver.on("/2", answer(404))
    repeats = again(first)
    deliver()
    assert Callback.objects.get().group_id == repeats.pk
    last = again(second)
    assert Callback.objects.get().group_id == last.pk
    deliver()
    both = of(*Subscription.objects.order_by("pk"))
    replay = start(both)
    run()
    replay.refresh_from_db()
    assert (replay.total, replay.filed, replay.skipped) == (2, 1, 1), "one is asked, in the place of both"


def test_what_answers_whoever_waits_is_not_replayed(shop: Subscription, receiver: Receiver) -> None:
    ended(shop, receiver, 2)
    asked = factories.subscription(
        shop.subscriber, factories.event_type("Shop.Ask", kind=EventKind.SYNC), receiver.url("/ask")
    )
    both = client_of().post("/api/v1/replays", {"subscriber": "shop"}, content_type=JSON)
    assert both.json()["selection"]["subscriptions"] == [shop.pk]
    alone = client_of().post("/api/v1/replays", {"subscription": asked.pk}, content_type=JSON)
    assert problem(alone) == (400, "invalid")
    assert begin(of(shop), pace=None, subscription_id=None, created_by="").state == "COUNTING"
