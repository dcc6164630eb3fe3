"""A subscriber's line: in order, a page at a time, and what each answer means (contract 4.3 to 4.8)."""

import os
import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.db.models.functions import Now
from structlog.testing import capture_logs

from broker_project.core import boot_clock
from broker_project.core.db import forget_connection
from broker_project.stack.load.receiver import Behaviour, Receiver, answer, hang
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch import notify
from delivery.dispatch.claim import claim
from delivery.dispatch.notify import Link
from delivery.limits import MAX_LINE_BYTES, MAX_PROCESS_BYTES
from delivery.models import Attempt, Delivery, Message, PageRead
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from delivery.worker import leases
from delivery.worker.buffer import BodyBudget, Buffer, PageRequest
from delivery.worker.line import ActiveLine
from delivery.worker.rounds import NO_LINK
from delivery.worker.slots import Slot
from subscriptions.models import Subscriber, Subscription
from tests.support import broker
from tests.support.behaviours import close
from tests.support.broker import Worker
from tests.support.database import damage_long_bodies, execute
from tests.support.factories import event_type, subscriber, subscription

DELIVERED, REJECTED, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.REJECTED, DeliveryStatus.PENDING
NOT_SUPPORTED = DeliveryStatus.NOT_SUPPORTED
LONGER = 5.0
"""The factor by which `long_pauses` lengthens pauses."""


@pytest.mark.behaviour("4.1", "4.12")
def test_a_subscriber_gets_all_its_messages_in_sequence(receiver: Receiver, worker: Worker) -> None:
    abc = subscriber("ABC")
    created = subscription(abc, event_type("ABC.Create"), receiver.url("/abc"))
    updated = subscription(abc, event_type("ABC.Update"), receiver.url("/abc"))
    for number in range(40):
        broker.publish_bodies(created.event_type if number % 3 else updated.event_type, b"%d" % number)
    broker.wait_until_done()
    assert receiver.bodies("/abc") == [b"%d" % number for number in range(40)]
    assert [request.sequence for request in receiver.log] == [*range(1, 41)]
    assert receiver.max_at_once["/abc"] == 1
    ends = [request.ended for request in receiver.log[:-1]]
    assert all(end and end <= later.begun for end, later in zip(ends, receiver.log[1:], strict=True))


@pytest.mark.behaviour("4.2")
def test_deliveries_whose_message_is_missing_are_held_and_stop_no_line(
    wanted: Subscription,
) -> None:
    broker.publish_numbered(wanted.event_type, 22)
    ids = [*Message.objects.order_by("id").values_list("pk", flat=True)]
    execute("DELETE FROM delivery_message WHERE id = ANY(%s)", [ids[1:21]])
    with capture_logs() as logged, broker.running_worker():
        wait_until(lambda: broker.statuses(wanted) == [DELIVERED, *[DeliveryStatus.HELD] * 20, DELIVERED])
    said = {one["message_id"] for one in logged if one["event"] == "delivery.message_missing"}
    assert said == {*ids[1:21]}


@pytest.mark.behaviour("4.2", "11.9")
def test_a_message_that_postgresql_cannot_read_is_held_and_stops_no_line(
    receiver: Receiver, wanted: Subscription
) -> None:
    other = subscription(subscriber("XYZ"), wanted.event_type, receiver.url("/xyz"))
    long = os.urandom(5_000)
    broker.publish_bodies(wanted.event_type, b"1", long, long, b"4")
    damage_long_bodies()
    with broker.running_worker():
        expected = [DELIVERED, *[DeliveryStatus.HELD] * 2, DELIVERED]
        wait_until(lambda: broker.statuses(wanted) == broker.statuses(other) == expected)


@pytest.mark.behaviour("4.1", "4.12")
def test_two_subscribers_are_sent_to_side_by_side(receiver: Receiver, worker: Worker) -> None:
    created = subscription(subscriber("ABC.Create"), event_type("ABC.Create"), receiver.url("/create"))
    updated = subscription(subscriber("ABC.Update"), event_type("ABC.Update"), receiver.url("/update"))
    receiver.on("/create", hang)
    gate = receiver.gate("/update")
    broker.publish_numbered(created.event_type, 1)
    broker.publish_numbered(updated.event_type, 5)
    wait_until(lambda: {request.path for request in receiver.log} == {"/create", "/update"})
    gate.open()
    wait_until(lambda: len(receiver.of("/update")) == 5)
    (hanging,) = receiver.of("/create")
    assert hanging.ended is None
    receiver.close_port()  # or the worker would wait for its deadline at the end


@pytest.mark.behaviour("4.2", "11.1")
@pytest.mark.parametrize("capacity", [1, 7, 500])
def test_a_page_has_at_most_what_may_be_queued_oldest_first(wanted: Subscription, capacity: int) -> None:
    type(wanted.subscriber).objects.filter(pk=wanted.subscriber.pk).update(max_queued_to_send=capacity)
    broker.publish_numbered(wanted.event_type, 600)
    (taken,) = claim([broker.line_of(wanted.subscriber).pk], worker="w")
    bodies = [delivery.content.body for delivery in broker.outgoing_of(taken)]
    assert bodies == [b"%d" % number for number in range(capacity)]
    Delivery.objects.filter(pk__in=Delivery.objects.order_by("id").values("pk")[300:]).update(
        waits_for="RETRY", due_at=Now()
    )
    assert len(broker.outgoing_of(taken)) == capacity


@pytest.mark.behaviour("11.1")
@pytest.mark.parametrize(
    ("percent", "answered", "read"), [(40, 5, 10), (40, 6, 16), (0, 9, 10), (0, 10, 20), (90, 1, 11)]
)
def test_the_next_page_is_read_at_the_level_that_the_subscriber_says(
    receiver: Receiver, wanted: Subscription, percent: int, answered: int, read: int
) -> None:
    Subscriber.objects.update(max_queued_to_send=10, refill_percent=percent)
    receiver.on("/a", *[answer()] * answered, hang)
    broker.publish_numbered(wanted.event_type, 30)
    with broker.running_worker():
        wait_until(lambda: len(receiver.log) == answered + 1)
        noted = PageRead.objects.values_list("delivery_ids", flat=True)
        assert len({delivery_id for ids in noted for delivery_id in ids}) == read
        receiver.close_port()


@pytest.mark.behaviour("4.2", "11.1")
def test_a_line_holds_as_many_bytes_as_its_subscriber_says(wanted: Subscription) -> None:
    Subscriber.objects.update(max_queued_bytes=65_536)
    broker.publish_bodies(wanted.event_type, *[b"x" * 30_000] * 3)
    (taken,) = claim([broker.line_of(wanted.subscriber).pk], worker="w")
    line = ActiveLine(taken, NO_LINK, boot_clock.since_boot())
    line.slots = [Slot(line)]
    assert broker.read_page(line.page_request()).bytes == 60_000


def read(wanted: Subscription, budget: BodyBudget) -> Buffer[Outgoing]:
    line = broker.line_of(wanted.subscriber)
    return broker.read_page(PageRequest(line.pk, line.epoch, capacity=500), budget)


@pytest.mark.behaviour("11.1")
def test_a_process_holds_no_more_bodies_than_its_budget(wanted: Subscription) -> None:
    broker.publish_bodies(wanted.event_type, b"x" * 100, b"x" * 100, b"x" * 100)
    budget = BodyBudget(250)
    first = read(wanted, budget)
    second = read(wanted, budget)
    assert (first.bytes, first.is_starved, len(second), second.is_starved) == (200, False, 0, True)
    budget.give_back(200)
    assert read(wanted, budget).bytes == 200


@pytest.mark.behaviour("11.1")
def test_bodies_of_what_is_gone_once_its_page_is_read_are_not_held(wanted: Subscription) -> None:
    broker.publish_bodies(wanted.event_type, b"x" * 100, b"x" * 100)
    Message.objects.order_by("id")[:1].get().delete()
    budget = BodyBudget(200)
    assert read(wanted, budget).bytes == 100
    assert budget.take(100)
    assert not budget.take(1)


@pytest.mark.behaviour("11.1")
def test_lines_share_a_small_budget(receiver: Receiver, storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.worker.rounds.MAX_PROCESS_BYTES", 3 * MAX_LINE_BYTES)
    kind = event_type()
    for number in range(8):
        subscription(event_type=kind, endpoint=receiver.url(f"/{number}"))
    broker.publish_bodies(kind, *[b"%d" % number + b"x" * (MAX_LINE_BYTES - 1) for number in range(4)])
    with broker.running_worker() as worker:
        broker.wait_until_done()
        wait_until(lambda: worker.event_loop.budget._left == 3 * MAX_LINE_BYTES)
    for number in range(8):
        assert [body[:1] for body in receiver.bodies(f"/{number}")] == [b"0", b"1", b"2", b"3"]


@pytest.mark.behaviour("11.1")
def test_a_hanging_line_keeps_one_body(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    gate = receiver.gate("/a")
    broker.publish_bodies(wanted.event_type, *[b"x" * 1000] * 20)
    wait_until(lambda: receiver.log)
    wait_until(lambda: worker.event_loop.budget._left == MAX_PROCESS_BYTES - 1000)
    gate.open()
    broker.wait_until_done()
    assert len(receiver.log) == 20
    wait_until(lambda: worker.event_loop.budget._left == MAX_PROCESS_BYTES)


@pytest.mark.behaviour("4.14")
def test_a_turn_that_names_a_line_twice_ends(
    worker: Worker, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Link] = []
    monkeypatch.setattr(notify, "report_done", done.append)
    line_id, link = broker.line_of(wanted.subscriber).pk, Link(task_id="of Celery")
    worker.event_loop.take(notify.TOPIC, [line_id, line_id], link)
    wait_until(lambda: done == [link])


@pytest.mark.behaviour("4.14")
def test_an_idle_line_stays_for_a_while(
    receiver: Receiver, worker: Worker, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "IDLE_SECONDS", PATIENCE_SECONDS)
    for number in (1, 2, 3):
        broker.publish_numbered(wanted.event_type, 1, first=number)
        broker.wait_until_done()
    assert len(receiver.log) == 3
    assert broker.line_of(wanted.subscriber).epoch == 1
    (driven,) = worker.event_loop.lines._lines.values()
    driven.slots[0].idle_since -= PATIENCE_SECONDS
    wait_until(lambda: broker.line_of(wanted.subscriber).lease_until is None)


@pytest.mark.behaviour("4.10")
def test_a_publish_that_commits_late_is_sent_late_and_not_lost(receiver: Receiver, worker: Worker) -> None:
    wanted = subscription(endpoint=receiver.url("/a"))
    begun, go_on = threading.Event(), threading.Event()

    def publish_slowly() -> None:
        with transaction.atomic():
            broker.publish_bodies(wanted.event_type, b"slow")
            begun.set()
            go_on.wait(PATIENCE_SECONDS)
        forget_connection()

    slow = threading.Thread(target=publish_slowly)
    slow.start()
    begun.wait(PATIENCE_SECONDS)
    broker.publish_bodies(wanted.event_type, b"quick")
    wait_until(lambda: receiver.bodies("/a") == [b"quick"])
    go_on.set()
    slow.join()
    broker.wait_until_done()
    assert [(request.body, request.sequence) for request in receiver.log] == [(b"quick", 1), (b"slow", 2)]
    ids = {request.body: request.delivery_id for request in receiver.log}
    assert ids[b"slow"] < ids[b"quick"]


@pytest.mark.behaviour("4.10")
def test_a_late_commit_does_not_overtake_the_head(receiver: Receiver, worker: Worker, long_pauses: None) -> None:
    wanted = subscription(endpoint=receiver.url("/a"))
    receiver.on("/a", answer(503), answer())
    older = execute("SELECT nextval('delivery_delivery_id_seq')")[0][0]
    broker.publish_bodies(wanted.event_type, b"head")
    wait_until(broker.holds_of(wanted.subscriber).exists)
    head = Delivery.objects.get()
    Delivery.objects.create(id=older, message_id=head.message_id, line_id=head.line_id, subscription=wanted, size=4)
    broker.cut_pauses_until_done()
    assert [request.delivery_id for request in receiver.log] == [head.pk, head.pk, older]
    assert [request.sequence for request in receiver.log] == [1, 1, 2]
    assert [*Delivery.objects.values_list("status", flat=True)] == [DeliveryStatus.DELIVERED] * 2


@pytest.mark.behaviour("4.3", "4.4", "4.5")
@pytest.mark.parametrize(
    ("answers", "end"),
    [
        ([200, 201, 204, 299], DELIVERED),
        ([300, 301, 302, 303, 307, 308], NOT_SUPPORTED),
        ([400, 401, 404, 408, 410, 425, 429, 499], REJECTED),
    ],
)
def test_final_answers(
    receiver: Receiver, worker: Worker, wanted: Subscription, answers: list[int], end: DeliveryStatus
) -> None:
    receiver.on("/a", *[answer(status, Location=receiver.url("/elsewhere")) for status in answers])
    broker.publish_numbered(wanted.event_type, len(answers))
    broker.wait_until_done()
    assert broker.statuses(wanted) == [end] * len(answers)
    assert [request.path for request in receiver.log] == ["/a"] * len(answers)
    assert [*Attempt.objects.order_by("id").values_list("number", "status_code")] == [(1, status) for status in answers]


def test_an_attempt_keeps_what_was_answered(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    receiver.on("/a", answer(404, b"x" * 2000, reason=b"Nobody", X_Who="me"))
    broker.publish_numbered(wanted.event_type, 1)
    broker.wait_until_done()
    attempt = Attempt.objects.get()
    assert (attempt.status_code, attempt.error, bytes(attempt.answer_excerpt)) == (404, "", b"x" * 1024)
    assert bytes(attempt.answer_headers) == b"HTTP/1.1 404 Nobody\r\nContent-Length: 2000\r\nX-Who: me\r\n\r\n"
    assert Delivery.objects.get().reason == "answered 404"


@pytest.mark.behaviour("4.6")
@pytest.mark.parametrize("status", [500, 501, 502, 504, 599, 600, 999])
def test_server_errors_defer_the_delivery(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None, status: int
) -> None:
    receiver.on("/a", answer(status), answer())
    broker.publish_numbered(wanted.event_type, 3)
    wait_until(lambda: broker.statuses(wanted) == [PENDING, DELIVERED, DELIVERED])
    broker.cut_pauses_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2", b"0"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3, 1]


@pytest.mark.behaviour("4.6")
def test_the_pause_doubles(receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None) -> None:
    receiver.on("/a", answer(500))
    broker.publish_numbered(wanted.event_type, 1)
    for tries, pause in enumerate([1, 2, 4, 8, 16, 32, 60, 60], start=1):
        wait_until(lambda: Delivery.objects.get().times_deferred == tries)  # noqa: B023 - called at once
        check_pause(Delivery.objects.get().due_at, LONGER * pause, LONGER * pause)
        broker.make_due()


def check_pause(due_at: datetime | None, least: float, most: float) -> None:
    """Check that a pause, which began between the last request and now, has this many seconds."""
    assert due_at
    assert timedelta(seconds=least) <= due_at - Attempt.objects.latest("id").started_at
    assert due_at - datetime.now(UTC) <= timedelta(seconds=most)


@pytest.mark.behaviour("4.2", "4.6")
@pytest.mark.parametrize("queued", [1, 2, 500])
def test_deferred_and_new_deliveries_take_turns(receiver: Receiver, wanted: Subscription, queued: int) -> None:
    Subscriber.objects.filter(pk=wanted.subscriber.pk).update(max_queued_to_send=queued)
    stuck = subscription(subscriber=wanted.subscriber, endpoint=receiver.url("/stuck"))
    receiver.on("/stuck", answer(500))
    broker.publish_numbered(stuck.event_type, 200)
    Delivery.objects.update(
        waits_for="RETRY", due_at=Now(), times_deferred=5
    )  # due again now, and then after half a minute
    broker.publish_numbered(wanted.event_type, 50)
    with broker.running_worker():
        wait_until(lambda: len(receiver.log) >= 130)
    assert [request.path for request in receiver.log[:100]] == ["/a", "/stuck"] * 50
    assert {request.path for request in receiver.log[100:]} == {"/stuck"}
    assert receiver.bodies("/stuck")[:80] == [b"%d" % number for number in range(80)]


@pytest.mark.behaviour("4.7")
def test_service_unavailable_holds_the_line(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None
) -> None:
    receiver.on("/a", answer(503), answer(503), answer(503), answer())
    broker.publish_numbered(wanted.event_type, 2)
    for tries in range(1, 4):
        wait_until(broker.holds_of(wanted.subscriber).filter(failures=tries).exists)
        assert len(receiver.log) == tries
        broker.make_due()
    broker.cut_pauses_until_done()
    assert receiver.bodies("/a") == [b"0", b"0", b"0", b"0", b"1"]
    assert [request.sequence for request in receiver.log] == [1, 1, 1, 1, 2]
    assert not any(request.is_flagged for request in receiver.log)
    assert [request.headers["webhook-attempt"] for request in receiver.log] == ["1", "2", "3", "4", "1"]


@pytest.mark.behaviour("4.7")
@pytest.mark.parametrize(
    ("then", "end", "sent"),
    [
        (answer(200), DELIVERED, b"0012"),
        (answer(301), NOT_SUPPORTED, b"0012"),
        (answer(404), REJECTED, b"0012"),
        (answer(500), DELIVERED, b"00120"),
        (answer(503), DELIVERED, b"00012"),
        (close, DELIVERED, b"00012"),
    ],
)
def test_after_a_503_the_next_answer_counts_by_its_own_rule(
    receiver: Receiver, wanted: Subscription, long_pauses: None, then: Behaviour, end: DeliveryStatus, sent: bytes
) -> None:
    receiver.on("/a", answer(503), then, answer())
    broker.publish_numbered(wanted.event_type, 3)

    def others_are_sent() -> bool:
        broker.holds_of(wanted.subscriber).update(due_at=Now())
        return broker.statuses(wanted)[1:] == [DELIVERED] * 2

    with broker.running_worker():
        broker.wait_until_held(wanted.subscriber)
        assert receiver.bodies("/a") == [b"0"], "nothing overtakes it"
        wait_until(others_are_sent)
        broker.cut_pauses_until_done()
    assert broker.statuses(wanted)[0] == end
    assert b"".join(receiver.bodies("/a")) == sent


@pytest.mark.behaviour("4.7")
@pytest.mark.parametrize(("asked", "seconds"), [("120", 120), ("86400", 300), ("0", LONGER), ("soon", LONGER)])
def test_retry_after_is_honoured_up_to_a_limit(
    receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None, asked: str, seconds: float
) -> None:
    receiver.on("/a", answer(503, Retry_After=asked), answer())
    broker.publish_numbered(wanted.event_type, 1)
    check_pause(broker.wait_until_held(wanted.subscriber).due_at, seconds, seconds)


@pytest.mark.behaviour("4.8")
def test_no_connection_holds(receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None) -> None:
    receiver.close_port()
    broker.publish_numbered(wanted.event_type, 3)
    hold = broker.wait_until_held(wanted.subscriber)
    assert (hold.failures, hold.line.last_sequence, broker.statuses(wanted)) == (1, 0, [PENDING, PENDING, PENDING])
    assert "no answer" in hold.reason
    receiver.open_port()
    broker.cut_pauses_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3]
    assert not any(request.is_flagged for request in receiver.log)
    wait_until(lambda: not broker.holds_of(wanted.subscriber).exists())


@pytest.mark.behaviour("4.8")
def test_pauses_grow_until_success(receiver: Receiver, worker: Worker, wanted: Subscription, long_pauses: None) -> None:
    receiver.close_port()
    broker.publish_numbered(wanted.event_type, 1)
    for tries, longest in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60], start=1):
        check_hold(wanted, tries, LONGER * longest)
    receiver.open_port()
    broker.make_due()
    broker.wait_until_done()
    receiver.close_port()
    broker.publish_numbered(wanted.event_type, 1)
    check_hold(wanted, 1, LONGER)


def check_hold(wanted: Subscription, tries: int, longest: float) -> None:
    """Wait until the line is held for the `tries`-th time; check its pause, and end it."""
    held = broker.holds_of(wanted.subscriber).filter(failures=tries)
    wait_until(held.exists)
    check_pause(held.get().due_at, max(LONGER, 0.8 * longest), longest)
    broker.make_due()
