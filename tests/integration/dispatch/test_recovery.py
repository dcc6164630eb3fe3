"""Workers that vanish or freeze: takeover, fencing, mending, numbers (contract 4.10, 4.11, 11.3)."""

import contextlib
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.core.management import call_command

from broker_project.core import boot_clock
from broker_project.stack.load.receiver import Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery.believed_clock import BelievedClock
from delivery.dispatch import notify
from delivery.dispatch.claim import claim, end_leases_of
from delivery.limits import LEASE_SECONDS, MAX_PROCESS_BYTES, REQUEST_DEADLINE_SECONDS
from delivery.maintenance.incarnation import MARGIN, Guard, NewestIds
from delivery.maintenance.partitions import leaf_of, open_days, today
from delivery.models import Delivery, Line, LineEvent, LineEventKind, PageRead
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from delivery.worker import process
from delivery.worker.line import ActiveLine
from delivery.worker.round_trip import mark_of
from delivery.worker.rounds import NO_LINK
from delivery.worker.slots import Slot
from subscriptions.models import Subscription
from tests.support import broker
from tests.support.api import client_of, publish
from tests.support.database import execute
from tests.support.factories import subscription

HIDE = """
CREATE FUNCTION public.{hidden}(OUT system_identifier pg_lsn) LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'not on this server' USING ERRCODE = '{state}'; END $$;
SET LOCAL search_path = public, pg_catalog;
"""
NAMED = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid::int8 = hashtext(%s)::int8 & 4294967295"
SUSPENSIONS = 10
CANCELLED, DELIVERED, PENDING = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.PENDING


@pytest.fixture
def line(wanted: Subscription) -> Line:
    return broker.line_of(wanted.subscriber)


def go_on_and_vanish(driven: ActiveLine, *, settled: int) -> int:
    """Settle that many more deliveries as a worker does, mark one more, and vanish; return its number."""
    last, number = driven.numbers.last, 0
    for delivery in broker.outgoing_of(driven.claim)[: settled + 1]:
        driven.numbers.last = last + number
        marked = broker.settle(driven, marks=[mark_of(driven, delivery)])
        number += 1
        if number <= settled:
            assert marked.started == {delivery.id: last + number}
            broker.settle(driven, settlements=[broker.settlement(driven, delivery)])
    return last + number


def recover(line: Line) -> None:
    """Let the lease run out and another worker take over, until everything has been sent."""
    broker.expire_lease(line)
    with broker.running_worker():
        broker.cut_pauses_until_done()


def claimed(line: Line, worker: str = "vanished") -> ActiveLine:
    (taken,) = claim([line.pk], worker=worker)
    return ActiveLine(taken, NO_LINK, 0.0)


@pytest.mark.behaviour("4.11")
def test_a_locked_delivery_keeps_no_other_line_from_being_claimed(
    wanted: Subscription, line: Line, elsewhere: psycopg.Connection[Any]
) -> None:
    other = broker.line_of(subscription(event_type=wanted.event_type).subscriber)
    broker.publish_numbered(wanted.event_type, 1)
    for one in (line, other):
        broker.crash_while_sending(one)
        broker.expire_lease(one)
    elsewhere.execute("SELECT FROM delivery_open WHERE line_id = %s FOR UPDATE", [line.pk])
    assert [one.line_id for one in claim([line.pk, other.pk], worker="next")] == [other.pk]
    elsewhere.rollback()
    assert [one.line_id for one in claim([line.pk, other.pk], worker="next")] == [line.pk]


@pytest.mark.behaviour("4.11", "11.3")
def test_a_crash_in_flight_repeats_once_and_flags(receiver: Receiver, wanted: Subscription, line: Line) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    _, delivery, number = broker.crash_while_sending(line)
    assert claim([line.pk], worker="other") == []
    recover(line)
    sent = [(request.body, request.sequence, request.is_flagged) for request in receiver.log]
    assert sent == [(b"0", number, True), (b"1", number + 1, False), (b"2", number + 2, False)]
    assert receiver.log[0].delivery_id == delivery.id


@pytest.mark.behaviour("4.10", "4.11")
@pytest.mark.parametrize("times", [1, 2])
def test_after_a_restore_all_that_may_have_been_sent_is_flagged_and_numbers_and_ids_jump_ahead(
    receiver: Receiver, wanted: Subscription, line: Line, times: int
) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    for _ in range(times):
        driven, delivery, _ = broker.crash_while_sending(line)
        call_command("after_restore")
    assert BelievedClock().now() is None  # so nothing expires
    jumped = LineEvent.objects.filter(kind=LineEventKind.NUMBER_UNCERTAIN).latest("id").sequence or 0
    assert jumped > 10_000 * time.time()  # as if it had been sent that many a second since 1970
    with broker.running_worker():
        broker.cut_pauses_until_done()
    sent = [(request.body, request.sequence, request.is_flagged) for request in receiver.log]
    assert sent == [(b"%d" % number, jumped + 1 + number, True) for number in range(3)]
    assert receiver.log[0].delivery_id == delivery.id
    assert Line.objects.get(pk=line.pk).epoch > driven.claim.epoch + MARGIN  # no earlier claim has it
    broker.publish_numbered(wanted.event_type, 1)
    assert Delivery.objects.latest("id").pk > delivery.id + MARGIN


@pytest.mark.behaviour("4.10")
def test_after_a_restore_no_floor_hides_what_waits(storage: None, wanted: Subscription, line: Line) -> None:
    broker.raise_floors()
    execute("SELECT setval('delivery_delivery_id_seq', last_value - 1000) FROM delivery_delivery_id_seq")
    broker.publish_numbered(wanted.event_type, 1)
    assert broker.lines_with_due_work() == []
    call_command("after_restore")
    assert broker.lines_with_due_work() == [line.pk]


@pytest.mark.behaviour("4.10")
def test_after_a_restore_only_lines_that_are_recovered_have_pages(wanted: Subscription) -> None:
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.wait_until_done()
    idle, busy = (broker.line_of(one.subscriber) for one in (wanted, subscription(event_type=wanted.event_type)))
    broker.publish_numbered(wanted.event_type, 1)
    broker.crash_while_sending(busy)
    assert {*PageRead.objects.values_list("line", flat=True)} == {idle.pk, busy.pk}
    call_command("after_restore")
    assert {*PageRead.objects.values_list("line", flat=True)} == {busy.pk}


@pytest.mark.behaviour("4.10")
def test_after_the_restore_of_an_old_dump_the_days_of_its_new_ids_are_there_at_once(wanted: Subscription) -> None:
    for table in ("delivery_message", "delivery_attempt"):
        execute(f"DROP TABLE {leaf_of(table, today())}")
    call_command("after_restore")
    answer = publish(client_of(), event=str(wanted.event_type))
    assert answer.status_code == 202, answer.content


@pytest.mark.behaviour("4.10")
@pytest.mark.parametrize("state", ["55000", "42501"])
@pytest.mark.parametrize(("hidden", "left"), [("pg_control_system", [1, 2, 3]), ("pg_current_wal_lsn", [0, 2, 3])])
def test_a_server_that_hides_its_number_or_its_timeline_can_be_used(
    elsewhere: psycopg.Connection[Any], hidden: str, left: list[int], state: str
) -> None:
    with elsewhere.transaction(force_rollback=True):
        ((known,),) = elsewhere.execute("SELECT string_to_array(database_identity(), '/')").fetchall()
        elsewhere.execute(HIDE.format(hidden=hidden, state=state).encode())
        ((seen,),) = elsewhere.execute("SELECT string_to_array(database_identity(), '/')").fetchall()
    assert (len(known), seen) == (4, [known[part] for part in left])


@pytest.mark.behaviour("4.10")
def test_no_incarnation_begins_before_a_restore_is_finished(elsewhere: psycopg.Connection[Any]) -> None:
    with elsewhere.transaction(force_rollback=True):
        elsewhere.execute("UPDATE delivery_incarnation SET identity = 'of a dump'")
        elsewhere.execute("DROP TRIGGER under_way ON delivery_replay")
        with pytest.raises(psycopg.OperationalError, match="is being restored"):
            Guard()(elsewhere)


@pytest.mark.behaviour("4.10")
def test_a_dump_adds_no_second_incarnation(elsewhere: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        elsewhere.execute("INSERT INTO delivery_incarnation (id, identity) VALUES (gen_random_uuid(), 'of a dump')")
    elsewhere.rollback()


@pytest.mark.behaviour("4.10")
@pytest.mark.parametrize(("looks", "is_noticed"), [(1, False), (2, True)])
def test_ids_that_go_back_are_noticed_unless_a_crash_explains_it(
    storage: None, looks: int, *, is_noticed: bool
) -> None:
    newest = NewestIds()
    assert [newest.went_back() for _ in range(looks)] == [False] * looks
    execute("SELECT setval('delivery_delivery_id_seq', last_value - 1) FROM delivery_delivery_id_seq")
    assert newest.went_back() is is_noticed


@pytest.mark.behaviour("4.11")
def test_a_flag_stays_until_the_delivery_ends(receiver: Receiver, wanted: Subscription, line: Line) -> None:
    receiver.on("/a", answer(503), answer(500), answer())
    broker.publish_numbered(wanted.event_type, 1)
    broker.crash_while_sending(line)
    recover(line)
    assert [request.is_flagged for request in receiver.log] == [True, True, True]


@pytest.mark.behaviour("4.11", "11.3")
def test_a_restarted_worker_takes_back_its_lines(
    receiver: Receiver, wanted: Subscription, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify.breaker, "_open_until", time.monotonic() + 60)  # Redis is away: nobody gives a hint
    broker.publish_numbered(wanted.event_type, 2)
    broker.crash_while_sending(line, worker="sender-1")
    restarted = broker.lone_worker("sender-1")
    restarted.start()
    try:
        broker.wait_until_done(LEASE_SECONDS / 2)
    finally:
        restarted.stop()
    assert [request.is_flagged for request in receiver.log] == [True, False]
    assert not restarted.event_loop.is_alive()


@pytest.mark.behaviour("11.3")
def test_a_worker_drives_what_it_has_woken_and_nobody_takes_up(receiver: Receiver, wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    alone = broker.lone_worker("alone")  # Redis takes its hints, and there is no Celery to read them
    alone.start()
    try:
        broker.wait_until_done()
    finally:
        alone.stop()
    assert receiver.bodies("/a") == [b"0", b"1"]


@pytest.mark.behaviour("4.11")
def test_a_worker_on_a_machine_suspended_before_its_request_sends_nothing(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, clock, suspensions = Slot.start, boot_clock.since_boot, 0

    def suspended_before(slot: Slot, delivery: Outgoing, sequence: int, *, at: datetime) -> None:
        nonlocal suspensions
        suspensions += suspensions < SUSPENSIONS
        start(slot, delivery, sequence, at=at)

    monkeypatch.setattr(boot_clock, "since_boot", lambda: clock() + suspensions * 2 * REQUEST_DEADLINE_SECONDS)
    monkeypatch.setattr(Slot, "start", suspended_before)
    broker.publish_numbered(wanted.event_type, 3)
    with broker.running_worker():
        broker.cut_pauses_until_done()
    late = [(number, None) for number in range(1, SUSPENSIONS + 1)]
    first, *others = [broker.attempts_of(delivery.pk) for delivery in Delivery.objects.oldest_first()]
    assert (first, others) == ([*late, (SUSPENSIONS + 1, 200)], [[(1, 200)]] * 2)
    assert [(request.body, request.is_flagged) for request in receiver.log] == [
        (b"0", False),
        (b"1", False),
        (b"2", False),
    ]


def has_received(receiver: Receiver, number: int) -> bool:
    return len(receiver.log) == number


@pytest.mark.lengthy
@pytest.mark.behaviour("4.11", "4.16")
def test_a_machine_suspended_during_its_requests_repeats_one_each_time(
    receiver: Receiver, wanted: Subscription, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that it goes on, what it had sent is another worker's: it ends the request."""
    clock, suspensions = boot_clock.since_boot, 0
    monkeypatch.setattr(boot_clock, "since_boot", lambda: clock() + suspensions * 2 * LEASE_SECONDS)
    receiver.on("/a", *[hang] * SUSPENSIONS, answer())
    broker.publish_numbered(wanted.event_type, 2)
    with broker.running_worker():
        for number in range(1, SUSPENSIONS + 1):
            wait_until(partial(has_received, receiver, number))
            suspensions = number
            broker.expire_lease(line)  # by the database's clock, too
        broker.wait_until_done()
    assert [(request.body, request.is_flagged) for request in receiver.log] == [
        (b"0", False),
        *[(b"0", True)] * SUSPENSIONS,
        (b"1", False),
    ]
    assert {request.headers["webhook-id"] for request in receiver.of("/a")[: SUSPENSIONS + 1]} == {
        f"dlv_{Delivery.objects.oldest_first()[0].pk}"
    }


@pytest.mark.behaviour("4.11", "11.3")
def test_a_stopped_worker_finishes_its_request(
    receiver: Receiver, wanted: Subscription, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify.breaker, "_open_until", time.monotonic() + 60)
    gate = receiver.gate("/a")
    broker.publish_numbered(wanted.event_type, 3)
    stopped = broker.lone_worker("stopped")
    stopped.start()
    wait_until(lambda: receiver.log)
    stopping = threading.Thread(target=stopped.stop)
    stopping.start()
    wait_until(lambda: stopped.event_loop.lines.free_places()[0] == 0)
    gate.open()
    stopping.join()
    line.refresh_from_db()
    assert (broker.statuses(wanted), line.lease_until, line.last_sequence) == ([DELIVERED, PENDING, PENDING], None, 1)
    with broker.running_worker():
        broker.wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2"]
    assert not any(request.is_flagged for request in receiver.log)


@pytest.mark.behaviour("4.11", "4.16")
@pytest.mark.parametrize("is_stopping", [True, False], ids=["stops", "had the name of another"])
def test_a_worker_with_a_request_in_flight_keeps_its_lines_from_another_of_its_name(
    receiver: Receiver, wanted: Subscription, line: Line, monkeypatch: pytest.MonkeyPatch, *, is_stopping: bool
) -> None:
    monkeypatch.setattr(process, "NAME_SECONDS", 0.5)
    gate = receiver.gate("/a")
    earlier, busy, later = (broker.lone_worker("twin") for _ in range(3))
    if not is_stopping:
        earlier.start()
        assert earlier.wait_until_started()
    busy.start()
    assert busy.wait_until_started()
    if not is_stopping:
        earlier.stop()
        wait_until(partial(execute, NAMED, ["twin"]))
    broker.publish_numbered(wanted.event_type, 2)
    wait_until(lambda: receiver.log)
    stopping = threading.Thread(target=busy.stop)
    try:
        if is_stopping:
            stopping.start()
            wait_until(lambda: busy.event_loop.lines.free_places()[0] == 0)
        later.start()
        assert later.wait_until_started()
        assert claim([line.pk], worker="other") == []
        gate.open()
        broker.wait_until_done()
    finally:
        gate.open()
        (stopping.join if is_stopping else busy.stop)()
        later.stop()
    assert [(request.body, request.is_flagged) for request in receiver.log] == [(b"0", False), (b"1", False)]


def test_another_name_takes_nothing_back(wanted: Subscription, line: Line) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    broker.crash_while_sending(line, worker="sender-1")
    assert end_leases_of("sender-2") == 0
    assert (end_leases_of("sender-1"), len(claim([line.pk], worker="sender-2"))) == (1, 1)


@pytest.mark.behaviour("11.9")
def test_a_locked_line_keeps_no_worker_from_starting_again(
    wanted: Subscription, line: Line, elsewhere: psycopg.Connection[Any]
) -> None:
    other = broker.line_of(subscription(event_type=wanted.event_type).subscriber)
    broker.publish_numbered(wanted.event_type, 1)
    for one in (line, other):
        broker.crash_while_sending(one, worker="again")
    elsewhere.execute("SELECT FROM delivery_line WHERE id = %s FOR UPDATE", [line.pk])
    assert end_leases_of("again") == 1
    assert [one.line_id for one in claim([line.pk, other.pk], worker="again")] == [other.pk]


@pytest.mark.behaviour("4.1", "4.11")
@pytest.mark.parametrize("late", [200, 404, 500, 503])
@pytest.mark.parametrize("others", [["other"], []], ids=["another worker", "the same worker"])
def test_an_expired_lease_settles_nothing(
    receiver: Receiver, wanted: Subscription, line: Line, late: int, others: list[str]
) -> None:
    gate = receiver.gate("/a", answer(late), answer(201))
    with broker.running_worker("frozen") as frozen, contextlib.ExitStack() as taking_over:
        broker.publish_numbered(wanted.event_type, 3)
        wait_until(lambda: receiver.log)
        for other in others:
            taking_over.enter_context(broker.running_worker(other))
        broker.expire_lease(line)
        broker.wait_until_done()
        taking_over.close()
        gate.open()
        wait_until(lambda: frozen.event_loop.budget._left == MAX_PROCESS_BYTES and receiver.log[0].ended)
    assert receiver.bodies("/a") == [b"0", b"0", b"1", b"2"]
    assert [request.is_flagged for request in receiver.log] == [False, True, False, False]
    assert [request.sequence for request in receiver.log] == [1, 1, 2, 3]
    assert (broker.statuses(wanted), broker.attempts_of(receiver.log[0].delivery_id)) == ([DELIVERED] * 3, [(1, 201)])


@pytest.mark.behaviour("4.1", "4.11")
def test_two_workers_never_send_for_one_line_at_the_same_time(receiver: Receiver, storage: None) -> None:
    wanted = [subscription(endpoint=receiver.url(f"/{number}")) for number in range(5)]
    lines = [*Line.objects.values_list("pk", flat=True)]
    with broker.running_worker("one", find=lambda: lines), broker.running_worker("other", find=lambda: lines):
        for first in range(0, 40, 4):
            for one in wanted:
                broker.publish_numbered(one.event_type, 4, first)
        broker.wait_until_done()
    for number in range(5):
        assert receiver.bodies(f"/{number}") == [b"%d" % body for body in range(40)]
        assert receiver.max_at_once[f"/{number}"] == 1
        assert [request.sequence for request in receiver.of(f"/{number}")] == [*range(1, 41)]


@pytest.mark.behaviour("4.10", "4.11")
def test_only_unanswered_deliveries_are_repeated(receiver: Receiver, wanted: Subscription, line: Line) -> None:
    broker.publish_numbered(wanted.event_type, 5)
    driven = claimed(line)
    assert go_on_and_vanish(driven, settled=3) == 4
    deliveries = broker.outgoing_of(driven.claim)
    assert (broker.line_of(wanted.subscriber).last_sequence, len(deliveries)) == (0, 1)
    recover(line)
    sent = [(request.body, request.sequence, request.is_flagged) for request in receiver.log]
    assert sent == [(b"3", 4, True), (b"4", 5, False)]


@pytest.mark.behaviour("4.10")
@pytest.mark.parametrize(("days", "crashes_again"), [(0, False), (4, False), (4, True)])
def test_numbers_go_on_after_filed_deliveries(
    receiver: Receiver, wanted: Subscription, line: Line, days: int, *, crashes_again: bool
) -> None:
    today = datetime.now(UTC)
    then = today - timedelta(days=days)
    open_days(then.date(), ahead=0)
    broker.publish_numbered(wanted.event_type, 2)
    driven, delivery, number = broker.crash_while_sending(line)
    broker.settle(driven, settlements=[broker.settlement(driven, delivery)])
    Delivery.objects.filter(pk=delivery.id).update(closed_on=then.date(), finished_at=then)
    Line.objects.filter(pk=line.pk).update(lease_until=then)
    if crashes_again:
        open_days((today - timedelta(days=1)).date(), ahead=0)
        assert claimed(line, worker="vanished at once").numbers.last == number
    recover(line)
    assert [request.sequence for request in receiver.log] == [number + 1]


@pytest.mark.behaviour("4.10")
def test_the_delivery_in_flight_goes_before_an_older_one(receiver: Receiver, wanted: Subscription, line: Line) -> None:
    broker.publish_bodies(wanted.event_type, b"older", b"in flight", b"newer")
    Delivery.objects.filter(message__in=_message_of(b"older")).update(line_id=0)  # not committed yet
    broker.crash_while_sending(line)
    Delivery.objects.filter(line_id=0).update(line_id=line.pk)
    recover(line)
    assert receiver.bodies("/a") == [b"in flight", b"older", b"newer"]
    assert [request.sequence for request in receiver.log] == [1, 2, 3]


def _message_of(body: bytes) -> list[int]:
    return [
        row.message_id
        for row in Delivery.objects.select_related("message")
        if row.message_id and row.message and bytes(row.message.body) == body
    ]


@pytest.mark.behaviour("4.10", "1.8")
def test_a_delivery_cancelled_in_flight_is_in_the_history(receiver: Receiver, wanted: Subscription, line: Line) -> None:
    beside = subscription(subscriber=wanted.subscriber, endpoint=receiver.url("/b"))
    broker.publish_numbered(wanted.event_type, 1)
    _, delivery, number = broker.crash_while_sending(line)
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    broker.publish_numbered(beside.event_type, 1)
    recover(line)
    assert [(request.path, request.sequence) for request in receiver.log] == [("/b", number + 1)]
    assert broker.statuses(wanted) == [CANCELLED]
    assert [*LineEvent.objects.values_list("kind", "sequence", "delivery_id")] == [
        (LineEventKind.NUMBER_UNCERTAIN, number, delivery.id)
    ]


@pytest.mark.behaviour("4.10", "1.8")
def test_an_abandoned_and_cancelled_one_is_recorded(receiver: Receiver, wanted: Subscription, line: Line) -> None:
    receiver.close_port()
    broker.publish_numbered(wanted.event_type, 1)
    _, _, number = broker.crash_while_sending(line)
    broker.expire_lease(line)
    with broker.running_worker():
        wait_until(broker.holds_of(wanted.subscriber).filter(failures=1).exists)
        assert Delivery.objects.get().sequence == number
        cancel_deliveries_of(wanted.pk, reason="unwanted")
        receiver.open_port()
        broker.publish_numbered(wanted.event_type, 1)
        broker.wait_until_done()
    assert [request.sequence for request in receiver.log] == [number + 1]
    assert [*LineEvent.objects.values_list("sequence", flat=True)] == [number]
