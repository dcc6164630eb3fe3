"""A TOPIC line as a pure generator: what no story over the real database shows (contract 1.4, 4.6 to 4.8, 5.6)."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from broker_project.core import boot_clock
from delivery.dispatch.claim import ActiveHold, Claim
from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.limits import MAX_PROCESS_BYTES
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer, SlotShares
from delivery.worker.line import ActiveLine
from delivery.worker.rounds import NO_LINK
from delivery.worker.slots import Read, Reply, RequestSent, Rest, Send, Slot, Step, Transform, Wait
from delivery.worker.topic import topic_line
from subscriptions.scripting.jobs import NotRun
from tests.support.factories import deferred_deliveries, fresh_deliveries, outgoing

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def resumed(slot: Slot, reply: Reply) -> Step:
    """Resume a slot as a round does; return what it wants next."""
    slot.step = slot.generator.send(reply)
    return slot.step


def a_line(slots: int = 1, lane: str = "main", *, held: int | None = None, failures: int = 0) -> ActiveLine:
    """Return a line whose slots have asked for something to read."""
    holds = [ActiveHold(1, held, "", failures, 0.0, boot_clock.since_boot())] if held else []
    claim = Claim(1, lane, "topic", 1, 10, deferred_next=False, capacity=500, concurrency=slots, holds=holds)
    line = ActiveLine(claim, NO_LINK, boot_clock.since_boot(), slot_shares=SlotShares(slots))
    line.slots = [Slot(line) for _ in range(slots)]
    for slot in line.slots:
        slot.generator = topic_line(slot, lambda: 0.0)
        assert resumed(slot, None) == Read()
    return line


def answered(status: int) -> RequestSent:
    return RequestSent(Answer(None, status, b"", b"", 3), NOW)


def unanswered(*, was_sent: bool) -> RequestSent:
    return RequestSent(Answer(None, 0, b"", b"", 3, RequestNotCompleted("gone", was_sent=was_sent)), NOW)


def to(number: int, **destination: object) -> Outgoing:
    """Return a delivery to a destination with these fields."""
    delivery = outgoing(number)
    return replace(delivery, destination=replace(delivery.destination, **destination))  # type: ignore[arg-type]


def receive(line: ActiveLine, *deliveries: Outgoing) -> list[Step]:
    """Give the line these to send; return what each of its slots wants then."""
    line.receive(Buffer(fresh=deliveries))
    return [resumed(slot, None) for slot in line.slots]


def test_a_line_lingers_where_there_was_no_room_for_what_its_script_made() -> None:
    line, scripted = a_line(), to(1, script="1")
    for _ in range(3):
        assert receive(line, scripted) == [Transform(scripted)]
        line.return_buffer(BodyBudget(MAX_PROCESS_BYTES))
        assert resumed(line.slots[0], NotRun()) == Read(linger=True)
    line.stopping = True
    assert receive(line, scripted) == [Rest()]


@pytest.mark.behaviour("1.4", "4.6")
@pytest.mark.parametrize("waits_for_its_rate", [True, False])
def test_a_held_delivery_has_had_its_turn(*, waits_for_its_rate: bool) -> None:
    new, stuck = fresh_deliveries(1, 2, 3), deferred_deliveries(7, 8, 9)
    head: Outgoing | None = None
    deferred_next, order = False, list[int]()
    for _ in range(6):
        line = a_line(held=head.id if head else None)
        line.deferred_next = deferred_next
        if head:
            line.passed(head)
        taken = Buffer(fresh=new, deferred=stuck).take(deferred_next=line.deferred_next)
        assert taken
        (stuck if taken.is_deferred else new).remove(taken)
        if waits_for_its_rate:
            line.hold(taken, 900.0)
        else:
            line.hold(taken, 1.0, "answered 503")
        order.append(taken.id)
        head, deferred_next = taken, line.deferred_next
    assert order == [1, 7, 2, 8, 3, 9]


def sent(steps: Iterable[Step]) -> list[int]:
    return [step.delivery.id for step in steps if isinstance(step, Send)]


@pytest.mark.behaviour("4.13", "5.6")
@pytest.mark.parametrize(("slots", "wants"), [(3, [Send, Send, Read]), (1, [Send])])
def test_a_trial_is_one_request_and_the_others_go_on_beside_it(slots: int, wants: list[type[Step]]) -> None:
    line = a_line(slots)
    tried = [to(number, subscription_id=1, half_open=True, concurrency=slots) for number in (1, 2, 3)]
    steps = receive(line, *tried, to(4, subscription_id=2, concurrency=slots))
    assert ([type(step) for step in steps], sent(steps)) == (wants, [1, 4][:slots])
    resumed(line.slots[0], answered(503))
    assert {one.delivery_id: one.failures for one in line.holds.changed.values()} == {1: 1}


@pytest.mark.behaviour("1.4", "4.13", "5.6")
def test_a_trial_that_waits_for_its_rate_is_not_tried_yet() -> None:
    line, half_open = a_line(2), to(1, spacing=1000.0, concurrency=2, half_open=True)
    line.rate_limiter.learn(half_open.destination, 900.0, boot_clock.since_boot())
    receive(line, half_open)
    assert ([*line.left_out], line.may_try(half_open)) == ([1], True)


@pytest.mark.behaviour("1.4", "4.13")
@pytest.mark.parametrize(("seconds", "wants"), [(0.05, Wait), (0.5, Read)])
def test_in_a_turn_that_is_over_a_slot_waits_a_moment_for_its_rate(seconds: float, wants: type[Step]) -> None:
    line, limited = a_line(2), to(1, spacing=1.0, concurrency=2)
    now = boot_clock.since_boot()
    line.is_over, line.slots[0].waiting_since = True, now - 1.0
    line.rate_limiter.learn(limited.destination, seconds, now)
    line.receive(Buffer(fresh=[limited]))
    assert isinstance(resumed(line.slots[1], None), wants)


@pytest.mark.behaviour("1.4", "4.7", "4.8")
@pytest.mark.parametrize(("lane", "held", "left_out"), [("main", 1, []), ("main", None, [1]), ("retry", None, [1])])
def test_a_hold_lasts_while_its_head_waits_for_its_rate(lane: str, held: int | None, left_out: list[int]) -> None:
    line, limited = a_line(2, lane, held=held, failures=3), to(1, spacing=1000.0, concurrency=2)
    line.rate_limiter.learn(limited.destination, 900.0, boot_clock.since_boot())
    line.receive(Buffer(heads=[limited]))
    assert (resumed(line.slots[0], None), [*line.left_out]) == (Rest() if held else Read(), left_out)
    holds = [(one.delivery_id, one.failures, round(one.pause or 0)) for one in line.holds.changed.values()]
    assert holds == ([(held, 3, 900)] if held else [])
