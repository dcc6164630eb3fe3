"""What is done to QUEUE deliveries that wait: cancelled, released, kept while they are needed."""

import datetime as dt
from typing import Any

import psycopg
import pytest
from django.db import transaction

from broker_project.core.db import rows
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from delivery import operations
from delivery.dispatch import notify
from delivery.dispatch.parked_groups import park
from delivery.dispatch.sweep import due_lines
from delivery.limits import LOCKED_RETRY_SECONDS
from delivery.maintenance.partitions import first_id, open_days, today
from delivery.maintenance.retention import drop_past_days
from delivery.models import Delivery, Lane, Line, Message, QueueGroup, StorageDay
from delivery.operations import CANCEL, cancel_deliveries_of, release
from delivery.worker.slots import SlotState
from subscriptions.models import EventKind, EventType, Subscription
from tests.support import factories
from tests.support.api import FAILING_BODY, FAILING_FILTER, client_of, problem_of
from tests.support.broker import Worker, inactivate, publish_bodies, running_worker, statuses, wait_until_done
from tests.support.database import in_parallel

pytestmark = pytest.mark.django_db

KEEP_DAYS = 14


@pytest.fixture
def event_type() -> EventType:
    return factories.event_type(kind=EventKind.QUEUE)


@pytest.fixture
def group(event_type: EventType) -> list[Subscription]:
    """Three like subscriptions."""
    return [factories.subscription(event_type=event_type, filter=FAILING_FILTER) for _ in range(3)]


def cancel(one: Subscription) -> tuple[int, int]:
    return cancel_deliveries_of(one.pk, reason="unwanted")[:2]


def publish_two(group: list[Subscription], waits_for: str) -> str:
    """Publish two messages that wait for this; return the status of their deliveries."""
    status = "HELD" if waits_for == "RELEASE" else "PENDING"
    publish_bodies(group[0].event_type, b'{"n": 6}', b'{"n": 7}')
    QueueGroup.objects.update(waits_for=waits_for)
    Delivery.objects.update(waits_for=waits_for, status=status)
    return status


@pytest.mark.behaviour("1.8", "3.6")
@pytest.mark.parametrize("waits_for", ["TURN", "RELEASE", "SUBSCRIPTION"])
def test_cancelling_takes_one_endpoint_out_of_its_groups_and_the_last_one_ends_them(
    group: list[Subscription], waits_for: str
) -> None:
    one, *others = group
    before = publish_two(group, waits_for)

    assert cancel(one) == (2, 0)
    assert [statuses(each) for each in group] == [["CANCELLED"] * 2, [before] * 2, [before] * 2]
    assert QueueGroup.objects.count() == 2
    assert [cancel(other) for other in others] == [(2, 0), (2, 0)]
    assert not QueueGroup.objects.exists()


@pytest.mark.behaviour("1.8", "6.4")
def test_a_delivery_in_flight_is_asked_to_end_and_keeps_its_group(group: list[Subscription]) -> None:
    publish_bodies(group[0].event_type, b'{"n": 6}')
    Delivery.objects.filter(subscription=group[0]).update(status="IN_FLIGHT")

    assert [cancel(one) for one in group] == [(0, 1), (1, 0), (1, 0)]
    assert Delivery.objects.open().get().cancel_requested
    assert QueueGroup.objects.count() == 1


@pytest.mark.behaviour("1.8", "5.12")
@pytest.mark.parametrize("waits_for", ["TURN", "RELEASE", "SUBSCRIPTION"])
def test_a_group_ends_with_its_deliveries_when_all_are_cancelled_at_once(
    group: list[Subscription], waits_for: str
) -> None:
    publish_two(group, waits_for)
    first, second = QueueGroup.objects.order_by("id")

    assert operations.cancel([*first.delivery_ids, *second.delivery_ids[:2]], reason="unwanted")
    assert QueueGroup.objects.get() == second
    assert operations.cancel(second.delivery_ids, reason="unwanted") == second.delivery_ids[2:]
    assert not QueueGroup.objects.exists()


@pytest.mark.behaviour("1.8")
def test_cancels_lock_the_senders(storage: None, group: list[Subscription], elsewhere: psycopg.Connection[Any]) -> None:
    publish_bodies(group[0].event_type, b'{"n": 6}')

    with transaction.atomic():
        cancel(group[0])
        free = elsewhere.execute("SELECT lane FROM delivery_line FOR NO KEY UPDATE SKIP LOCKED").fetchall()

    assert sorted(free) == [("main",)] * 3 + [("retry",)] * 3


@pytest.mark.behaviour("1.8", "6.6")
@pytest.mark.parametrize("kind", [EventKind.QUEUE, EventKind.TOPIC])
def test_deliveries_in_flight_are_settled_between_slices_of_a_cancel(
    storage: None, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, kind: EventKind
) -> None:
    going = factories.subscription(event_type=factories.event_type(kind=kind), endpoint=receiver.url("/hook"))
    gone = factories.subscription(going.subscriber, factories.event_type(kind=kind))
    publish_bodies(gone.event_type, *[b"{}"] * 3)
    inactivate(gone)
    gate = receiver.gate("/hook")
    publish_bodies(going.event_type, b"1")
    pauses: list[float] = []
    one_by_one = CANCEL.replace("5000", "1")

    def step(statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        done = rows(statement, *arguments)
        if statement == one_by_one:
            gate.open()
            wait_until(lambda: pauses or worker.event_loop.lines._slots.any_in(SlotState.LOCKED))
        return done

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        wait_until(lambda: statuses(going) == ["DELIVERED"])

    with running_worker() as worker:
        wait_until(lambda: receiver.log)
        monkeypatch.setattr(operations, "SLICE", 1)
        monkeypatch.setattr(operations, "CANCEL", one_by_one)
        monkeypatch.setattr(operations, "rows", step)
        monkeypatch.setattr(operations, "sleep", pause)
        assert cancel(gone) == (3, 0)
        monkeypatch.undo()
    assert [seconds > LOCKED_RETRY_SECONDS for seconds in pauses] == [True] * 3


@pytest.mark.behaviour("1.8")
def test_a_queue_subscription_is_deleted_only_once_nothing_of_it_is_unfinished(group: list[Subscription]) -> None:
    one = group[0]
    publish_bodies(one.event_type, b'{"n": 6}')
    client = client_of()
    address = f"/api/v1/subscriptions/{one.pk}"
    refused = client.delete(address, headers={"If-Match": client.get(address)["ETag"]})

    assert problem_of(refused)[0] == 409
    assert client.post(f"{address}/cancel-deliveries").json() == {"cancelled": 1, "in_flight": 0, "complete": True}
    assert client.delete(address, headers={"If-Match": client.get(address)["ETag"]}).status_code == 204
    assert len(QueueGroup.objects.get().delivery_ids) == 3


@pytest.mark.behaviour("1.7")
def test_an_inactive_subscription_keeps_its_open_deliveries(group: list[Subscription]) -> None:
    publish_bodies(group[0].event_type, b'{"n": 6}')
    inactivate(group[0])
    publish_bodies(group[0].event_type, b'{"n": 7}')

    assert [statuses(one) for one in group] == [["PENDING"], ["PENDING"] * 2, ["PENDING"] * 2]
    assert [len(one.delivery_ids) for one in QueueGroup.objects.order_by("id")] == [3, 2]


@pytest.mark.behaviour("3.6")
def test_release_wakes_the_sender(storage: None, group: list[Subscription], monkeypatch: pytest.MonkeyPatch) -> None:
    publish_bodies(group[0].event_type, FAILING_BODY, FAILING_BODY)
    first, second = QueueGroup.objects.order_by("id")
    woken: list[tuple[str, list[int]]] = []
    monkeypatch.setattr(notify, "wake", lambda queue, lines: woken.append((queue, lines)))

    assert release([first.delivery_ids[1]]) == first.delivery_ids

    assert [statuses(one) for one in group] == [["PENDING", "HELD"]] * 3
    assert [one.waits_for for one in QueueGroup.objects.order_by("id")] == ["TURN", "RELEASE"]
    assert {one.waits_for for one in Delivery.objects.filter(pk__in=first.delivery_ids)} == {"TURN"}
    assert woken == [(f"queue.{(first.message_id or 0) % 5}", [first.line_id])]
    assert release([first.delivery_ids[0]]) == []
    assert release([second.delivery_ids[0]]) == second.delivery_ids


@pytest.mark.behaviour("3.6")
def test_a_group_that_is_being_released_is_not_parked(storage: None, group: list[Subscription]) -> None:
    publish_bodies(group[0].event_type, FAILING_BODY)
    QueueGroup.objects.update(waits_for="TURN")  # as when a settle has just held its deliveries
    (held,) = QueueGroup.objects.all()

    with transaction.atomic():
        assert release(held.delivery_ids) == held.delivery_ids
        in_parallel(1, lambda: park([held.pk]))

    assert [statuses(one) for one in group] == [["PENDING"]] * 3
    assert QueueGroup.objects.get().waits_for == "TURN"


@pytest.mark.behaviour("3.6", "6.4")
def test_a_released_job_goes_to_one_endpoint(group: list[Subscription], receiver: Receiver, worker: Worker) -> None:
    Subscription.objects.update(endpoint=receiver.url("/hook"))
    (held,) = publish_bodies(group[0].event_type, FAILING_BODY)
    publish_bodies(group[0].event_type, b'{"n": 6}')
    wait_until(lambda: receiver.log)

    release([Delivery.objects.filter(message=held.id).latest("id").pk])

    wait_until_done()
    assert sorted(request.body for request in receiver.log) == [FAILING_BODY, b'{"n": 6}']
    ended = Delivery.objects.filter(message=held.id).values_list("status", flat=True)
    assert sorted(ended) == ["DELIVERED", "REDUNDANT", "REDUNDANT"]
    assert not QueueGroup.objects.exists()


@pytest.mark.behaviour("3.6", "4.19", "6.5")
@pytest.mark.parametrize("others_end", [False, True], ids=["", "the inactive one ends first"])
def test_a_job_released_for_one_endpoint_does_not_wait_for_another(
    event_type: EventType, receiver: Receiver, storage: None, others_end: bool
) -> None:
    asleep, poisoned, broken = [factories.subscription(event_type=event_type) for _ in range(3)]
    Subscription.objects.filter(pk=poisoned.pk).update(endpoint=receiver.url("/hook"))
    publish_bodies(event_type, b"{}")
    Delivery.objects.filter(subscription__in=[poisoned, broken]).update(status="HELD", waits_for="RELEASE")
    inactivate(asleep)
    with running_worker():
        wait_until(lambda: QueueGroup.objects.filter(waits_for="SUBSCRIPTION").exists())
        if others_end:
            cancel(asleep)
        held = Delivery.objects.get(subscription=poisoned)

        assert release([held.pk]) == [held.pk]

        wait_until_done()
    ended = [status for one in (asleep, poisoned, broken) for status in statuses(one)]
    assert ended == ["CANCELLED" if others_end else "REDUNDANT", "DELIVERED", "REDUNDANT"]


@pytest.mark.behaviour("11.4")
def test_a_message_is_kept_until_its_last_group_ends(storage: None, group: list[Subscription]) -> None:
    day = today() - dt.timedelta(days=KEEP_DAYS + 6)
    StorageDay.objects.bulk_create(
        [StorageDay(day=day + dt.timedelta(days=n), lived=True) for n in range(KEEP_DAYS + 6)]
    )
    open_days(day, ahead=0)
    publish_bodies(group[0].event_type, b'{"n": 6}')
    Message.objects.update(id=first_id(day))
    Delivery.objects.update(message_id=first_id(day))
    QueueGroup.objects.update(message_id=first_id(day))

    drop_past_days(today(), keep_days=KEEP_DAYS)
    assert [bytes(one.body) for one in Message.objects.all()] == [b'{"n": 6}']

    for one in group:
        cancel(one)
    drop_past_days(today(), keep_days=KEEP_DAYS)
    assert not Message.objects.exists()


@pytest.mark.behaviour("6.2", "11.3")
def test_groups_of_removed_senders_are_left_to_the_sweep(storage: None, event_type: EventType) -> None:
    factories.subscription(event_type=event_type)
    publish_bodies(event_type, b"{}")
    retired = Line.objects.create(lane=Lane.QUEUE, sender=7)
    QueueGroup.objects.update(line=retired)
    Delivery.objects.update(line=retired)

    assert [(line.queue, line.id) for line in due_lines()] == [("queue.7", retired.pk)]
    assert not notify.wake("queue.7", [retired.pk])
    assert not notify.wake_regardless("queue.7", [retired.pk])
    with running_worker():
        wait_until(lambda: Delivery.objects.get().attempts == 1)


@pytest.mark.behaviour("6.2")
def test_the_lines_of_senders_are_made_once() -> None:
    event_type = factories.event_type(kind=EventKind.QUEUE)
    factories.subscription(event_type=event_type)
    for _ in range(2):
        publish_bodies(event_type, b"{}")

    lines = Line.objects.filter(lane=Lane.QUEUE).order_by("sender")
    assert [(one.sender, one.queue) for one in lines] == [(n, f"queue.{n}") for n in range(5)]
