"""A KEYED subscriber: several of its deliveries at a time, and in order within each ordering key (contract 4.18)."""

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import psycopg
import pytest
from django.db import transaction
from django.db.models.functions import Now

from broker_project.stack.load.receiver import Received, Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery import retry
from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import begin_delayed
from delivery.maintenance.partitions import today
from delivery.models import Delivery, Hold, LineEvent, Pace
from delivery.operations import cancel_deliveries_of, release
from delivery.publish.publish import publish_terms
from delivery.replay.resubmit import Edit, resubmit
from delivery.statuses import DeliveryStatus
from delivery.worker.leases import active_line
from delivery.worker.rounds import NO_LINK
from subscriptions.edit import change as change_record
from subscriptions.models import Processing, Subscriber, Subscription
from subscriptions.scripting.jobs import Made
from tests.support import broker
from tests.support.api import client_of
from tests.support.broker import Worker
from tests.support.database import execute, in_other_thread
from tests.support.factories import subscriber, subscription
from tests.support.stepped_worker import Request, SteppedWorker, stepped_worker_of

pytestmark = pytest.mark.behaviour("4.18")

DELIVERED, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.PENDING
EDITED = Edit(b'{"key": "b"}', None)
PATH = "$$->'Body'->>'key'"
KEYED = {"processing": Processing.KEYED, "concurrency": 4, "ordering_key": PATH}
HOUR = timedelta(hours=1)


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription of a subscriber that is sent four keys at a time."""
    owner = subscriber(processing="KEYED", concurrency=4, ordering_key=PATH)
    return subscription(owner, endpoint=receiver.url("/a"))


@pytest.fixture
def keyless(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription of a SERIAL subscriber that has never named a path."""
    return subscription(subscriber(), endpoint=receiver.url("/a"))


def publish(wanted: Subscription, *keys: str | None) -> None:
    """Publish a message for each of these keys; None: it has none."""
    bodies = [json.dumps({"number": number} | ({"key": key} if key else {})) for number, key in enumerate(keys)]
    broker.publish_bodies(wanted.event_type, *[body.encode() for body in bodies])


def change(wanted: Subscription, **changes: object) -> None:
    change_record(Subscriber.objects.filter(pk=wanted.subscriber_id), changes=changes)


def let_hours_pass() -> None:
    """Let the last change of every subscriber be two hours ago."""
    with transaction.atomic():
        execute("SET LOCAL broker.resealing = 'yes'")
        Subscriber.objects.update(updated_at=Now() - 2 * HOUR)


def by_key(requests: list[Received]) -> dict[str, list[int]]:
    """Return the numbers of what arrived, by ordering key, in the order in which it did."""
    arrived = defaultdict(list)
    for request in requests:
        body = json.loads(request.body)
        arrived[body.get("key", "")].append(body["number"])
    return arrived


def test_keys_are_sent_side_by_side_and_each_in_order(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    keys = [f"key {number % 7}" for number in range(70)]
    gate = receiver.gate("/a")
    receiver.on("/a", gate)
    publish(wanted, *keys)
    wait_until(lambda: len(receiver.log) == 4)
    assert len(by_key(receiver.log)) == 4
    receiver.on("/a", answer())
    gate.open()
    broker.wait_until_done()
    assert by_key(receiver.log) == {f"key {key}": [*range(key, 70, 7)] for key in range(7)}
    assert {one.headers["webhook-ordering-key"] for one in receiver.log} == {f"key%20{key}" for key in range(7)}
    assert sorted(one.sequence or 0 for one in receiver.log) == [*range(1, 71)]


def test_what_has_no_key_stays_in_order_among_itself(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    publish(wanted, *[None] * 20)
    broker.wait_until_done()
    assert by_key(receiver.log) == {"": [*range(20)]}
    assert "webhook-ordering-key" not in receiver.log[0].headers


def test_a_slot_goes_on_with_what_is_next_of_its_key(wanted: Subscription) -> None:
    publish(wanted, "a", "b", "a", "c")
    (taken,) = claim([broker.line_of(wanted.subscriber).pk], worker="w")
    line = active_line(taken, NO_LINK, 0.0, queue_max_in_flight=1)
    line.receive(broker.read_page(line.page_request()))
    first, second, *_ = line.slots
    assert [slot.take().ordering_key for slot in (first, second, second)] == ["a", "b", "c"]
    assert json.loads(first.take().content.body)["number"] == 2


@pytest.mark.parametrize("cut", [{"max_queued_to_send": 3}, {"max_queued_bytes": 64 * 1024}])
def test_a_page_that_is_cut_keeps_no_key_from_being_read(wanted: Subscription, cut: dict[str, int]) -> None:
    Subscriber.objects.update(**cut)
    bodies = [json.dumps({"key": key, "padding": "x" * 20_000}).encode() for key in "abcabcd"]
    broker.publish_bodies(wanted.event_type, *bodies)
    _, requests = stepped_worker_of(wanted.subscriber)
    sent = Delivery.objects.in_bulk([request.delivery_id for request in requests])
    assert [sent[request.delivery_id].ordering_key for request in requests] == [*"abcd"]


def test_keys_that_are_left_of_a_page_are_in_the_next_one(wanted: Subscription) -> None:
    Subscriber.objects.update(max_queued_to_send=3, concurrency=2)
    publish(wanted, *"abcdef" * 5)
    worker, requests = stepped_worker_of(wanted.subscriber)
    while len(requests) < 12:
        worker.answer_all({worker.wire.in_flight[0]: 200})
    sent = Delivery.objects.in_bulk([request.delivery_id for request in requests])
    assert {one.ordering_key for one in sent.values()} == {*"abcdef"}


@pytest.mark.behaviour("4.7")
def test_a_hold_is_for_its_key_only(receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", retry.MAX_RETRY_AFTER_SECONDS)
    receiver.on("/a", answer(503), answer())
    with broker.running_worker():
        publish(wanted, *["a"] * 3)
        wait_until(Hold.objects.exists)
        publish(wanted, *["b", "c"] * 10)
        wait_until(lambda: Delivery.objects.open().count() == 3)
        hold = broker.wait_until_held(wanted.subscriber)
        assert sorted(broker.statuses(wanted)) == [DELIVERED] * 20 + [PENDING] * 3
        assert hold.delivery.ordering_key == "a"
        publish(wanted, "a", "d")
        wait_until(lambda: Delivery.objects.open().count() == 4)
        broker.cut_pauses_until_done()
    assert by_key(receiver.log)["a"] == [0, 0, 1, 2, 0]
    numbers = [one.sequence for one in receiver.log if json.loads(one.body)["key"] == "a"]
    assert numbers == sorted(numbers)


@pytest.mark.behaviour("4.7")
def test_a_slot_goes_on_with_its_key_in_order_past_one_that_is_held(wanted: Subscription) -> None:
    publish(wanted, "a", "b", "a", "b", "a")
    worker, requests = stepped_worker_of(wanted.subscriber)
    first, held = requests
    worker.answer_all({held: 503})
    worker.answer_all({first: 200})
    worker.answer_all({requests[-1]: 200})
    ids = [*Delivery.objects.oldest_first().values_list("id", flat=True)]
    assert [request.delivery_id for request in requests] == [ids[0], ids[1], ids[2], ids[4]]


@pytest.mark.behaviour("4.8")
def test_a_dead_endpoint_gets_one_request_a_key(receiver: Receiver, wanted: Subscription, long_pauses: None) -> None:
    receiver.close_port()
    with broker.running_worker():
        publish(wanted, *[str(number) for number in range(40)])
        held = broker.holds_of(wanted.subscriber).filter(line__lease_until=None)
        wait_until(lambda: held.count() == 4)
        receiver.open_port()
        broker.cut_pauses_until_done()
    assert (len(receiver.log), LineEvent.objects.count()) == (40, 0)


@pytest.mark.behaviour("1.4", "4.10")
@pytest.mark.parametrize("limited", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("refused", [(), (0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)])
def test_no_number_is_missing_that_the_history_does_not_have(
    wanted: Subscription, limited: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    """Some of three deliveries are not sent: their subscription was sent to just now, or has changed since."""
    three = [wanted, *(subscription(wanted.subscriber, script="made up") for _ in range(2))]
    Subscription.objects.update(script="made up")
    for number, one in enumerate(three):
        Subscription.objects.filter(pk=one.pk).update(rate_limit=0.001 if number in limited else None)
        publish(one, str(number))
    worker, requests = stepped_worker_of(wanted.subscriber)
    Pace.objects.filter(subscription__in=[three[number] for number in refused]).update(last_at=Now())
    Subscription.objects.filter(pk__in=[three[number].pk for number in {*refused}.difference(limited)]).update(
        position=9
    )
    worker.finish_scripts(Made())
    sent = {request.destination.subscription_id for request in requests}
    assert sent == {one.pk for number, one in enumerate(three) if number not in refused}
    for number in refused:
        cancel_deliveries_of(three[number].pk, reason="unwanted")
    Subscription.objects.update(rate_limit=None, script="")
    publish(wanted, "last")
    while Delivery.objects.open().exists():
        worker.take([broker.line_of(wanted.subscriber).pk])
        worker.answer_all(dict.fromkeys(worker.wire.in_flight, 200))
    used = [request.sequence for request in requests]
    told = [event.sequence or 0 for event in LineEvent.objects.filter(kind="NUMBER_UNCERTAIN")]
    assert sorted(used + told) == [*range(1, 1 + max(used))]


@pytest.mark.behaviour("4.6")
def test_a_deferred_delivery_holds_nothing(receiver: Receiver, wanted: Subscription, long_pauses: None) -> None:
    receiver.on("/a", answer(500), answer())
    with broker.running_worker():
        publish(wanted, "a", "a")
        wait_until(lambda: broker.statuses(wanted) == [PENDING, DELIVERED])
        broker.cut_pauses_until_done()
    assert by_key(receiver.log) == {"a": [0, 1, 0]}


@pytest.mark.behaviour("4.6")
@pytest.mark.parametrize("keys", ["a", "ab"])
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "busy"])
def test_deferred_deliveries_of_keys_that_cannot_go_keep_none_of_another_waiting(
    receiver: Receiver, wanted: Subscription, long_pauses: None, keys: str, *, is_held: bool
) -> None:
    gate = receiver.gate("/a")
    receiver.on("/a", *[answer(503) if is_held else gate] * len(keys), answer())
    Subscriber.objects.update(max_queued_to_send=5)
    publish(wanted, *[*keys] * 30, "last")
    Delivery.objects.update(waits_for="RETRY", times_deferred=1, due_at=Now() - timedelta(hours=1))
    Delivery.objects.filter(ordering_key="last").update(due_at=Now() - timedelta(minutes=1))
    with broker.running_worker():
        wait_until(lambda: "last" in by_key(receiver.log))
        assert by_key(receiver.log) == {key: [number] for number, key in enumerate(keys)} | {"last": [30 * len(keys)]}
        gate.open()


@pytest.mark.behaviour("4.10")
def test_after_a_crash_no_number_is_given_again_of_what_was_deferred(wanted: Subscription, long_pauses: None) -> None:
    line_ids = [broker.line_of(wanted.subscriber).pk]
    requests: list[Request] = []
    publish(wanted, "a", "b")
    vanishing, other = SteppedWorker("vanishing", requests.append), SteppedWorker("other", requests.append)
    vanishing.take(line_ids)
    vanishing.answer_all({requests[1]: 500})
    publish(wanted, "a")
    vanishing.take(line_ids)  # it reads another page
    broker.expire_lease(broker.line_of(wanted.subscriber))
    publish(wanted, "c")
    other.take(line_ids)
    assert [request.sequence for request in requests] == [1, 2, 1, 3]


@pytest.mark.parametrize("processing", [Processing.SERIAL, Processing.CONCURRENT])
def test_a_change_to_keyed_takes_all_along(receiver: Receiver, keyless: Subscription, processing: Processing) -> None:
    change(keyless, processing=processing, concurrency=2 if processing == Processing.CONCURRENT else 1)
    publish(keyless, *["a", "b"] * 3)
    assert not Delivery.objects.exclude(ordering_key=None).exists()
    change(keyless, **KEYED)
    publish(keyless, "a")
    broker.run_worker_until_done()
    assert [json.loads(one.body)["number"] for one in receiver.log if "webhook-ordering-key" not in one.headers] == [
        *range(6)
    ]


def delayed(wanted: Subscription) -> Callable[[], object]:
    publish(wanted, "a", "b")
    Delivery.objects.update(waits_for="START", not_before=Now() + HOUR)

    def begin() -> None:
        Delivery.objects.filter(waits_for="START").update(not_before=Now())
        begin_delayed()

    return begin


def paused(wanted: Subscription) -> Callable[[], object]:
    its = Subscription.objects.filter(pk=wanted.pk)
    its.update(paused_since=Now(), paused_by="HAND")
    publish(wanted, "a", "b")
    return lambda: its.update(paused_since=None, paused_by="")


def held(wanted: Subscription) -> Callable[[], object]:
    publish(wanted, "a", "b")
    Delivery.objects.update(status="HELD", waits_for="RELEASE")
    return lambda: release([*Delivery.objects.filter(status="HELD").values_list("pk", flat=True)])


def fetched(wanted: Subscription) -> Callable[[], object]:
    its = Subscription.objects.filter(pk=wanted.pk)
    its.update(delivery_mode="PULL")
    publish(wanted, "a", "b")
    return lambda: its.update(delivery_mode="PUSH")


@pytest.mark.parametrize("wait", [delayed, paused, held, fetched])
def test_what_becomes_due_long_after_a_change_to_keyed_is_sent(
    receiver: Receiver, keyless: Subscription, wait: Callable[[Subscription], Callable[[], object]]
) -> None:
    become_due = wait(keyless)
    change(keyless, **KEYED)
    let_hours_pass()
    become_due()
    broker.run_worker_until_done()
    assert [json.loads(one.body)["number"] for one in receiver.log] == [0, 1]


def test_a_backlog_without_keys_goes_before_what_has_the_empty_one(receiver: Receiver, keyless: Subscription) -> None:
    publish(keyless, *["a"] * 50)
    change(keyless, **KEYED)
    let_hours_pass()
    publish(keyless, *[None] * 3, "b")
    broker.run_worker_until_done()
    empty = [json.loads(one.body)["number"] for one in receiver.log if "webhook-ordering-key" not in one.headers]
    assert empty == [*range(50), *range(3)]
    assert by_key(receiver.log)["b"] == [3]


@pytest.mark.parametrize("others", [20, 0])
def test_a_page_begins_with_what_has_no_key(keyless: Subscription, others: int) -> None:
    publish(keyless, "a", "b")
    change(keyless, **KEYED)
    let_hours_pass()
    publish(keyless, *[f"key {number}" for number in range(others)])
    _, requests = stepped_worker_of(keyless.subscriber)
    sent = Delivery.objects.filter(pk__in=[request.delivery_id for request in requests])
    keys = [None, "key 0", "key 1", "key 10"] if others else [None]
    assert [*sent.order_by("sequence").values_list("ordering_key", flat=True)] == keys


def test_a_change_to_keyed_waits_for_publishes_that_have_not_seen_it(
    receiver: Receiver, keyless: Subscription, elsewhere: psycopg.Connection[object]
) -> None:
    elsewhere.execute("LOCK TABLE delivery_message IN EXCLUSIVE MODE")
    with (
        in_other_thread(lambda: publish(keyless, "a")) as publishing,
        in_other_thread(lambda: change(keyless, **KEYED)) as changing,
    ):
        assert (publishing.done(), changing.done()) == (False, False)
        elsewhere.rollback()
    changing.result()
    let_hours_pass()
    publish(keyless, "b")
    assert [*Delivery.objects.oldest_first().values_list("ordering_key", flat=True)] == [None, "b"]
    broker.run_worker_until_done()
    assert by_key(receiver.log) == {"a": [0], "b": [0]}


def test_a_change_to_keyed_gives_up_in_the_end(keyless: Subscription, elsewhere: psycopg.Connection[object]) -> None:
    elsewhere.execute("LOCK TABLE subscriptions_subscription IN ROW SHARE MODE")  # as a publish that takes long
    path = f"/api/v1/subscribers/{keyless.subscriber.name}"
    assert client_of().patch(path, KEYED).status_code == 503
    elsewhere.rollback()
    assert client_of().patch(path, KEYED).status_code == 200


@pytest.mark.parametrize("options", [{}, {"ttl": 60.0}, {"destination": "blue"}])
def test_without_its_path_all_has_the_empty_key(keyless: Subscription, options: dict[str, object]) -> None:
    """So what has none is older than everything that has one, and a page finds it without passing the others."""
    Subscriber.objects.update(name="blue")
    change(keyless, **KEYED)
    publish(keyless, "a")
    change(keyless, processing=Processing.SERIAL, concurrency=1, ordering_key="")
    broker.publish_bodies(keyless.event_type, b'{"key": "b"}', **options)
    assert [*Delivery.objects.oldest_first().values_list("ordering_key", flat=True)] == ["a", ""]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"key": "a b\\u00e4"}', "a b\u00e4"),
        (b'{"key": 7}', "7"),
        (b'{"key": null}', ""),
        (b"[]", ""),
        (b"not JSON", ""),
        (b'{"key": "%s"}' % (b"x" * 200), "x" * 200),
        (b'{"key": "%s"}' % (b"x" * 201), f"sha256:{sha256(b'x' * 201).hexdigest()}"),
        (b'{"key": "\\u0000"}', f"sha256:{sha256(bytes(1)).hexdigest()}"),
        (b'{"key": "\\ud800"}', f"sha256:{sha256(bytes.fromhex('eda080')).hexdigest()}"),
    ],
)
def test_the_key_is_read_when_a_message_is_published(wanted: Subscription, body: bytes, key: str) -> None:
    broker.publish_bodies(wanted.event_type, body, content_type="application/json")
    assert Delivery.objects.get().ordering_key == key


@pytest.mark.behaviour("2.13", "5.8")
def test_all_deliveries_of_a_message_carry_its_key(wanted: Subscription) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for options in ({}, {"not_before": later}, {"ttl": 60.0}, {"destination": wanted.subscriber.name}):
        broker.publish_bodies(wanted.event_type, b'{"key": "a"}', content_type="application/json", **options)
    refused = Delivery.objects.filter(pk=Delivery.objects.earliest("id").pk)
    refused.update(status="IN_FLIGHT")
    refused.update(status="REJECTED", closed_on=today(), finished_at=Now())
    for edit in (None, EDITED):
        resubmit(refused.get().pk, publish_terms(), edit=edit, max_bytes=99)
    assert [*Delivery.objects.oldest_first().values_list("ordering_key", flat=True)] == ["a"] * 5 + ["b"]
