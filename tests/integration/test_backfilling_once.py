"""What a backfill makes and what it leaves: nobody gets a message twice, or one that was never for them."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from delivery.models import Delivery, Message, Replay, ReplayState
from delivery.pause import pause, resume
from delivery.replay import backfill_job
from delivery.replay.backfill_job import begin, go_on
from delivery.replay.missed import published_before
from delivery.replay.replay_job import cancel
from subscriptions.models import EventType, PausedBy, Status, Subscription
from tests import factories
from tests.backfills import bodies_of, new, run, start, state_of
from tests.clients import client_of
from tests.driving import inactivate, line_of, publish_bodies, publish_numbered, statuses, wait_until_done, working
from tests.publishing import JSON, problem
from tests.receiver import Receiver, answer

pytestmark = pytest.mark.behaviour("5.8")


@pytest.fixture
def kind(storage: None) -> EventType:
    return factories.event_type("Shop.Order")


def activate(subscription: Subscription) -> None:
    Subscription.objects.filter(pk=subscription.pk).update(status=Status.ACTIVE)


def test_the_first_message_of_a_day_is_not_made_twice(kind: EventType, receiver: Receiver) -> None:
    with connection.cursor() as cursor:  # as when a day has just begun: that id is given out next
        cursor.execute("SELECT setval('delivery_message_id_seq', last_value + 1, false) FROM delivery_message_id_seq")
    one = new(kind, receiver)
    backfill = start(one)
    publish_bodies(kind, b"live")
    run(backfill)
    assert bodies_of(one) == [b"live"]


def test_whoever_still_publishes_from_before_it_was_inactive_is_not_repeated(
    kind: EventType, receiver: Receiver, elsewhere: "psycopg.Connection[Any]"
) -> None:
    one = new(kind, receiver, status=Status.ACTIVE)
    elsewhere.execute(
        "WITH m AS (INSERT INTO delivery_message (event_type_id, body, size, content_type, headers, outcome,"
        " deliveries_count) VALUES (%s, 'late', 4, 'application/json', '[]', 'ROUTED', 1) RETURNING id)"
        " INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)"
        " SELECT id, %s, %s, 'PENDING', 4 FROM m",
        [kind.pk, line_of(one.subscriber).pk, one.pk],
    )
    inactivate(one)
    backfill = start(one)
    publish_bodies(kind, b"live")
    elsewhere.commit()
    run(backfill)
    assert bodies_of(one) == [b"late", b"live"]


def test_what_was_sent_again_to_somebody_is_not_for_others(kind: EventType, receiver: Receiver) -> None:
    receiver.on("/hook", answer(404))
    factories.subscription(event_type=kind, endpoint=receiver.url("/hook"))
    publish_bodies(kind, b"true")
    with working():
        wait_until_done()
    address = f"/api/v1/deliveries/{Delivery.objects.get().pk}/resubmit"
    edited = client_of(factories.subscriber()).post(address, {"body": "false"}, content_type=JSON)
    assert edited.status_code == 404
    assert client_of().post(address, {"body": "false"}, content_type=JSON).status_code == 201
    one = new(kind, receiver)
    backfill = start(one)
    run(backfill)
    backfill.refresh_from_db()
    assert (bodies_of(one), backfill.total) == ([b"true"], 1)


def test_what_was_published_again_comes_once(kind: EventType, receiver: Receiver) -> None:
    (lost,) = publish_bodies(kind, b"1")
    assert client_of().post(f"/api/v1/messages/{lost.id}/resubmit", content_type=JSON).status_code == 202
    one = new(kind, receiver)
    run(start(one))
    assert bodies_of(one) == [b"1"]


@pytest.mark.behaviour("2.14")
@pytest.mark.parametrize("fields", [{}, {"event_pattern": "Shop.*"}])
def test_what_it_may_be_about_to_send_is_not_published_again(
    kind: EventType, receiver: Receiver, fields: dict[str, str]
) -> None:
    (lost,) = publish_bodies(kind, b"1")
    one = new(kind, receiver, **fields)
    backfill = start(one)
    assert Subscription.objects.get(pk=one.pk).status == Status.ACTIVE
    assert problem(client_of().post(f"/api/v1/messages/{lost.id}/resubmit", content_type=JSON)) == (
        409,
        "not_resubmittable",
    )
    run(backfill)
    assert bodies_of(one) == [b"1"]


@pytest.mark.behaviour("2.14")
def test_of_what_it_sent_no_copy_is_published_again_either(kind: EventType, receiver: Receiver) -> None:
    (lost,) = publish_bodies(kind, b"1")
    copy = client_of().post(f"/api/v1/messages/{lost.id}/resubmit", content_type=JSON).json()["id"]
    one = new(kind, receiver)
    run(start(one))
    assert problem(client_of().post(f"/api/v1/messages/{copy}/resubmit", content_type=JSON)) == (
        409,
        "not_resubmittable",
    )
    assert bodies_of(one) == [b"1"]


@pytest.mark.behaviour("2.14")
def test_what_somebody_got_by_it_is_not_published_again(kind: EventType, receiver: Receiver) -> None:
    (lost,) = publish_bodies(kind, b"1")
    one = new(kind, receiver)
    run(start(one))
    assert problem(client_of().post(f"/api/v1/messages/{lost.id}/resubmit", content_type=JSON)) == (
        409,
        "not_resubmittable",
    )
    assert Message.objects.count() == 1
    (explained,) = client_of().get(f"/api/v1/messages/{lost.id}/explanation").json()["subscriptions"]
    assert (explained["subscription_id"], explained["qualifies"]) == (one.pk, True)


def test_it_is_counted_and_given_ids_a_slice_at_a_time(
    kind: EventType, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = publish_numbered(kind, 10)
    monkeypatch.setattr(backfill_job, "COUNT_SLICE", 3)
    monkeypatch.setattr(backfill_job, "UNDER_WAY", 0)
    one = new(kind, receiver)
    backfill = begin(one.pk, since=None, created_by="test")
    totals = []
    while state_of(backfill) == ReplayState.COUNTING:
        assert not Subscription.objects.get(pk=one.pk).is_sending
        go_on()
        backfill.refresh_from_db()
        totals.append(backfill.total)
    assert totals == [3, 6, 9, 10]
    run(backfill)
    assert bodies_of(one) == old


def test_only_the_oldest_of_very_many_are_counted_for_whoever_waits(
    kind: EventType, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbered(kind, 10)
    monkeypatch.setattr(backfill_job, "COUNT_SLICE", 3)
    monkeypatch.setattr(backfill_job, "MOST_COUNTED", 6)
    counted = client_of().post(
        f"/api/v1/subscriptions/{new(kind, receiver).pk}/backfill", {"dry_run": True}, content_type=JSON
    )
    assert counted.json() == {"count": 6, "complete": False}


def test_many_event_types_are_looked_at_in_the_order_of_publishing(
    kind: EventType, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [factories.event_type(f"Shop.Kind{number}") for number in range(5)]
    bodies = [publish_bodies(kinds[n % 5 if n > 30 else 0], b"%d" % n) and b"%d" % n for n in range(60)]
    monkeypatch.setattr(backfill_job, "SLICE", 10)
    one = factories.subscription(event_pattern="Shop.*", endpoint=receiver.url("/new"), status=Status.INACTIVE)
    run(start(one))
    assert bodies_of(one) == bodies


def test_it_begins_where_the_moment_asked_for_is(kind: EventType) -> None:
    publish_numbered(kind, 20)
    messages = [*Message.objects.order_by("id")]
    then = messages[0].published_at - timedelta(days=3)
    Message.objects.filter(pk__lte=messages[9].pk).update(published_at=then)
    assert messages[9].pk <= published_before(then + timedelta(days=1)) < messages[10].pk
    assert published_before(then - timedelta(days=1)) < messages[0].pk
    assert published_before(None) == 0


def test_a_second_one_is_refused_while_the_first_is_under_way(kind: EventType, receiver: Receiver) -> None:
    one = new(kind, receiver)
    begin(one.pk, since=None, created_by="test")
    refused = client_of().post(f"/api/v1/subscriptions/{one.pk}/backfill", {}, content_type=JSON)
    assert problem(refused) == (409, "not_inactive")


def test_it_is_not_resumed_from_the_moment_it_was_asked_for(kind: EventType, receiver: Receiver) -> None:
    one = new(kind, receiver)
    assert client_of().post(f"/api/v1/subscriptions/{one.pk}/resume", {}, content_type=JSON).status_code == 200
    begin(one.pk, since=None, created_by="test")
    refused = client_of().post(f"/api/v1/subscriptions/{one.pk}/resume", {}, content_type=JSON)
    assert problem(refused) == (409, "backfilling")


def test_a_pause_by_hand_is_ended_by_hand_before_it(kind: EventType, receiver: Receiver) -> None:
    publish_numbered(kind, 1)
    one = new(kind, receiver)
    pause([one.pk], reason="not yet")
    refused = client_of().post(f"/api/v1/subscriptions/{one.pk}/backfill", {}, content_type=JSON)
    assert problem(refused) == (409, "still_paused")
    resume([one.pk])
    backfill = begin(one.pk, since=None, created_by="test")
    pause([one.pk], reason="not yet")
    run(backfill)
    one.refresh_from_db()
    assert (state_of(backfill), one.paused_by, one.status) == (ReplayState.FAILED, PausedBy.HAND, Status.INACTIVE)


def test_one_that_was_activated_meanwhile_is_left_alone(kind: EventType, receiver: Receiver) -> None:
    publish_numbered(kind, 3)
    one = new(kind, receiver)
    backfill = begin(one.pk, since=None, created_by="test")
    activate(one)
    publish_bodies(kind, b"live")
    run(backfill)
    one.refresh_from_db()
    assert (state_of(backfill), one.status, one.is_sending) == (ReplayState.FAILED, Status.ACTIVE, True)
    assert bodies_of(one) == [b"live"]


def test_what_was_ended_is_tried_again_as_if_it_had_never_been(kind: EventType, receiver: Receiver) -> None:
    old = publish_numbered(kind, 3)
    one = new(kind, receiver)
    ended = start(one)
    publish_bodies(kind, b"live")
    while state_of(ended) != ReplayState.FILING:
        go_on()
    go_on()
    cancel(ended.pk, reason="unwanted")
    run(ended)
    assert statuses(one) == ["CANCELLED"] * 4
    run(start(one))
    with working():
        wait_until_done()
    assert receiver.bodies("/new") == [*old, b"live"]
    inactivate(one)
    refused = client_of().post(f"/api/v1/subscriptions/{one.pk}/backfill", {}, content_type=JSON)
    assert problem(refused) == (409, "not_new")


def test_whoever_published_while_it_was_ended_is_waited_for_too(
    kind: EventType, receiver: Receiver, elsewhere: "psycopg.Connection[Any]"
) -> None:
    publish_numbered(kind, 3)
    one = new(kind, receiver)
    ended = start(one)
    while state_of(ended) != ReplayState.FILING:
        go_on()
    elsewhere.execute(
        "INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)"
        " SELECT max(id), %s, %s, 'PENDING', 4 FROM delivery_message",
        [line_of(one.subscriber).pk, one.pk],
    )
    cancel(ended.pk, reason="unwanted")
    for _ in range(5):
        go_on()
    assert state_of(ended) == ReplayState.CANCELLING
    elsewhere.commit()
    run(ended)
    assert statuses(one) == ["CANCELLED"]


def test_whoever_activates_it_before_all_is_cancelled_gets_what_is_published_since_alone(
    kind: EventType, receiver: Receiver
) -> None:
    publish_numbered(kind, 3)
    one = new(kind, receiver)
    ended = start(one)
    while state_of(ended) != ReplayState.FILING:
        go_on()
    go_on()
    cancel(ended.pk, reason="unwanted")
    activate(one)
    publish_bodies(kind, b"since")
    with working():
        while Replay.objects.filter(pk=ended.pk, finished_at=None).exists():
            go_on()
        wait_until_done()
    one.refresh_from_db()
    assert (state_of(ended), one.status, one.is_sending) == (ReplayState.CANCELLED, Status.ACTIVE, True)
    assert receiver.bodies("/new") == [b"since"]


@pytest.mark.behaviour("1.8")
def test_its_subscription_is_not_deleted_under_it(kind: EventType, receiver: Receiver) -> None:
    one = new(kind, receiver)
    backfill = begin(one.pk, since=None, created_by="test")
    address = f"/api/v1/subscriptions/{one.pk}"
    refused = client_of().delete(address, headers={"If-Match": "*"})
    assert (problem(refused), "under way" in refused.json()["detail"]) == ((409, "still_in_use"), True)
    cancel(backfill.pk, reason="unwanted")
    assert client_of().delete(address, headers={"If-Match": "*"}).status_code == 204
