"""Replays: which deliveries, in what order, how fast, and what they leave out (contract 5.8)."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import Error
from django.db.models.functions import Now
from django.utils import timezone

from broker_project.stack.load.receiver import Receiver, answer
from delivery.maintenance import periodic
from delivery.maintenance.periodic import maintain
from delivery.models import Callback, Delivery, Message, Replay, ReplayState, VolatileCount
from delivery.operations import cancel_deliveries_of
from delivery.publish.publish import publish_terms
from delivery.replay import replay_job
from delivery.replay.eligibility import REPLAYABLE
from delivery.replay.replay_job import ReplayFinished, begin, cancel, count, go_on
from delivery.replay.resubmit import Edit, NotResubmittable, resubmit
from subscriptions.models import EventKind, Subscription
from tests.support import broker, factories, replays
from tests.support.api import client_of, problem_of
from tests.support.database import execute, in_parallel

pytestmark = pytest.mark.behaviour("5.8")

Group = tuple[Delivery, Delivery]


def test_dead_letters_are_replayed_in_order(shop: Subscription, receiver: Receiver) -> None:
    old = replays.ended(shop, 20)
    assert count(replays.of(shop)).by_status == {"REJECTED": 20}
    replay = replays.start_replay(replays.of(shop))
    assert (replay.total, replays.repeated()) == (20, [])
    replays.run_replays()
    replay.refresh_from_db()
    assert (replay.state, replay.filed, replay.skipped, replay.reason) == (ReplayState.DONE, 20, 0, "")
    assert replays.repeated() == [one.pk for one in old]
    broker.run_worker_until_done()
    assert receiver.bodies("/hook") == [b"%d" % n for n in range(20)]
    assert [one.sequence for one in receiver.of("/hook")] == [*range(1, 21)]
    assert broker.statuses(shop) == ["REJECTED"] * 20 + ["DELIVERED"] * 20


def test_delivered_deliveries_are_replayed_on_request(shop: Subscription) -> None:
    old = replays.ended(shop, 3, "DELIVERED")
    replays.run_replay(replays.of(shop))
    assert replays.repeated() == []
    replays.run_replay(replays.of(shop, statuses=REPLAYABLE))
    assert replays.repeated() == [one.pk for one in old]


def test_a_replay_leaves_out_its_own(shop: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    old = replays.ended(shop, 3)
    receiver.on("/hook", answer(404))
    monkeypatch.setattr(replay_job, "SLICE", 2)
    replays.start_replay(replays.of(shop))
    go_on()
    monkeypatch.setattr(periodic, "JOBS", {})  # nobody else goes on with it
    broker.run_worker_until_done()
    assert broker.statuses(shop) == ["REJECTED"] * 5
    replays.run_replays()
    assert replays.repeated() == [one.pk for one in old]


@pytest.mark.parametrize("statuses", [["REJECTED"], ["DELIVERED", "REJECTED"]])
def test_a_replay_leaves_out_its_own_also_when_the_clock_is_set_back(
    shop: Subscription, monkeypatch: pytest.MonkeyPatch, statuses: list[str]
) -> None:
    old = replays.ended(shop, 3)
    # as when a day has just begun: that id is given next
    execute("SELECT setval('delivery_delivery_id_seq', last_value + 1, false) FROM delivery_delivery_id_seq")
    monkeypatch.setattr(replay_job, "SLICE", 2)
    replay = replays.start_replay(replays.of(shop, statuses=statuses))
    Replay.objects.update(until=Now() + timedelta(hours=2))  # the database's clock was two hours ahead until now
    for _ in range(6):
        go_on()
        replays.end_open()
    replay.refresh_from_db()
    assert (replay.state, replay.filed) == (ReplayState.DONE, 3)
    assert replays.repeated() == [one.pk for one in old]


def test_several_subscriptions_are_made_again_in_the_order_of_publishing(
    shop: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = factories.subscription(shop.subscriber, shop.event_type, receiver.url("/hook"))
    replays.ended(shop, 10)
    monkeypatch.setattr(replay_job, "SLICE", 3)
    replays.run_replay(replays.of(shop, other))
    assert len(replays.repeated()) == 20
    assert replays.repeated() == sorted(one for one in replays.repeated() if one)


def test_only_what_was_asked_for_is_made_again(shop: Subscription, receiver: Receiver) -> None:
    everything = factories.subscription(shop.subscriber, event_pattern="Shop.*", endpoint=receiver.url("/hook"))
    cart = factories.event_type("Shop.Cart")
    replays.ended(shop, 2)
    replays.ended(everything, 1, event_type=cart)
    stranger = factories.subscription(event_type=shop.event_type)
    both = (shop, everything)
    assert count(replays.of(*both)).total == 5
    assert count(replays.of(*both, event_type_id=cart.pk)).total == 1
    assert count(replays.of(*both, event_type_id=shop.event_type_id)).total == 4
    assert count(replays.of(*both, statuses=["FAILED"])).by_status == {}
    assert count(replays.of(stranger)).total == 0
    now = datetime.now(UTC)
    day = timedelta(days=1)
    assert [count(replays.of(*both, begin=now + n * day)).total for n in (-1, 1)] == [5, 0]
    assert [count(replays.of(*both, end=now + n * day)).total for n in (-1, 1)] == [0, 5]
    replays.run_replay(replays.of(*both, event_type_id=cart.pk))
    assert [one.subscription_id for one in Delivery.objects.filter(replay_id__isnull=False)] == [everything.pk]


def test_deliveries_that_cannot_be_sent_are_skipped_and_counted(shop: Subscription, receiver: Receiver) -> None:
    old = replays.ended(shop, 4)
    idle = factories.subscription(shop.subscriber, shop.event_type, receiver.url("/idle"))
    replays.ended(shop, 1)
    broker.inactivate(idle)
    Message.objects.filter(pk=old[1].message_id or 0).delete()
    replay = replays.run_replay(replays.of(shop, idle))
    assert (replay.total, replay.filed, replay.skipped) == (6, 4, 2)


def test_a_queue_delivery_that_another_endpoint_took_is_not_done_twice(storage: None, receiver: Receiver) -> None:
    queue = factories.event_type(kind=EventKind.QUEUE)
    one, two = (factories.subscription(event_type=queue, endpoint=receiver.url(f"/{n}")) for n in (1, 2))
    receiver.on("/1", answer(404))
    receiver.on("/2", answer(404), answer(200))
    broker.publish_bodies(queue, b"1", b"2", b"3")
    broker.run_worker_until_done()
    ends = Counter([*broker.statuses(one), *broker.statuses(two)])
    assert ends["DELIVERED"] == 2
    refused = Message.objects.exclude(pk__in=Delivery.objects.filter(status="DELIVERED").values("message")).get()
    replay = replays.run_replay(replays.of(one, two))
    made = Delivery.objects.filter(replay_id=replay.pk)
    assert [*made.values_list("message", flat=True)] == [refused.pk], "one endpoint is asked for it, not both"
    assert (replay.filed, replay.skipped) == (1, ends["REJECTED"] - 1)


def test_a_failed_slice_leaves_no_gap_and_no_double(shop: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    old = replays.ended(shop, 10)
    replay = replays.start_replay(replays.of(shop))
    monkeypatch.setattr(replay_job, "SLICE", 4)
    for _ in range(2):
        go_on()
        with monkeypatch.context() as broken:
            # The last statement of the slice: its deliveries have been made by then.
            broken.setattr(replay_job, "MOVE", "SELECT 1 / 0, %(id)s")
            with pytest.raises(Error):
                go_on()
        replays.some_time_later()
    replays.run_replays()
    replay.refresh_from_db()
    assert (replay.state, replay.filed, replay.failures, replay.reason) == (ReplayState.DONE, 10, 0, "")
    assert replays.repeated() == [one.pk for one in old]


def test_a_pace_is_kept_and_what_stood_still_for_long_is_not_made_up_for(shop: Subscription) -> None:
    replays.ended(shop, 25)
    replay = replays.start_replay(replays.of(shop), pace=5)
    for made in (10, 20):
        Replay.objects.update(sliced_at=Now() - timedelta(hours=1))
        began = timezone.now()
        go_on()
        assert len(replays.repeated()) == made, "two seconds are made up for, and no more"
        replay.refresh_from_db()
        assert replay.sliced_at
        assert began <= replay.sliced_at <= timezone.now(), "what they were worth is used up"
    Replay.objects.update(sliced_at=Now() + timedelta(hours=1))
    assert (go_on(), len(replays.repeated())) == (0, 20)


def test_cancelling_ends_it_and_leaves_what_is_made(shop: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    replays.ended(shop, 10)
    monkeypatch.setattr(replay_job, "SLICE", 4)
    replay = replays.start_replay(replays.of(shop))
    go_on()
    for _ in range(2):
        cancel(replay.pk, reason="unwanted")
    replays.run_replays()
    replay.refresh_from_db()
    assert (replay.state, replay.filed, replay.reason, broker.unfinished()) == (ReplayState.CANCELLED, 4, "unwanted", 4)
    cancel_deliveries_of(shop.pk, reason="unwanted")
    done = replays.run_replay(replays.of(shop))
    with pytest.raises(ReplayFinished, match="DONE"):
        cancel(done.pk, reason="too late")


@pytest.mark.behaviour("11.4")
def test_finished_replays_are_deleted_with_the_deliveries_of_their_time(shop: Subscription) -> None:
    ended_ago = {"old": 15, "recent": 13}
    for name, days in ended_ago.items():
        one = replays.start_replay(replays.of(shop))
        at = Now() - timedelta(days=days)
        Replay.objects.filter(pk=one.pk).update(state=ReplayState.DONE, finished_at=at, created_by=name)
        VolatileCount.objects.create(
            hour=timezone.now() - timedelta(days=days), event_type_id=shop.event_type_id or 0, accepted=days
        )
    running = replays.start_replay(replays.of(shop))
    Replay.objects.filter(pk=running.pk).update(created_at=Now() - timedelta(days=99), created_by="running")
    maintain(keep_days=14, callback_days=14)
    assert {*Replay.objects.values_list("created_by", flat=True)} == {"recent", "running"}
    assert [one.accepted for one in VolatileCount.objects.all()] == [13]


def again(delivery: Delivery, body: bytes | None = None) -> Delivery:
    made = resubmit(delivery.pk, publish_terms(), edit=Edit(body) if body else None, max_bytes=1_000)
    return Delivery.objects.get(pk=made)


def test_a_failed_replay_does_not_double_the_next(shop: Subscription, receiver: Receiver) -> None:
    old = replays.ended(shop, 3)
    receiver.on("/hook", answer(404))
    for _ in range(3):
        assert replays.start_replay(replays.of(shop)).total == 3
        replays.run_replays()
        broker.run_worker_until_done()
    assert len(replays.repeated()) == 9
    receiver.on("/hook", answer(200))
    replays.run_replay(replays.of(shop))
    broker.run_worker_until_done()
    assert broker.statuses(shop) == ["REJECTED"] * 12 + ["DELIVERED"] * 3
    assert count(replays.of(shop)).total == 0, "each was taken in the end"
    assert len({one.delivery_id for one in receiver.of("/hook")}) == 12
    assert Delivery.objects.filter(pk__in=[one.pk for one in old], status="REJECTED").count() == 3


def test_a_delivery_resubmitted_with_another_body_is_not_replayed(shop: Subscription) -> None:
    first, second = replays.ended(shop, 2)
    again(first, b"10")
    replays.run_replay(replays.of(shop))
    assert replays.repeated() == [second.pk]


def test_two_at_once_share_what_there_is_in_order(shop: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    old = replays.ended(shop, 40)
    monkeypatch.setattr(replay_job, "SLICE", 3)
    both = [replays.start_replay(replays.of(shop)) for _ in range(2)]
    in_parallel(4, replays.run_replays_to_the_end)
    assert replays.repeated() == [one.pk for one in old]
    done = [*Replay.objects.filter(pk__in=[one.pk for one in both])]
    assert sum(one.filed for one in done) == 40
    assert any("sent again otherwise" in one.reason for one in done)


@pytest.fixture
def refused(storage: None, receiver: Receiver) -> Group:
    """Return the deliveries of a QUEUE job that neither of its two endpoints would have."""
    queue = factories.event_type("Shop.Job", kind=EventKind.QUEUE)
    for path in ("/1", "/2"):
        factories.subscription(event_type=queue, endpoint=receiver.url(path))
        receiver.on(path, answer(404), answer(200))
    broker.publish_bodies(queue, b"1", callback_url=receiver.url("/reply"))
    broker.run_worker_until_done()
    first, second = Delivery.objects.filter(group_id__isnull=False).order_by("id")
    return first, second


def of_one(delivery: Delivery) -> Any:
    assert delivery.subscription
    return replays.of(delivery.subscription)


@pytest.mark.behaviour("6.4")
def test_a_job_that_is_asked_for_again_has_one_taker(refused: Group) -> None:
    first, second = refused
    repeats = again(first)
    with pytest.raises(NotResubmittable, match="still to be asked"):
        again(second)
    broker.run_worker_until_done()
    assert Delivery.objects.get(pk=repeats.pk).status == "DELIVERED"
    with pytest.raises(NotResubmittable, match="took the message"):
        again(second)
    answered = client_of().post(f"/api/v1/deliveries/{second.pk}/resubmit", {})
    assert problem_of(answered) == (409, "not_resubmittable")


@pytest.mark.behaviour("6.4")
def test_that_the_job_was_asked_for_with_another_body_changes_nothing(refused: Group) -> None:
    first, second = refused
    again(first, b"2")
    with pytest.raises(NotResubmittable, match="still to be asked"):
        again(second)
    replays.run_replay(of_one(second))
    assert replays.repeated() == []


@pytest.mark.behaviour("6.4")
@pytest.mark.parametrize("is_taken", [False, True])
def test_two_replays_of_one_job_have_one_taker(refused: Group, *, is_taken: bool) -> None:
    first, second = refused
    replays.run_replay(of_one(first))
    if is_taken:
        broker.run_worker_until_done()
    other = replays.run_replay(of_one(second))
    assert (replays.repeated(), other.total, other.filed, other.skipped) == ([first.pk], 1, 0, 1)


@pytest.mark.behaviour("6.4")
def test_once_one_has_refused_again_another_is_asked_and_replied_for(refused: Group, receiver: Receiver) -> None:
    first, second = refused
    receiver.on("/1", answer(404))
    receiver.on("/2", answer(404))
    repeats = again(first)
    broker.run_worker_until_done()
    assert Callback.objects.get().group_id == repeats.pk
    last = again(second)
    assert Callback.objects.get().group_id == last.pk
    broker.run_worker_until_done()
    both = replays.of(*Subscription.objects.order_by("pk"))
    replay = replays.run_replay(both)
    assert (replay.total, replay.filed, replay.skipped) == (2, 1, 1), "one is asked, in the place of both"


@pytest.mark.behaviour("4.10")
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_restored_database_ends_it_since_what_it_has_sent_may_be_forgotten(
    shop: Subscription, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    replays.ended(shop, 4)
    monkeypatch.setattr(replay_job, "SLICE", 2)
    replay = begin(replays.of(shop), pace=None, subscription_id=shop.pk, created_by="test")
    made = [go_on() for _ in range(steps)]
    unfinished = broker.unfinished()
    Subscription.objects.update(paused_since=Now(), paused_by="BACKFILL", paused_reason="an earlier one failed")
    call_command("after_restore")
    replay.refresh_from_db()
    assert (replay.state, go_on(), broker.unfinished()) == (ReplayState.FAILED, 0, unfinished)
    assert (made, unfinished) == ([1] * steps, [0, 0, 2][steps])
    assert replay.reason.startswith("the database was restored")
    assert Subscription.objects.get().paused_reason == "an earlier one failed"
