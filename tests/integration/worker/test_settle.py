"""Settling: once, under the epoch, and while the database fails (contract 4.10, 4.11)."""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any, LiteralString

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now
from structlog.testing import capture_logs

from broker_project.core.db import Rows, rows, rows_of_each
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch.claim import claim
from delivery.filing import SHORT_LOCK_WAIT
from delivery.http.transfer import EncodedRequest
from delivery.limits import MAX_PROCESS_BYTES
from delivery.management.commands.statement import STATEMENTS
from delivery.models import Attempt, Delivery, Hold, Lane, Line, LineEvent, LineEventKind, QueueGroup
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from delivery.webhook.destination import Destination, destinations_of
from delivery.worker import pages, round_trip, rounds
from delivery.worker.line import ActiveLine
from delivery.worker.round_trip import Settling, mark_of, settling_of
from delivery.worker.settle_sql import SETTLE
from delivery.worker.slots import Rest, Send, SlotState
from delivery.worker.sql_blocks import with_blocks
from subscriptions.models import EventKind, Subscriber, Subscription
from tests.support import broker
from tests.support.broker import Worker
from tests.support.database import do_and_disconnect, execute, lock_waiters
from tests.support.factories import event_type, subscription
from tests.support.stepped_worker import stepped_worker_of

CANCELLED, DELIVERED, PENDING = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.PENDING
IN_FLIGHT = DeliveryStatus.IN_FLIGHT


OWNED = "owned AS MATERIALIZED (\n  SELECT l.id FROM delivery_line l"
LATE = "owned AS MATERIALIZED (\n  SELECT l.id FROM (SELECT pg_advisory_xact_lock_shared(7)) AS wait, delivery_line l"


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_printed_statement_of_a_round_runs_in_psql(storage: None, name: str) -> None:
    printed = StringIO()
    call_command("statement", name, stdout=printed)
    text = re.sub(r"\\set (\w+) ('.*')\n", "", printed.getvalue())
    values = dict(re.findall(r"\\set (\w+) ('.*')\n", printed.getvalue()))
    with connection.cursor() as cursor:
        cursor.execute(re.sub(r":'(\w+)'", lambda found: values[found[1]], text).replace("%", "%%"), [])
        assert [row for row in cursor.fetchall() if any(row)] == []


@pytest.mark.behaviour("4.11")
def test_settling_twice_is_settling_once(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    ended = broker.settlement(line, delivery)
    first = broker.settle(line, settlements=[ended])
    again = broker.settle(line, settlements=[ended])
    assert (first.ended, again.ended, again.owned) == (frozenset({delivery.id}), frozenset(), frozenset({line.id}))
    assert (broker.statuses(wanted), broker.attempts_of(delivery.id)) == ([DELIVERED, PENDING], [(1, 200)])
    assert bytes(Attempt.objects.get().answer_excerpt) == b"\x00\xff"


@pytest.mark.behaviour("4.11")
def test_a_line_whose_mark_the_database_has_forgotten_is_lost(receiver: Receiver, wanted: Subscription) -> None:
    async def forget_and_answer(*streams: Any) -> bool:
        execute_elsewhere = partial(do_and_disconnect, lambda: Delivery.objects.open().update(status=PENDING))
        await asyncio.to_thread(execute_elsewhere)
        return await answer()(*streams)

    receiver.on("/a", forget_and_answer)
    broker.publish_numbered(wanted.event_type, 2)
    with broker.running_worker() as worker, capture_logs() as logs:
        wait_until(lambda: receiver.log and not worker.event_loop.lines)
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["event_loop.mark_forgotten"]
    assert (len(receiver.log), broker.statuses(wanted)) == (1, [PENDING, IN_FLIGHT])  # marked, and not sent


@pytest.mark.behaviour("4.11")
def test_an_older_epoch_settles_marks_and_writes_nothing(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    following = Delivery.objects.open().get(status=PENDING)
    before = [*Delivery.objects.order_by("id").values()], broker.line_of(wanted.subscriber).epoch
    old = line.claim.epoch - 1
    settled = broker.settle(
        {line.id: old},
        settlements=[broker.settlement(line, delivery)],
        marks=[mark_of(line, delivery)],
        states=[line.update()],
    )
    assert (settled.owned, settled.ended, settled.started) == (frozenset(), frozenset(), {})
    assert ([*Delivery.objects.order_by("id").values()], broker.line_of(wanted.subscriber).epoch) == before
    assert (Attempt.objects.count(), following.sequence) == (0, None)
    assert broker.line_of(wanted.subscriber).lease_until is not None


def is_answered(worker: Worker) -> bool:
    slots = [slot for line in worker.event_loop.lines.all() for slot in line.slots]
    return all(slot.ended or slot.state is SlotState.IDLE for slot in slots)


@pytest.mark.behaviour("4.3")
def test_what_leaves_nothing_to_send_is_settled_with_others_and_a_page(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    settles: list[tuple[int, int]] = []
    """How many deliveries each settled, and how many statements its round trip had."""

    def noted(statements: Sequence[Any], meanwhile: Callable[[], object]) -> list[Rows]:
        settled = [json.loads(arguments.get("settlements", "[]")) for _, arguments in statements]
        settles.extend((len(settlements), len(statements)) for settlements in settled if settlements)
        return rows_of_each(statements, meanwhile)

    monkeypatch.setattr(round_trip, "rows_of_each", noted)
    monkeypatch.setattr(rounds, "SETTLE_LATER_SECONDS", PATIENCE_SECONDS)
    other = subscription(endpoint=receiver.url("/b"))
    with broker.running_worker() as worker:
        for number, to in enumerate([wanted, other] * 3):
            broker.publish_numbered(to.event_type, 1, first=number)
            wait_until(lambda: len(receiver.log) > number and is_answered(worker))  # noqa: B023 - it is called now
        assert (2, 2) in settles
    assert broker.statuses(wanted) == broker.statuses(other) == [DELIVERED] * 3


@pytest.mark.behaviour("1.8", "10.1")
@pytest.mark.parametrize(
    ("answered", "end"),
    [
        ({}, DELIVERED),
        ({"status": DeliveryStatus.REJECTED, "status_code": 404}, DeliveryStatus.REJECTED),
        ({"status": PENDING, "status_code": 500, "pause": 1.0}, CANCELLED),
        ({"status": PENDING, "status_code": 503}, CANCELLED),
        (broker.NO_ANSWER, CANCELLED),
    ],
)
def test_cancelling_in_flight(wanted: Subscription, answered: dict[str, Any], end: DeliveryStatus) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    assert cancel_deliveries_of(wanted.pk, reason="unwanted") == (2, 1, True)
    assert broker.statuses(wanted) == [IN_FLIGHT, CANCELLED, CANCELLED]
    broker.settle(line, settlements=[broker.settlement(line, delivery, **answered)])
    assert broker.statuses(wanted) == [end, CANCELLED, CANCELLED]
    assert len(broker.attempts_of(delivery.id)) == 1


@pytest.mark.behaviour("4.10")
def test_cancelling_an_uncertain_delivery_is_in_the_history(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    line, delivery, number = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    broker.settle(line, settlements=[broker.settlement(line, delivery, **broker.NO_ANSWER)])
    assert [*LineEvent.objects.values_list("line", "kind", "sequence", "delivery_id")] == [
        (line.id, LineEventKind.NUMBER_UNCERTAIN, number, delivery.id)
    ]


@pytest.mark.behaviour("4.10")
def test_a_request_that_never_left_gives_its_number_back(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    line, delivery, number = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    assert number == 1
    sequence_unused = broker.settlement(line, delivery, PENDING, status_code=None, sequence_unused=True)
    broker.settle(line, settlements=[sequence_unused])
    assert Delivery.objects.get().sequence is None
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    assert (Delivery.objects.get().sequence, LineEvent.objects.count()) == (None, 0)


def overtaken(act: Callable[[], object], by: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `by` be committed after the statement of `act` has begun, and before it locks its lines."""
    assert with_blocks(SETTLE, frozenset({"stays", "doubts", "writes"})).count(OWNED) == 1

    def late(statement: LiteralString, blocks: frozenset[str]) -> str:
        return with_blocks(statement, blocks).replace(OWNED, LATE).replace(SHORT_LOCK_WAIT, "true")

    monkeypatch.setattr("delivery.worker.round_trip.with_blocks", late)
    thread = threading.Thread(target=do_and_disconnect, args=[act])
    execute("SELECT pg_advisory_lock(7)")
    thread.start()
    wait_until(lock_waiters)
    by()
    execute("SELECT pg_advisory_unlock(7)")
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def ask_to_cancel(delivery_id: int) -> None:
    Delivery.objects.filter(pk=delivery_id).update(cancel_requested=True)


def settle_step(line: ActiveLine) -> None:
    """Settle the step of a line's only slot, and what that missed."""
    settling = settling_of(line.slots)
    settling.note(rows(*settling.statement()))
    settling.settle_missed()


@pytest.mark.behaviour("1.8", "4.11")
@pytest.mark.parametrize(
    ("answered", "end"),
    [({}, DELIVERED), (broker.NO_ANSWER, CANCELLED), ({"status": PENDING, "pause": 1.0}, CANCELLED)],
)
def test_a_settle_overtaken_by_a_cancel_misses_nothing(
    wanted: Subscription, answered: dict[str, Any], end: DeliveryStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    (slot,) = line.slots
    slot.step, slot.ended = Rest(), broker.settlement(line, delivery, **answered)
    overtaken(lambda: settle_step(line), lambda: cancel_deliveries_of(wanted.pk, reason="unwanted"), monkeypatch)
    assert (broker.statuses(wanted), len(broker.attempts_of(delivery.id))) == ([end], 1)
    assert broker.line_of(wanted.subscriber).lease_until is None


@pytest.mark.behaviour("1.8", "4.11")
def test_a_settlement_missed_under_a_lock_is_settled_later(
    wanted: Subscription, elsewhere: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked_after_it(statements: Sequence[Any], meanwhile: Callable[[], object]) -> list[Rows]:
        found = rows_of_each(statements, meanwhile)
        elsewhere.execute("SELECT FROM delivery_line FOR NO KEY UPDATE SKIP LOCKED")
        return found

    broker.publish_numbered(wanted.event_type, 2)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    (following,) = broker.outgoing_of(line.claim)
    (slot,) = line.slots
    slot.step, slot.ended = Send(following), broker.settlement(line, delivery, **broker.NO_ANSWER)
    slots, trip = broker.round_trip_of(line)
    monkeypatch.setattr(round_trip, "rows_of_each", locked_after_it)
    overtaken(lambda: [*trip.settle()], lambda: ask_to_cancel(delivery.id), monkeypatch)

    assert (broker.statuses(wanted), slot.state) == ([IN_FLIGHT, IN_FLIGHT], SlotState.LOCKED)
    assert slot.may_be_marked
    elsewhere.rollback()
    slots.move(slot, SlotState.SETTLING)
    assert [*trip.settle()] == [slot]
    assert (broker.statuses(wanted), slot.sequence) == ([CANCELLED, IN_FLIGHT], 1)


@pytest.mark.behaviour("4.11")
def test_a_request_is_built_while_its_mark_is_on_the_way(wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks the number, which the answer to the mark says."""

    built: list[EncodedRequest | None] = []

    def observed(statements: Sequence[Any], meanwhile: Callable[[], object]) -> list[Rows]:
        def build() -> None:
            built.append(send.request)
            meanwhile()
            built.append(send.request)

        return rows_of_each(statements, build)

    broker.publish_numbered(wanted.event_type, 2)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    (following,) = broker.outgoing_of(line.claim)
    (slot,), send = line.slots, Send(following)
    slot.step, slot.ended = send, broker.settlement(line, delivery)
    _, trip = broker.round_trip_of(line)
    monkeypatch.setattr(round_trip, "rows_of_each", observed)
    assert [*trip.settle()] == [slot]
    before, request = built
    assert (before, slot.sequence) == (None, 1)
    assert request
    assert (request.headers["webhook-id"], "Webhook-Sequence" in request.headers) == (following.webhook_id, False)


@pytest.mark.behaviour("4.11")
def test_a_line_with_an_unsettled_delivery_is_kept(wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    line, delivery, _ = broker.crash_while_sending(broker.line_of(wanted.subscriber))
    line.hold(delivery, 1.0, "no answer")
    held = line.update()
    missed = broker.settlement(line, delivery, **broker.NO_ANSWER)
    overtaken(
        lambda: broker.settle(line, settlements=[missed], states=[held]),
        lambda: cancel_deliveries_of(wanted.pk, reason="unwanted"),
        monkeypatch,
    )
    assert (broker.statuses(wanted), claim([line.id], worker="other")) == ([IN_FLIGHT], [])


@pytest.mark.behaviour("4.1")
def test_a_line_that_somebody_has_locked_is_left_out_and_holds_nobody_up(wanted: Subscription) -> None:
    other = subscription(event_type=wanted.event_type)
    broker.publish_numbered(wanted.event_type, 1)
    both = [broker.crash_while_sending(broker.line_of(one.subscriber)) for one in (wanted, other)]
    epochs = {line.id: line.claim.epoch for line, _, _ in both}
    ended = [broker.settlement(line, delivery) for line, delivery, _ in both]
    seen: list[Settling] = []
    thread = threading.Thread(
        target=do_and_disconnect, args=[lambda: seen.append(broker.settle(epochs, settlements=ended))]
    )
    with transaction.atomic():
        Line.objects.select_for_update(no_key=True).get(subscriber=wanted.subscriber, lane=Lane.MAIN)
        thread.start()
        thread.join(PATIENCE_SECONDS)
    assert [(one.owned, one.locked) for one in seen] == [(frozenset({both[1][0].id}), frozenset({both[0][0].id}))]
    assert (broker.statuses(wanted), broker.statuses(other)) == ([IN_FLIGHT], [DELIVERED])
    assert broker.settle(epochs, settlements=ended).ended == frozenset({both[0][1].id})


@pytest.mark.behaviour("4.1", "4.11")
def test_a_delivery_that_somebody_has_locked_holds_up_its_own_line_only(
    receiver: Receiver, worker: Worker, wanted: Subscription, elsewhere: psycopg.Connection[Any]
) -> None:
    other = subscription(endpoint=receiver.url("/b"))
    gate = receiver.gate("/a")
    broker.publish_numbered(wanted.event_type, 3)
    wait_until(lambda: len(receiver.log) == 1)
    elsewhere.execute("SELECT FROM delivery_open WHERE subscription_id = %s FOR UPDATE", [wanted.pk])
    gate.open()
    assert_goes_on(other, receiver)
    assert broker.statuses(wanted) == [IN_FLIGHT, PENDING, PENDING]
    elsewhere.rollback()
    broker.wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2"]
    assert not any(request.is_flagged for request in receiver.log)


@pytest.mark.behaviour("4.1", "4.11", "11.9")
def test_a_hold_that_somebody_has_locked_holds_up_its_own_line_only(
    receiver: Receiver, worker: Worker, wanted: Subscription, elsewhere: psycopg.Connection[Any]
) -> None:
    other = subscription(endpoint=receiver.url("/b"))
    receiver.on("/a", answer(503), answer())
    broker.publish_numbered(wanted.event_type, 3)
    wait_until(Hold.objects.exists)
    elsewhere.execute("SELECT FROM delivery_hold FOR UPDATE")
    wait_until(lambda: len(receiver.of("/a")) == 2)
    assert_goes_on(other, receiver)
    assert broker.statuses(wanted) == [IN_FLIGHT, PENDING, PENDING]
    elsewhere.rollback()
    broker.wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"0", b"1", b"2"]
    assert not any(request.is_flagged for request in receiver.log)


def assert_goes_on(other: Subscription, receiver: Receiver) -> None:
    """Check that another line is sent a hundred deliveries, ten at a time."""
    for first in range(0, 100, 10):
        broker.publish_numbered(other.event_type, 10, first=first)
        wait_until(lambda until=first: len(receiver.of("/b")) >= until)  # type: ignore[misc]
    wait_until(lambda: broker.statuses(other) == [DELIVERED] * 100)


def budget_left(worker: Worker) -> int:
    return worker.event_loop.budget._left


@pytest.fixture
def refusing_teapots(storage: None) -> Iterator[None]:
    """A database that refuses to record one kind of answer."""
    execute("ALTER TABLE delivery_attempt ADD CONSTRAINT no_teapots CHECK (status_code <> 418)")
    yield
    execute("ALTER TABLE delivery_attempt DROP CONSTRAINT no_teapots")


def test_data_that_the_database_refuses_stops_its_own_line_only(
    refusing_teapots: None, receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    refused = subscription(endpoint=receiver.url("/teapot"))
    receiver.on("/teapot", answer(418), answer(200))
    gates = [receiver.gate("/a"), receiver.gate("/teapot", answer(418), answer())]
    broker.publish_numbered(wanted.event_type, 20)
    broker.publish_numbered(refused.event_type, 2)
    wait_until(lambda: len(receiver.log) == 2)
    for gate in gates:
        gate.open()
    wait_until(lambda: broker.statuses(wanted) == [DELIVERED] * 20)
    assert broker.statuses(refused) == [DeliveryStatus.IN_FLIGHT, PENDING]
    broker.expire_lease(broker.line_of(refused.subscriber))
    broker.wait_until_done()
    assert receiver.bodies("/teapot") == [b"0", b"0", b"1"]
    assert [request.is_flagged for request in receiver.of("/teapot")] == [False, True, False]
    wait_until(lambda: budget_left(worker) == MAX_PROCESS_BYTES)


@pytest.mark.behaviour("4.11", "4.13")
def test_other_answers_of_a_line_with_a_refused_value_are_recorded_and_nothing_more_is_marked(
    refusing_teapots: None, wanted: Subscription
) -> None:
    Subscriber.objects.update(processing="CONCURRENT", concurrency=2)
    broker.publish_numbered(wanted.event_type, 4)
    worker, requests = stepped_worker_of(wanted.subscriber)
    worker.answer_all(dict(zip(requests, (418, 200), strict=True)))
    assert (broker.statuses(wanted), worker.lines) == ([IN_FLIGHT, DELIVERED, PENDING, PENDING], [])


@pytest.mark.behaviour("6.6")
def test_a_refused_outcome_of_a_job_waits(refusing_teapots: None, receiver: Receiver, worker: Worker) -> None:
    jobs = event_type(kind=EventKind.QUEUE)
    subscription(event_type=jobs, endpoint=receiver.url("/teapot"))
    receiver.on("/teapot", answer(418), answer())
    broker.publish_numbered(jobs, 30)
    wait_until(lambda: ends() == {DELIVERED: 29, PENDING: 1})
    broker.publish_numbered(jobs, 30, first=30)
    wait_until(lambda: ends() == {DELIVERED: 59, PENDING: 1})
    group = QueueGroup.objects.get(due_at__gt=Now() + timedelta(seconds=30))
    assert (group.uncertain, group.first_id) == (True, Delivery.objects.open().get().pk)
    broker.cut_pauses_until_done()
    assert len(receiver.log) == 61
    assert [request.body for request in receiver.log if request.is_flagged] == [receiver.log[0].body]
    wait_until(lambda: budget_left(worker) == MAX_PROCESS_BYTES)


def ends() -> Counter[str]:
    return Counter(Delivery.objects.values_list("status", flat=True))


class Unheard:
    """Makes a round trip as asked, but once lets the answer get lost on the way back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, when: str, meanwhile: Callable[[], object] = int) -> None:
        self.when = when
        """The argument that it has to have."""
        self.meanwhile = meanwhile
        """What happens before it is made again."""
        self.lost = 0
        monkeypatch.setattr(round_trip, "rows_of_each", self)

    def __call__(
        self, statements: Sequence[tuple[Any, Mapping[str, Any]]], meanwhile: Callable[[], object]
    ) -> list[Rows]:
        found = rows_of_each(statements, meanwhile)
        if not self.lost and any(arguments.get(self.when, "[]") != "[]" for _, arguments in statements):
            self.lost += 1
            self.meanwhile()
            raise OperationalError("server closed the connection unexpectedly")
        return found


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize("when", ["marks", "settlements", "states"])
@pytest.mark.parametrize("status", [200, 404, 500, 503])
def test_a_commit_with_a_lost_reply_is_not_doubled(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch, when: str, status: int
) -> None:
    unheard = Unheard(monkeypatch, when)
    receiver.on("/a", answer(status), answer())
    broker.publish_numbered(wanted.event_type, 3)
    worker = Worker()
    worker.start()
    broker.cut_pauses_until_done()
    worker.stop()
    tries = 1 if status < 500 else 2
    sent = sorted(receiver.bodies("/a"))
    assert (unheard.lost, sent) == (1, [b"0"] * tries + [b"1", b"2"])
    assert Attempt.objects.count() == len(sent)
    assert sorted({request.sequence for request in receiver.log}) == [1, 2, 3]


@pytest.mark.behaviour("4.10", "4.15")
def test_a_mark_with_a_lost_reply_is_not_forgotten(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = receiver.url("/moved")
    unheard = Unheard(monkeypatch, "marks", lambda: Subscription.objects.filter(pk=wanted.pk).update(endpoint=moved))
    broker.publish_numbered(wanted.event_type, 3)
    worker = Worker()
    worker.start()
    wait_until(lambda: unheard.lost and not worker.event_loop.lines)
    assert receiver.bodies("/a") == [b"0"]
    broker.expire_lease(broker.line_of(wanted.subscriber))
    broker.wait_until_done()
    worker.stop()
    assert receiver.bodies("/moved") == [b"1", b"2"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3]


@pytest.mark.behaviour("4.10", "4.15")
@pytest.mark.parametrize("meanwhile", ["nothing", "moved", "cancelled", "locked"])
def test_a_page_with_a_lost_reply_leaves_nothing_marked(
    receiver: Receiver,
    wanted: Subscription,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: psycopg.Connection[Any],
    meanwhile: str,
) -> None:
    lost: list[int] = []

    def change() -> None:
        lost.append(Delivery.objects.filter(status=DeliveryStatus.IN_FLIGHT).count())
        if meanwhile == "moved":
            Subscription.objects.filter(pk=wanted.pk).update(endpoint=receiver.url("/moved"))
        elif meanwhile == "cancelled":
            cancel_deliveries_of(wanted.pk, reason="unwanted")
        elif meanwhile == "locked":
            elsewhere.execute("SELECT FROM delivery_open FOR UPDATE")

    Unheard(monkeypatch, "marks_in", change)
    broker.publish_numbered(wanted.event_type, 3)
    worker = Worker()
    worker.start()
    wait_until(lambda: lost and not worker.event_loop.lines)
    assert lost == [1]
    elsewhere.rollback()
    broker.expire_lease(broker.line_of(wanted.subscriber))
    broker.wait_until_done()
    worker.stop()
    sent = [] if meanwhile == "cancelled" else [b"0", b"1", b"2"]
    assert receiver.bodies("/moved" if meanwhile == "moved" else "/a") == sent
    assert [request.sequence for request in receiver.log] == [*range(1, 1 + len(sent))]
    assert sum(request.is_flagged for request in receiver.log) == (meanwhile == "locked")


@pytest.mark.behaviour("4.15")
def test_what_is_marked_is_sent_as_it_is_configured_by_then(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    def destinations_after_a_change(versions: Mapping[int, int | None]) -> Mapping[int, Destination]:
        if versions:
            Subscription.objects.filter(pk=wanted.pk, endpoint=receiver.url("/a")).update(endpoint=receiver.url("/b"))
        return destinations_of(versions)

    monkeypatch.setattr(pages, "destinations_of", destinations_after_a_change)
    broker.publish_numbered(wanted.event_type, 2)
    with broker.running_worker():
        broker.wait_until_done()
    assert receiver.bodies("/b") == [b"0", b"1"]
    assert [request.sequence for request in receiver.log] == [1, 2]
    assert not any(request.is_flagged for request in receiver.log)


@pytest.mark.behaviour("4.15", "6.6")
def test_a_lost_mark_of_a_job_is_harmless(receiver: Receiver, storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = event_type(kind=EventKind.QUEUE)
    wanted = subscription(event_type=jobs, endpoint=receiver.url("/a"))
    moved = receiver.url("/moved")
    unheard = Unheard(monkeypatch, "marks", lambda: Subscription.objects.filter(pk=wanted.pk).update(endpoint=moved))
    broker.publish_numbered(jobs, 30)
    with broker.running_worker():
        broker.cut_pauses_until_done()
    assert (unheard.lost, ends()) == (1, {DELIVERED: 30})
    assert sorted(map(int, receiver.bodies("/moved"))) == [*range(30)]
