"""Backfills: what was published before a subscription, once and in order (contract 5.8)."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import Error
from django.db.models.functions import Now
from django.test import Client

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from delivery.models import ClockJump, Delivery, Message, Replay, ReplayState
from delivery.pause import pause
from delivery.publish import publish as publishing
from delivery.publish.store import Accepted, store
from delivery.replay import backfill_job, job_steps, replay_job
from delivery.replay.backfill_job import begin, go_on, published_before
from delivery.replay.replay_job import cancel
from subscriptions.filters import document
from subscriptions.models import EventKind, EventType, Processing, Status, Subscriber, Subscription
from tests.support import broker, factories, replays
from tests.support.api import client_of, problem_of
from tests.support.database import do_and_disconnect, execute, in_other_thread

pytestmark = pytest.mark.behaviour("5.8")


@pytest.fixture
def kind(storage: None) -> EventType:
    return factories.event_type("Shop.Order")


def test_stored_messages_come_before_those_published_meanwhile(kind: EventType, receiver: Receiver) -> None:
    old = broker.publish_numbered(kind, 10)
    one = replays.new(kind, endpoint=receiver.url("/new"))
    backfill = replays.start_backfill(one)
    live = broker.publish_numbered(kind, 5, first=10)
    with broker.running_worker():
        wait_until(lambda: replays.state_of(backfill) == ReplayState.DONE)
        broker.wait_until_done()
    assert receiver.bodies("/new") == [*old, *live]
    assert [request.sequence for request in receiver.of("/new")] == [*range(1, 16)]
    backfill.refresh_from_db()
    one.refresh_from_db()
    assert (backfill.total, backfill.filed) == (10, 10)
    assert (one.status, one.paused_since, one.is_sending) == (Status.ACTIVE, None, True)


@pytest.mark.behaviour("4.18")
def test_what_has_a_place_before_its_subscriber_first_named_a_path_has_no_key(
    kind: EventType, receiver: Receiver
) -> None:
    old = broker.publish_numbered(kind, 40)
    one = replays.new(kind, endpoint=receiver.url("/new"))
    replays.start_filing(one)
    Subscriber.objects.update(processing=Processing.KEYED, concurrency=2, ordering_key="$$->>'Body'")
    live = broker.publish_numbered(kind, 2, first=40)
    while go_on():
        pass
    keys = Delivery.objects.filter(subscription=one).oldest_first().values_list("ordering_key", flat=True)
    assert [*keys] == [None] * 40 + ["40", "41"]
    broker.run_worker_until_done()
    assert [body for body in receiver.bodies("/new") if body not in live] == old


def test_nothing_is_sent_before_all_is_lined_up(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish_numbered(kind, 10)
    monkeypatch.setattr(backfill_job, "SLICE", 3)
    one = replays.new(kind)
    replays.start_backfill(one)
    broker.publish_bodies(kind, b"live")
    for _ in range(4):
        go_on()
    assert broker.statuses(one) == ["PENDING"] * 7
    one.refresh_from_db()
    assert (one.paused_by, one.is_sending) == ("BACKFILL", False)


@contextmanager
def publishing_late(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """Publish a message whose subscriptions are chosen first; it is stored when this is called, or at the end."""
    has_chosen, may_store = threading.Event(), threading.Event()

    def store_later(*arguments: Any, **options: Any) -> list[Accepted]:
        has_chosen.set()
        may_store.wait()
        return store(*arguments, **options)

    with ThreadPoolExecutor(1) as publisher, monkeypatch.context() as later:
        later.setattr(publishing, "store", store_later)
        late = publisher.submit(do_and_disconnect, lambda: broker.publish_bodies(kind, b"late", ttl=3600.0))
        has_chosen.wait()
        later.undo()

        def store_it() -> None:
            may_store.set()
            late.result()

        try:
            yield store_it
        finally:
            store_it()


def test_a_backfill_waits_for_a_publish_that_has_chosen_and_not_stored(
    kind: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = broker.publish_numbered(kind, 3)
    with publishing_late(kind, monkeypatch):
        one = replays.new(kind)
        backfill = replays.start_backfill(one)
        live = broker.publish_numbered(kind, 2, first=3)
        for _ in range(5):
            go_on()
        assert (replays.state_of(backfill), replays.bodies_of(one)) == (ReplayState.WAITING, live)
    replays.run_backfill(backfill)
    assert replays.bodies_of(one) == [*old, b"late", *live]


def test_full_speed_leaves_neither_a_gap_nor_a_double(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill_job, "SLICE", 7)
    numbers, enough = itertools.count(), threading.Event()
    published: list[bytes] = []

    def publish_until_enough() -> None:
        while not enough.is_set():
            body = b"%d" % next(numbers)
            broker.publish_bodies(kind, body)
            published.append(body)

    with ThreadPoolExecutor(3) as publishers:
        for _ in range(3):
            publishers.submit(do_and_disconnect, publish_until_enough)
        try:
            wait_until(lambda: len(published) > 30)
            one = replays.backfilled(kind)
            more = len(published) + 10
            wait_until(lambda: len(published) > more)
        finally:
            enough.set()
    assert sorted(replays.bodies_of(one)) == sorted(published)
    order = [*Delivery.objects.filter(subscription=one).order_by("id").values_list("message", flat=True)]
    backfilled = [*Delivery.objects.filter(replay_id__isnull=False).order_by("id").values_list("message", flat=True)]
    assert order[: len(backfilled)] == backfilled == sorted(one for one in backfilled if one)


def test_a_failed_slice_leaves_no_gap_and_no_double(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    old = broker.publish_numbered(kind, 10)
    monkeypatch.setattr(backfill_job, "SLICE", 4)
    one = replays.new(kind)
    backfill = replays.start_backfill(one)
    go_on()
    go_on()
    for _ in range(2):
        with monkeypatch.context() as broken:
            # The last statement of the slice: its deliveries have been made by then.
            broken.setattr(backfill_job, "MOVE", "SELECT 1 / 0, %(id)s")
            with pytest.raises(Error):
                go_on()
        replays.some_time_later()
        go_on()
    replays.run_backfill(backfill)
    assert replays.bodies_of(one) == old


def test_filters_are_asked_and_one_that_fails_holds_its_delivery(kind: EventType) -> None:
    broker.publish_bodies(kind, b'{"n": 1}', b'{"n": -1}', b'{"n": 1e200000}')
    broker.publish_bodies(kind, b'{"n": 2}', filter_string="blue")
    one = replays.backfilled(kind, filter="$$->'Body'->'n' > '0'")
    assert broker.statuses(one) == ["PENDING", "HELD", "PENDING"]
    blue = replays.backfilled(kind, header_filter_string="blue")
    assert replays.bodies_of(blue) == [b'{"n": 2}']


@pytest.fixture
def long_texts(kind: EventType) -> list[bytes]:
    """Return the bodies of four messages with keys, whose texts a filter goes through by character."""
    bodies = [b'{"key": {"n": %d}, "text": "%s"}' % (number, b"x" * 10_000) for number in range(4)]
    broker.publish_bodies(kind, *bodies)
    return bodies


def keyed(kind: EventType) -> Subscription:
    """Return a subscription that goes through texts by character, of a subscriber with ordering keys."""
    by_key: dict[str, Any] = {"processing": Processing.KEYED, "concurrency": 2, "ordering_key": "$$->'Body'->>'key'"}
    return replays.new(kind, subscriber=factories.subscriber(**by_key), filter="$$->'Body'->>'text' LIKE 'x_%'")


@pytest.mark.behaviour("3.6", "4.18")
def test_each_message_is_filtered_and_keyed_as_if_it_were_published_alone(
    kind: EventType, long_texts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "MAX_WORK", 25_000)
    one = keyed(kind)
    replays.run_backfill(replays.start_backfill(one))
    made = Delivery.objects.filter(subscription=one).order_by("id").values_list("status", "ordering_key")
    assert [*made] == [("PENDING", f'{{"n": {number}}}') for number in range(len(long_texts))]


@pytest.mark.behaviour("3.6")
def test_a_step_ends_when_its_filters_have_taken_long_and_the_next_goes_on_there(
    kind: EventType, long_texts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "MAX_WORK", 25_000)
    one = keyed(kind)
    assert lined_up_by_each_step(one) == [2, 4]
    assert replays.bodies_of(one) == long_texts


@pytest.mark.behaviour("11.1")
def test_a_step_reads_few_bodies_at_a_time(
    kind: EventType, long_texts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_job, "MAX_BACKFILL_BYTES", 2 * len(long_texts[0]))
    one = keyed(kind)
    assert lined_up_by_each_step(one) == [2, 4]
    assert replays.bodies_of(one) == long_texts
    everything = replays.new(kind)
    assert lined_up_by_each_step(everything) == [4], "it reads no bodies"


def lined_up_by_each_step(one: Subscription) -> list[int]:
    """Backfill the subscription; return the number of its deliveries after each step that made some."""
    backfill, counts = replays.start_filing(one), [0]
    while not Replay.objects.filter(pk=backfill.pk, state=ReplayState.DONE).exists():
        go_on()
        counts.append(Delivery.objects.filter(subscription=one).count())
    return sorted({*counts} - {0})


def test_a_pattern_reaches_all_its_event_types_and_a_moment_cuts_off_what_is_older(kind: EventType) -> None:
    broker.publish_bodies(kind, b"1")
    broker.publish_bodies(factories.event_type("Other.Event"), b"2")
    broker.publish_bodies(factories.event_type("Shop.Cart"), b"3")
    everything = replays.backfilled(kind, event_pattern="Shop.*")
    assert replays.bodies_of(everything) == [b"1", b"3"]
    late = replays.backfilled(kind, since=datetime.now(UTC) + timedelta(hours=1))
    assert replays.bodies_of(late) == []


@pytest.mark.behaviour("2.10", "11.7")
def test_what_is_past_its_time_to_live_is_left_out_if_the_clock_is_believed(kind: EventType) -> None:
    broker.publish_bodies(kind, b"1", b"2")
    Message.objects.filter(body=b"1").update(expires_at=Now())
    jump = ClockJump.objects.create(id=1, seconds=7200.0, believed_at=Now() + timedelta(minutes=5))
    assert replays.bodies_of(replays.backfilled(kind)) == [b"1", b"2"]
    jump.delete()
    assert replays.bodies_of(replays.backfilled(kind)) == [b"2"]


def test_only_a_new_inactive_subscription_to_a_topic_is_filled(kind: EventType) -> None:
    def asked(one: Subscription) -> tuple[int, str]:
        return problem_of(ask(client_of(), one))

    assert asked(replays.new(kind, status=Status.ACTIVE)) == (409, "not_inactive")
    idle = factories.subscriber(status=Status.INACTIVE)
    assert asked(replays.new(kind, subscriber=idle)) == (409, "not_inactive")
    assert asked(replays.new(factories.event_type(kind=EventKind.QUEUE))) == (400, "not_backfilled")
    used = replays.new(kind, status=Status.ACTIVE)
    broker.publish_bodies(kind, b"1")
    broker.inactivate(used)
    assert asked(used) == (409, "not_new")
    assert not Replay.objects.exists()
    filling = replays.new(kind)
    begin(filling.pk, since=None, created_by="test")
    assert asked(filling) == (409, "not_inactive")


def test_what_is_published_while_a_cancellation_waits_for_a_step_is_cancelled_too(
    kind: EventType, elsewhere: "psycopg.Connection[Any]"
) -> None:
    one = replays.new(kind)
    backfill = replays.start_filing(one)
    elsewhere.execute("SELECT FROM delivery_replay FOR UPDATE")  # as a step does
    with in_other_thread(lambda: cancel(backfill.pk, reason="unwanted")):
        broker.publish_bodies(kind, b"before")
        elsewhere.commit()
    Subscription.objects.update(status=Status.ACTIVE)
    broker.publish_bodies(kind, b"after")
    replays.run_backfill(backfill)
    assert (replays.bodies_of(one), broker.statuses(one)) == ([b"after"], ["CANCELLED", "PENDING"])


@pytest.mark.behaviour("1.6")
def test_ids_that_run_out_end_it_before_anything_is_sent(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish_numbered(kind, 3)
    monkeypatch.setattr(backfill_job, "SPARE_IDS", -1)
    one = replays.new(kind)
    backfill = replays.start_backfill(one)
    replays.run_backfill(backfill)
    one.refresh_from_db()
    assert (replays.state_of(backfill), one.status, one.paused_by) == (ReplayState.FAILED, Status.ACTIVE, "BACKFILL")
    assert one.paused_reason == f"its backfill failed: {backfill_job.OUT_OF_IDS}"
    assert broker.statuses(one) == ["PENDING"] * 2


@pytest.mark.behaviour("4.10")
@pytest.mark.parametrize("start", [replays.start_backfill, replays.start_filing])
def test_a_restored_database_uses_no_ids_that_were_reserved_before(
    kind: EventType, start: Callable[[Subscription], Replay]
) -> None:
    broker.publish_numbered(kind, 3)
    one = replays.new(kind)
    backfill = start(one)
    call_command("after_restore")
    one.refresh_from_db()
    assert (replays.state_of(backfill), go_on(), broker.statuses(one)) == (ReplayState.FAILED, 0, [])
    assert one.paused_reason.startswith("its backfill failed: the database was restored")


@pytest.fixture
def failed(kind: EventType, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Subscription:
    """Return a subscription whose backfill of three messages has failed after the first, and then got one."""
    broker.publish_numbered(kind, 3)
    one = replays.new(kind, endpoint=receiver.url("/new"))
    with monkeypatch.context() as broken:
        broken.setattr(backfill_job, "SLICE", 1)
        backfill = replays.start_filing(one)
        go_on()
        broken.setattr(backfill_job, "MOVE", "SELECT 1 / 0, %(id)s")
        for _ in range(job_steps.TRIES):
            replays.some_time_later()
            with pytest.raises(Error):
                go_on()
    broker.publish_bodies(kind, b"live")
    assert replays.state_of(backfill) == ReplayState.FAILED
    return one


@pytest.mark.behaviour("1.6")
def test_a_backfill_that_fails_pauses_its_subscription(failed: Subscription, receiver: Receiver) -> None:
    shown = client_of().get(f"/api/v1/subscriptions/{failed.pk}").json()
    assert (shown["status"], shown["paused_by"]) == ("ACTIVE", "BACKFILL")
    assert shown["paused_reason"] == "its backfill failed: it failed 10 times: division by zero"
    assert broker.statuses(failed) == ["PENDING"] * 2
    assert client_of().post(f"/api/v1/subscriptions/{failed.pk}/resume").json()["paused_by"] == ""
    broker.run_worker_until_done()
    assert receiver.bodies("/new") == [b"0", b"live"]


@pytest.mark.behaviour("1.6")
def test_after_a_failed_backfill_another_one_gives_everything(failed: Subscription, receiver: Receiver) -> None:
    for action in ("cancel-deliveries", "inactivate"):
        assert client_of().post(f"/api/v1/subscriptions/{failed.pk}/{action}").status_code == 200
    replays.run_backfill(replays.start_backfill(failed))
    broker.run_worker_until_done()
    assert receiver.bodies("/new") == [b"0", b"1", b"2", b"live"]


def ask(client: Client, one: Subscription, **asked: Any) -> Any:
    return client.post(f"/api/v1/subscriptions/{one.pk}/backfill", asked)


@pytest.mark.behaviour("1.2")
def test_it_is_counted_begun_and_watched_over_the_api(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish_numbered(kind, 3)
    one = replays.new(kind)
    client = client_of(one.subscriber)
    assert ask(client, one, dry_run=True).json() == {"count": 3, "complete": True}
    with monkeypatch.context() as of_many:
        of_many.setattr(job_steps, "COUNT_SLICE", 1)
        of_many.setattr(job_steps, "MAX_COUNTED", 2)
        assert ask(client, one, dry_run=True).json() == {"count": 2, "complete": False}
    assert ask(client, one, since="2100-01-01T00:00:00Z", dry_run=True).json() == {"count": 0, "complete": True}
    assert "with its zone" in str(ask(client, one, since="2100-01-01T00:00:00", dry_run=True).json()["errors"])
    assert ask(client_of(factories.subscriber()), one).status_code == 404
    assert ask(client_of(factories.publisher()), one).status_code == 403
    begun = ask(client, one)
    assert (begun.status_code, begun.json()["state"], begun.json()["total"]) == (202, "COUNTING", 0)
    replays.run_backfill(Replay.objects.get())
    assert client.get(begun["Location"]).json()["state"] == "DONE"
    assert client.get(f"/api/v1/subscriptions/{one.pk}").json()["status"] == "ACTIVE"
    assert Message.objects.count() == 3


def test_the_first_message_of_a_day_is_not_made_twice(kind: EventType) -> None:
    # as when a day has just begun: that id is given out next
    execute("SELECT setval('delivery_message_id_seq', last_value + 1, false) FROM delivery_message_id_seq")
    one = replays.new(kind)
    backfill = replays.start_backfill(one)
    broker.publish_bodies(kind, b"live")
    replays.run_backfill(backfill)
    assert replays.bodies_of(one) == [b"live"]


def test_an_earlier_publish_is_not_repeated(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replays.new(kind, status=Status.ACTIVE)
    with publishing_late(kind, monkeypatch):
        broker.inactivate(one)
        backfill = replays.start_backfill(one)
        broker.publish_bodies(kind, b"live")
    replays.run_backfill(backfill)
    assert replays.bodies_of(one) == [b"live", b"late"]


def test_an_edited_resubmission_is_not_backfilled(kind: EventType) -> None:
    (old,) = replays.ended(factories.subscription(event_type=kind), 1)
    address = f"/api/v1/deliveries/{old.pk}/resubmit"
    assert client_of().post(address, {"body": "false"}).status_code == 201
    one = replays.new(kind)
    backfill = replays.start_backfill(one)
    replays.run_backfill(backfill)
    backfill.refresh_from_db()
    assert (replays.bodies_of(one), backfill.total) == ([b"0"], 1)


@pytest.mark.behaviour("2.14")
@pytest.mark.parametrize("fields", [{}, {"event_pattern": "Shop.*"}])
def test_a_message_that_it_sends_or_has_sent_is_not_published_again(kind: EventType, fields: dict[str, str]) -> None:
    (lost,) = broker.publish_bodies(kind, b"1")
    one = replays.new(kind, **fields)
    backfill = replays.start_backfill(one)
    assert Subscription.objects.get(pk=one.pk).status == Status.ACTIVE
    assert problem_of(replays.republish(client_of(), lost.id)) == (409, "not_resubmittable")
    replays.run_backfill(backfill)
    assert replays.bodies_of(one) == [b"1"]
    assert problem_of(replays.republish(client_of(), lost.id)) == (409, "not_resubmittable")
    assert Message.objects.count() == 1
    (explained,) = client_of().get(f"/api/v1/messages/{lost.id}/explanation").json()["subscriptions"]
    assert (explained["subscription_id"], explained["qualifies"]) == (one.pk, True)


@pytest.mark.behaviour("2.14")
def test_a_copy_of_a_backfilled_message_is_not_published_again(kind: EventType) -> None:
    (lost,) = broker.publish_bodies(kind, b"1")
    copy = replays.republish(client_of(), lost.id).json()["id"]
    one = replays.backfilled(kind)
    assert problem_of(replays.republish(client_of(), copy)) == (409, "not_resubmittable")
    assert replays.bodies_of(one) == [b"1"]


def test_it_is_counted_and_given_ids_a_slice_at_a_time(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    old = broker.publish_numbered(kind, 10)
    monkeypatch.setattr(job_steps, "COUNT_SLICE", 3)
    monkeypatch.setattr(backfill_job, "SPARE_IDS", 0)
    one = replays.new(kind)
    backfill = begin(one.pk, since=None, created_by="test")
    totals = []
    while replays.state_of(backfill) == ReplayState.COUNTING:
        assert not Subscription.objects.get(pk=one.pk).is_sending
        go_on()
        backfill.refresh_from_db()
        totals.append(backfill.total)
    assert totals == [3, 6, 9, 10]
    replays.run_backfill(backfill)
    assert replays.bodies_of(one) == old


def test_many_event_types_are_in_order_of_publishing(kind: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [factories.event_type(f"Shop.Kind{number}") for number in range(5)]
    bodies = [broker.publish_bodies(kinds[n % 5 if n > 30 else 0], b"%d" % n) and b"%d" % n for n in range(60)]
    monkeypatch.setattr(backfill_job, "SLICE", 10)
    one = replays.backfilled(kind, event_pattern="Shop.*")
    assert replays.bodies_of(one) == bodies


def test_it_begins_where_the_moment_asked_for_is(kind: EventType) -> None:
    broker.publish_numbered(kind, 20)
    messages = [*Message.objects.order_by("id")]
    then = messages[0].published_at - timedelta(days=3)
    Message.objects.filter(pk__lte=messages[9].pk).update(published_at=then)
    assert messages[9].pk <= published_before(then + timedelta(days=1)) < messages[10].pk
    assert published_before(then - timedelta(days=1)) < messages[0].pk
    assert published_before(None) == 0


def test_it_is_neither_paused_nor_resumed_from_the_moment_it_was_asked_for(kind: EventType) -> None:
    one = replays.new(kind)
    pause([one.pk], reason="not yet")
    assert problem_of(ask(client_of(), one)) == (409, "still_paused")
    assert client_of().post(f"/api/v1/subscriptions/{one.pk}/resume", {}).status_code == 200
    backfill = begin(one.pk, since=None, created_by="test")
    for action in ("pause", "resume"):
        refused = client_of().post(f"/api/v1/subscriptions/{one.pk}/{action}", {})
        assert problem_of(refused) == (409, "backfilling")
    replays.run_backfill(backfill)
    assert replays.state_of(backfill) == ReplayState.DONE


def test_a_subscription_activated_meanwhile_is_not_changed(kind: EventType) -> None:
    broker.publish_numbered(kind, 3)
    one = replays.new(kind)
    backfill = begin(one.pk, since=None, created_by="test")
    broker.activate(one)
    broker.publish_bodies(kind, b"live")
    replays.run_backfill(backfill)
    one.refresh_from_db()
    assert (replays.state_of(backfill), one.status, one.is_sending) == (ReplayState.FAILED, Status.ACTIVE, True)
    assert replays.bodies_of(one) == [b"live"]


def test_a_cancelled_backfill_leaves_nothing_and_can_be_repeated(kind: EventType, receiver: Receiver) -> None:
    old = broker.publish_numbered(kind, 3)
    one = replays.new(kind, endpoint=receiver.url("/new"))
    cancelled = replays.start_backfill(one)
    broker.publish_bodies(kind, b"live")
    while replays.state_of(cancelled) != ReplayState.FILING:
        go_on()
    go_on()
    for _ in range(2):
        cancel(cancelled.pk, reason="unwanted")
    assert replays.state_of(cancelled) == ReplayState.CANCELLING
    replays.run_backfill(cancelled)
    one.refresh_from_db()
    assert (one.status, one.paused_by, replays.state_of(cancelled)) == (Status.INACTIVE, "", ReplayState.CANCELLED)
    assert broker.statuses(one) == ["CANCELLED"] * 4
    replays.run_backfill(replays.start_backfill(one))
    broker.run_worker_until_done()
    assert receiver.bodies("/new") == [*old, b"live"]
    broker.inactivate(one)
    refused = ask(client_of(), one)
    assert problem_of(refused) == (409, "not_new")


def test_a_publish_that_has_chosen_it_before_it_is_cancelled_is_cancelled_too(
    kind: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replays.new(kind)
    backfill = replays.start_filing(one)
    with publishing_late(kind, monkeypatch) as publish_it:
        with monkeypatch.context() as impatient:
            impatient.setattr(replay_job, "LOCK_TIMEOUT", "SET LOCAL lock_timeout = '50ms'")
            refused = client_of().post(f"/api/v1/replays/{backfill.pk}/cancel")
        assert (problem_of(refused), replays.state_of(backfill)) == ((409, "still_in_use"), ReplayState.FILING)
        with in_other_thread(lambda: cancel(backfill.pk, reason="unwanted")):
            publish_it()
    broker.activate(one)
    broker.publish_bodies(kind, b"since")
    replays.run_backfill(backfill)
    assert (replays.bodies_of(one), broker.statuses(one)) == ([b"since"], ["CANCELLED", "PENDING"])


def test_a_subscription_activated_during_cancelling_gets_only_new_messages(kind: EventType, receiver: Receiver) -> None:
    broker.publish_numbered(kind, 3)
    one = replays.new(kind, endpoint=receiver.url("/new"))
    cancelled = replays.start_filing(one)
    go_on()
    cancel(cancelled.pk, reason="unwanted")
    broker.activate(one)
    broker.publish_bodies(kind, b"since")
    with broker.running_worker():
        replays.run_backfill(cancelled)
        broker.wait_until_done()
    one.refresh_from_db()
    assert (replays.state_of(cancelled), one.status, one.is_sending) == (ReplayState.CANCELLED, Status.ACTIVE, True)
    assert receiver.bodies("/new") == [b"since"]
