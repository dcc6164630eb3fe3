"""Settling: once, under the epoch, whole, and beside people who cancel (behaviour 4.10, 4.11)."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import DataError, connection, transaction

from broker_project.core.db import forget_connection
from delivery.dispatch.claim import claim
from delivery.models import Attempt, Delivery, Lane, Line, LineEvent, LineEventKind
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from delivery.worker import pending_settles
from delivery.worker.pending_settles import Batch, DatabaseBackoff, PendingSettles
from delivery.worker.settle import Needs, settle, settle_statement
from delivery.worker.settlements import Settled
from delivery.worker.steps import Hold, Rest, Send
from subscriptions.models import Subscription
from tests.driving import (
    NO_ANSWER,
    attempts_of,
    begin_and_vanish,
    hand_of,
    line_of,
    publish_numbered,
    settlement,
    statuses,
)
from tests.factories import subscription
from tests.receiver import PATIENCE, wait_until

CANCELLED, DELIVERED, PENDING = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.PENDING
IN_FLIGHT = DeliveryStatus.IN_FLIGHT


@pytest.fixture
def wanted(storage: None) -> Subscription:
    return subscription()


@pytest.mark.behaviour("4.11")
def test_settling_twice_is_settling_once(wanted: Subscription) -> None:
    publish_numbered(wanted.event_type, 2)
    line, delivery, _ = begin_and_vanish(line_of(wanted.subscriber))
    ended = settlement(line, delivery)
    first = settle({line.id: line.claim.epoch}, settlements=[ended])
    again = settle({line.id: line.claim.epoch}, settlements=[ended])
    assert (first.ended, again.ended, again.owned) == (frozenset({delivery.id}), frozenset(), frozenset({line.id}))
    assert (statuses(wanted), attempts_of(delivery.id)) == ([DELIVERED, PENDING], [(1, 200)])
    assert bytes(Attempt.objects.get().answer_excerpt) == b"\x00\xff"


@pytest.mark.behaviour("4.11")
def test_an_older_epoch_settles_marks_and_writes_nothing(wanted: Subscription) -> None:
    publish_numbered(wanted.event_type, 2)
    line, delivery, _ = begin_and_vanish(line_of(wanted.subscriber))
    following = Delivery.objects.open().get(status=PENDING)
    before = [*Delivery.objects.order_by("id").values()], line_of(wanted.subscriber).epoch
    old = line.claim.epoch - 1
    settled = settle(
        {line.id: old},
        settlements=[settlement(line, delivery)],
        marks=[line.mark(delivery)],
        states=[line.state(let_go=True)],
    )
    assert (settled.owned, settled.ended, settled.started) == (frozenset(), frozenset(), {})
    assert ([*Delivery.objects.order_by("id").values()], line_of(wanted.subscriber).epoch) == before
    assert (Attempt.objects.count(), following.sequence) == (0, None)
    assert line_of(wanted.subscriber).lease_until is not None


def test_nothing_is_marked_that_is_not_as_it_was_read(wanted: Subscription) -> None:
    publish_numbered(wanted.event_type, 1)
    line, delivery, _ = begin_and_vanish(line_of(wanted.subscriber))
    settle({line.id: line.claim.epoch}, settlements=[settlement(line, delivery, PENDING)])
    Subscription.objects.filter(pk=wanted.pk).update(endpoint="http://127.0.0.1:9/other")
    assert settle({line.id: line.claim.epoch}, marks=[line.mark(delivery)]).started == {}
    assert statuses(wanted) == [PENDING]


@pytest.mark.behaviour("1.8", "10.1")
@pytest.mark.parametrize(
    ("answered", "end"),
    [
        ({}, DELIVERED),
        ({"status": DeliveryStatus.REJECTED, "status_code": 404}, DeliveryStatus.REJECTED),
        ({"status": PENDING, "status_code": 500, "pause": 1.0}, CANCELLED),
        ({"status": PENDING, "status_code": 503}, CANCELLED),
        (NO_ANSWER, CANCELLED),
    ],
)
def test_what_is_cancelled_under_way_ends_so_unless_its_answer_ends_it(
    wanted: Subscription, answered: dict[str, Any], end: DeliveryStatus
) -> None:
    publish_numbered(wanted.event_type, 3)
    line, delivery, _ = begin_and_vanish(line_of(wanted.subscriber))
    assert cancel_deliveries_of(wanted.pk, reason="unwanted") == (2, 1)
    assert statuses(wanted) == [IN_FLIGHT, CANCELLED, CANCELLED]
    settle({line.id: line.claim.epoch}, settlements=[settlement(line, delivery, **answered)])
    assert statuses(wanted) == [end, CANCELLED, CANCELLED]
    assert len(attempts_of(delivery.id)) == 1


@pytest.mark.behaviour("4.10")
def test_cancelling_what_may_not_have_arrived_is_told_in_the_history(wanted: Subscription) -> None:
    publish_numbered(wanted.event_type, 1)
    line, delivery, number = begin_and_vanish(line_of(wanted.subscriber))
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    settle({line.id: line.claim.epoch}, settlements=[settlement(line, delivery, **NO_ANSWER)])
    assert [*LineEvent.objects.values_list("line", "kind", "sequence", "delivery_id")] == [
        (line.id, LineEventKind.NUMBER_UNCERTAIN, number, delivery.id)
    ]


@pytest.mark.behaviour("4.10")
def test_a_request_that_never_left_gives_its_number_back(wanted: Subscription) -> None:
    publish_numbered(wanted.event_type, 1)
    line, delivery, number = begin_and_vanish(line_of(wanted.subscriber))
    assert number == 1
    unsent = settlement(line, delivery, PENDING, status_code=None, unsent=True)
    settle({line.id: line.claim.epoch}, settlements=[unsent])
    assert Delivery.objects.get().sequence is None
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    assert (Delivery.objects.get().sequence, LineEvent.objects.count()) == (None, 0)


OWNED = "owned AS MATERIALIZED (\n  SELECT l.id FROM delivery_line l"
LATE = "owned AS MATERIALIZED (\n  SELECT l.id FROM (SELECT pg_advisory_xact_lock_shared(7)) AS wait, delivery_line l"


def in_thread(act: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        try:
            act()
        finally:
            forget_connection()

    return threading.Thread(target=run)


def overtaken(act: Callable[[], object], by: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `by` be committed after the statement of `act` has begun, and before it locks its lines."""
    assert settle_statement(Needs(stays=True, writes=True)).count(OWNED) == 1
    monkeypatch.setattr(
        "delivery.worker.settle.settle_statement", lambda needs: settle_statement(needs).replace(OWNED, LATE)
    )
    thread = in_thread(act)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(7)")
        thread.start()
        wait_until(_somebody_waits)
        by()
        cursor.execute("SELECT pg_advisory_unlock(7)")
    thread.join(PATIENCE)
    assert not thread.is_alive()


def ask_to_cancel(delivery_id: int) -> None:
    Delivery.objects.filter(pk=delivery_id).update(cancel_requested=True)


def _somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE NOT granted AND locktype = 'advisory' AND datname = current_database()"
        )
        count: int = cursor.fetchone()[0]
        return count > 0


@pytest.mark.behaviour("1.8", "4.11")
@pytest.mark.parametrize(
    ("answered", "end"), [({}, DELIVERED), (NO_ANSWER, CANCELLED), ({"status": PENDING, "pause": 1.0}, CANCELLED)]
)
def test_a_settle_that_a_cancel_overtakes_misses_nothing(
    wanted: Subscription, answered: dict[str, Any], end: DeliveryStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbered(wanted.event_type, 1)
    line, delivery, _ = begin_and_vanish(line_of(wanted.subscriber))
    batch = Batch([(line.strands[0], Rest(settlement(line, delivery, **answered)))], of_groups=False)
    overtaken(batch.settle, lambda: cancel_deliveries_of(wanted.pk, reason="unwanted"), monkeypatch)
    assert (statuses(wanted), len(attempts_of(delivery.id))) == ([end], 1)
    assert line_of(wanted.subscriber).lease_until is None


@pytest.mark.behaviour("1.8", "4.11")
def test_what_a_settle_misses_of_a_line_that_is_locked_again_is_settled_later(
    wanted: Subscription, elsewhere: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled_again_after_it(*args: Any, **kwargs: Any) -> Settled:
        settled = settle(*args, **kwargs)
        elsewhere.execute("SELECT FROM delivery_line FOR NO KEY UPDATE SKIP LOCKED")
        return settled

    publish_numbered(wanted.event_type, 2)
    line, delivery, _ = begin_and_vanish(line_of(wanted.subscriber))
    (following,) = hand_of(line.claim)
    step = Send(settlement(line, delivery, **NO_ANSWER), following)
    unsettled = PendingSettles(DatabaseBackoff())
    unsettled.add(line.strands[0], step)
    monkeypatch.setattr(pending_settles, "settle", cancelled_again_after_it)
    overtaken(lambda: [*unsettled.settle()], lambda: ask_to_cancel(delivery.id), monkeypatch)

    assert (statuses(wanted), unsettled.locked) == ([IN_FLIGHT, IN_FLIGHT], [(line.strands[0], step)])
    assert line.strands[0].may_be_marked
    elsewhere.rollback()
    unsettled.take_locked()
    ((_, _, settled),) = unsettled.settle()
    assert settled
    assert (statuses(wanted), [*settled.started]) == ([CANCELLED, IN_FLIGHT], [following.id])


@pytest.mark.behaviour("4.11")
def test_a_line_is_not_let_go_before_what_it_had_under_way_is_settled(
    wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbered(wanted.event_type, 1)
    line, delivery, _ = begin_and_vanish(line_of(wanted.subscriber))
    line.holds(delivery, Hold(1.0, "no answer", delivery.destination.stamp))
    held = line.state(let_go=True)
    missed = settlement(line, delivery, **NO_ANSWER)
    overtaken(
        lambda: settle({line.id: line.claim.epoch}, settlements=[missed], states=[held]),
        lambda: cancel_deliveries_of(wanted.pk, reason="unwanted"),
        monkeypatch,
    )
    assert (statuses(wanted), claim([line.id], worker="other")) == ([IN_FLIGHT], [])


@pytest.mark.behaviour("4.1")
def test_a_line_that_somebody_has_locked_is_left_out_and_holds_nobody_up(wanted: Subscription) -> None:
    other = subscription(event_type=wanted.event_type)
    publish_numbered(wanted.event_type, 1)
    both = [begin_and_vanish(line_of(one.subscriber)) for one in (wanted, other)]
    epochs = {line.id: line.claim.epoch for line, _, _ in both}
    ended = [settlement(line, delivery) for line, delivery, _ in both]
    seen: list[Settled] = []
    thread = in_thread(lambda: seen.append(settle(epochs, settlements=ended)))
    with transaction.atomic():
        Line.objects.select_for_update(no_key=True).get(subscriber=wanted.subscriber, lane=Lane.MAIN)
        thread.start()
        thread.join(PATIENCE)
    assert [(one.owned, one.locked) for one in seen] == [(frozenset({both[1][0].id}), frozenset({both[0][0].id}))]
    assert (statuses(wanted), statuses(other)) == ([IN_FLIGHT], [DELIVERED])
    assert settle(epochs, settlements=ended).ended == frozenset({both[0][1].id})


@pytest.mark.behaviour("10.2")
def test_a_settle_the_database_refuses_leaves_everything_as_it_was(wanted: Subscription) -> None:
    publish_numbered(wanted.event_type, 1)
    line, delivery, _ = begin_and_vanish(line_of(wanted.subscriber))
    with pytest.raises(DataError, match="out of range"):
        settle({line.id: line.claim.epoch}, settlements=[settlement(line, delivery, duration_ms=2**31)])
    assert (statuses(wanted), Attempt.objects.count()) == ([IN_FLIGHT], 0)
