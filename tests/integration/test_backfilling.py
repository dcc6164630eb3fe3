"""What was published before a subscription: all of it, once, in order, and then what is published since."""

import itertools
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import Error
from django.test import Client

from broker_project.core.db import forget_connection
from delivery.models import Delivery, Message, Replay, ReplayState
from delivery.replay import backfill_job
from delivery.replay.backfill_job import go_on
from delivery.replay.replay_job import cancel
from subscriptions.models import EventKind, EventType, Status, Subscription
from tests import factories
from tests.backfills import bodies_of, new, run, start, state_of
from tests.clients import client_of
from tests.driving import inactivate, publish_bodies, publish_numbered, statuses, wait_until_done, working
from tests.publishing import JSON, problem
from tests.receiver import Receiver, wait_until
from tests.replaying import some_time_later

pytestmark = pytest.mark.behaviour("5.8")


@pytest.fixture
def kind(storage: None) -> EventType:
    return factories.event_type("Shop.Order")


def test_what_is_kept_comes_first_and_then_what_is_published_meanwhile(kind: EventType, receiver: Receiver) -> None:
    old = publish_numbered(kind, 10)
    one = new(kind, receiver)
    backfill = start(one)
    live = publish_numbered(kind, 5, first=10)
    with working():
        wait_until(lambda: state_of(backfill) == ReplayState.DONE)
        wait_until_done()
    assert receiver.bodies("/new") == [*old, *live]
    assert [request.sequence for request in receiver.of("/new")] == [*range(1, 16)]
    backfill.refresh_from_db()
    one.refresh_from_db()
    assert (backfill.total, backfill.filed) == (10, 10)
    assert (one.status, one.paused_since, one.is_sending) == (Status.ACTIVE, None, True)


def test_nothing_is_sent_before_all_is_lined_up(
    kind: EventType, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbered(kind, 10)
    monkeypatch.setattr(backfill_job, "SLICE", 3)
    one = new(kind, receiver)
    start(one)
    publish_bodies(kind, b"live")
    for _ in range(4):
        go_on()
    assert statuses(one) == ["PENDING"] * 7
    one.refresh_from_db()
    assert (one.paused_by, one.is_sending) == ("BACKFILL", False)


def test_whoever_published_without_seeing_it_is_waited_for(
    kind: EventType, receiver: Receiver, elsewhere: "psycopg.Connection[Any]"
) -> None:
    old = publish_numbered(kind, 3)
    elsewhere.execute("SELECT 1")  # has begun, and may have looked who wants what
    one = new(kind, receiver)
    backfill = start(one)
    live = publish_numbered(kind, 2, first=3)
    for _ in range(5):
        go_on()
    assert (state_of(backfill), bodies_of(one)) == (ReplayState.WAITING, live)
    elsewhere.execute(
        "INSERT INTO delivery_message (event_type_id, body, size, content_type, headers, outcome,"
        " deliveries_count)"
        " VALUES (%s, 'late', 4, 'application/json', '[]', 'UNROUTED', 0)",
        [kind.pk],
    )
    elsewhere.commit()
    run(backfill)
    assert bodies_of(one) == [*old, b"late", *live]


def test_publishers_at_full_speed_leave_neither_a_gap_nor_a_double(
    kind: EventType, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_job, "SLICE", 7)
    numbers, enough = itertools.count(), threading.Event()
    published: list[bytes] = []

    def go_on_publishing() -> None:
        try:
            while not enough.is_set():
                body = b"%d" % next(numbers)
                publish_bodies(kind, body)
                published.append(body)
        finally:
            forget_connection()

    publishers = [threading.Thread(target=go_on_publishing) for _ in range(3)]
    for publisher in publishers:
        publisher.start()
    try:
        wait_until(lambda: len(published) > 30)
        one = new(kind, receiver)
        run(start(one))
        more = len(published) + 10
        wait_until(lambda: len(published) > more)
    finally:
        enough.set()
        for publisher in publishers:
            publisher.join()
    assert sorted(bodies_of(one)) == sorted(published)
    order = [*Delivery.objects.filter(subscription=one).order_by("id").values_list("message", flat=True)]
    backfilled = [*Delivery.objects.filter(replay_id__isnull=False).order_by("id").values_list("message", flat=True)]
    assert order[: len(backfilled)] == backfilled == sorted(one for one in backfilled if one)


def test_a_slice_that_fails_halfway_leaves_neither_a_gap_nor_a_double(
    kind: EventType, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = publish_numbered(kind, 10)
    monkeypatch.setattr(backfill_job, "SLICE", 4)
    one = new(kind, receiver)
    backfill = start(one)
    go_on()
    go_on()
    for _ in range(2):
        with monkeypatch.context() as broken:
            # The last statement of the slice: its deliveries have been made by then.
            broken.setattr(backfill_job, "MOVE", "SELECT 1 / 0, %(id)s")
            with pytest.raises(Error):
                go_on()
        some_time_later()
        go_on()
    run(backfill)
    assert bodies_of(one) == old


def test_filters_are_asked_and_one_that_fails_holds_its_delivery(kind: EventType, receiver: Receiver) -> None:
    publish_bodies(kind, b'{"n": 1}', b'{"n": -1}', b'{"n": 1e200000}')
    publish_bodies(kind, b'{"n": 2}', filter_string="blue")
    one = new(kind, receiver, filter="$$->'Body'->'n' > '0'")
    run(start(one))
    assert statuses(one) == ["PENDING", "HELD", "PENDING"]
    blue = new(kind, receiver, header_filter_string="blue")
    run(start(blue))
    assert bodies_of(blue) == [b'{"n": 2}']


def test_a_pattern_reaches_all_its_event_types_and_a_moment_cuts_off_what_is_older(
    kind: EventType, receiver: Receiver
) -> None:
    publish_bodies(kind, b"1")
    publish_bodies(factories.event_type("Other.Event"), b"2")
    publish_bodies(factories.event_type("Shop.Cart"), b"3")
    everything = factories.subscription(event_pattern="Shop.*", endpoint=receiver.url("/new"), status=Status.INACTIVE)
    run(start(everything))
    assert bodies_of(everything) == [b"1", b"3"]
    late = new(kind, receiver)
    run(start(late, since=datetime.now(UTC) + timedelta(hours=1)))
    assert bodies_of(late) == []


def test_only_a_new_inactive_subscription_to_a_topic_is_filled(kind: EventType, receiver: Receiver) -> None:
    def asked(one: Subscription) -> tuple[int, str]:
        return problem(ask(client_of(), one))

    assert asked(new(kind, receiver, status=Status.ACTIVE)) == (409, "not_inactive")
    idle = factories.subscriber(status=Status.INACTIVE)
    assert asked(new(kind, receiver, subscriber=idle)) == (409, "not_inactive")
    assert asked(new(factories.event_type(kind=EventKind.QUEUE), receiver)) == (400, "not_backfilled")
    used = new(kind, receiver, status=Status.ACTIVE)
    publish_bodies(kind, b"1")
    inactivate(used)
    assert asked(used) == (409, "not_new")
    assert not Replay.objects.exists()


def test_cancelling_leaves_it_inactive_with_nothing(kind: EventType, receiver: Receiver) -> None:
    publish_numbered(kind, 3)
    one = new(kind, receiver)
    backfill = start(one)
    publish_bodies(kind, b"live")
    for _ in range(3):
        go_on()
    for _ in range(2):
        cancel(backfill.pk, reason="unwanted")
    assert state_of(backfill) == ReplayState.CANCELLING
    run(backfill)
    one.refresh_from_db()
    assert (one.status, one.paused_by, state_of(backfill)) == (Status.INACTIVE, "", ReplayState.CANCELLED)
    assert statuses(one) == ["CANCELLED"] * 4


def test_ids_that_run_out_end_it_before_anything_is_sent(
    kind: EventType, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbered(kind, 3)
    monkeypatch.setattr(backfill_job, "UNDER_WAY", -1)
    one = new(kind, receiver)
    backfill = start(one)
    run(backfill)
    one.refresh_from_db()
    assert (state_of(backfill), one.status, one.paused_by) == (ReplayState.FAILED, Status.INACTIVE, "")
    assert {*statuses(one)} == {"CANCELLED"}


def ask(client: Client, one: Subscription, **asked: Any) -> Any:
    return client.post(f"/api/v1/subscriptions/{one.pk}/backfill", asked, content_type=JSON)


@pytest.mark.behaviour("1.2")
def test_it_is_counted_begun_and_watched_over_the_api(kind: EventType, receiver: Receiver) -> None:
    publish_numbered(kind, 3)
    one = new(kind, receiver)
    client = client_of(one.subscriber)
    assert ask(client, one, dry_run=True).json() == {"count": 3, "complete": True}
    assert ask(client, one, since="2100-01-01T00:00:00Z", dry_run=True).json() == {"count": 0, "complete": True}
    assert "with its zone" in str(ask(client, one, since="2100-01-01T00:00:00", dry_run=True).json()["errors"])
    assert ask(client_of(factories.subscriber()), one).status_code == 404
    assert ask(client_of(factories.publisher()), one).status_code == 403
    begun = ask(client, one)
    assert (begun.status_code, begun.json()["state"], begun.json()["total"]) == (202, "COUNTING", 0)
    run(Replay.objects.get())
    assert client.get(begun["Location"]).json()["state"] == "DONE"
    assert client.get(f"/api/v1/subscriptions/{one.pk}").json()["status"] == "ACTIVE"
    assert Message.objects.count() == 3
