"""A TOPIC line as a pure generator: fed with made-up answers, without database or network (contract 4)."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import requests

from delivery.dispatch.claim import Claim
from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.limits import MAX_PROCESS_BYTES
from delivery.retry import policy_of
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.steps import (
    Hold,
    NotStarted,
    Read,
    Reply,
    RequestSent,
    Rest,
    Send,
    Settlement,
    SideEffects,
    Step,
    Transform,
    Turn,
)
from delivery.worker.topic import topic_line
from subscriptions.retry_policies import PRESETS, OnExhausted
from subscriptions.scripting.jobs import NotRun
from tests.support.factories import deferred_deliveries, fresh_deliveries, outgoing

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DELIVERED, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.PENDING


def a_line(*, seconds: float = 60.0, head: int | None = None, failures: int = 0) -> ActiveLine:
    claim = Claim(
        1, "main", "topic", 1, last_sequence=10, head_id=head, failures=failures, deferred_next=False, capacity=500
    )
    line = ActiveLine(claim, Turn([1], seconds), time.monotonic())
    line.slots = [Slot(line)]
    line.slots[0].generator = topic_line(line.slots[0], lambda: 0.0)
    return line


def answered(status: int, head: bytes = b"") -> RequestSent:
    response = requests.Response()
    response.status_code = status
    response._content = b""
    return RequestSent(Answer(None, response, head, 3), NOW)


def unanswered(*, was_sent: bool) -> RequestSent:
    return RequestSent(Answer(None, RequestNotCompleted("gone", was_sent=was_sent), b"", 3), NOW)


def go(line: ActiveLine, reply: Reply = None, hand: Buffer[Outgoing] | None = None) -> Step:
    """Give the line what it waits for; return what it wants next."""
    if hand is not None:
        line.receive(hand)
    return line.slots[0].advance(reply)


def send(step: Step) -> Outgoing:
    assert isinstance(step, Send)
    return step.delivery


def run(line: ActiveLine, hand: Buffer[Outgoing], statuses: Sequence[int]) -> tuple[list[int], Step]:
    """Answer one request after the other; return the ids sent and the step after the last answer."""
    assert isinstance(go(line), Read)
    step = go(line, hand=hand)
    sent = []
    for status in statuses:
        sent.append(send(step).id)
        step = go(line, answered(status))
    return sent, step


@pytest.mark.behaviour("11.1")
@pytest.mark.parametrize("more", [False, True], ids=["no work", "no room for bodies"])
def test_a_line_that_gets_nothing_lingers_until_its_turn_ends(*, more: bool) -> None:
    line = a_line()
    assert go(line) == Read(None)
    for _ in range(5):
        assert go(line, hand=Buffer(more=more)) == Read(None, linger=True)
    line.stopping = True
    assert go(line, hand=Buffer(more=more)) == Rest(None)


def test_a_line_that_lingers_sends_what_comes() -> None:
    line = a_line()
    go(line)
    go(line, hand=Buffer())
    assert send(go(line, hand=Buffer(fresh=fresh_deliveries(1)))).id == 1
    assert isinstance(go(line, answered(200)), Read)


def test_a_line_lingers_where_there_was_no_room_for_what_its_script_made() -> None:
    line = a_line()
    go(line)
    delivery = outgoing(1)
    scripted = replace(delivery, destination=replace(delivery.destination, script="1"))
    for _ in range(3):
        assert go(line, hand=Buffer(fresh=[scripted])) == Transform(None, scripted)
        line.return_all(BodyBudget(MAX_PROCESS_BYTES))
        assert go(line, NotRun()) == Read(None, linger=True)
    line.stopping = True
    assert go(line, hand=Buffer(fresh=[scripted])) == Rest(None)


@pytest.mark.behaviour("4.1", "4.3")
def test_a_settlement_travels_with_the_next_request() -> None:
    line = a_line()
    sent, step = run(line, Buffer(fresh=fresh_deliveries(1, 2, 3)), [200, 200])
    assert (sent, send(step).id) == ([1, 2], 3)
    assert isinstance(step, Send)
    assert isinstance(step.ended, Settlement)
    assert (step.ended.delivery_id, step.ended.status, step.ended.status_code) == (2, DELIVERED, 200)


@pytest.mark.behaviour("4.4", "4.5", "4.6")
@pytest.mark.parametrize(
    ("status", "becomes", "pause"),
    [
        (302, DeliveryStatus.NOT_SUPPORTED, None),
        (404, DeliveryStatus.REJECTED, None),
        (500, PENDING, 1.0),
        (999, PENDING, 1.0),
    ],
)
def test_other_failures_let_the_next_go(status: int, becomes: DeliveryStatus, pause: float | None) -> None:
    sent, step = run(a_line(), Buffer(fresh=fresh_deliveries(1, 2)), [status])
    assert isinstance(step, Send)
    assert step.ended
    assert (sent, step.delivery.id, step.ended.status, step.ended.pause) == ([1], 2, becomes, pause)


@pytest.mark.behaviour("4.7", "4.8")
@pytest.mark.parametrize(
    ("reply", "pause", "reason", "last_sequence"),
    [
        (answered(503), 1.0, "answered 503", 10),
        (answered(503, b"HTTP/1.1 503\r\nRetry-After: 30\r\n"), 30.0, "answered 503", 10),
        (unanswered(was_sent=True), 1.0, "no answer: gone", 10),
        (unanswered(was_sent=False), 1.0, "no answer: gone", 9),
    ],
)
def test_a_held_line_rests_with_its_head(reply: RequestSent, pause: float, reason: str, last_sequence: int) -> None:
    line = a_line()
    assert isinstance(go(line), Read)
    step = go(line, hand=Buffer(fresh=fresh_deliveries(1, 2)))
    assert send(step).id == 1
    rest = go(line, reply)
    assert isinstance(rest, Rest)
    assert rest.ended
    assert line.hold
    assert (line.hold.pause, line.hold.reason, rest.ended.status) == (pause, reason, PENDING)
    assert (line.head_id, line.failures, line.last_sequence) == (1, 1, last_sequence)


@pytest.mark.behaviour("4.10")
def test_only_a_number_given_for_a_request_that_never_left_is_given_back() -> None:
    known = outgoing(1)
    known = Outgoing(**{name: getattr(known, name) for name in Outgoing.__slots__} | {"sequence": 4})
    for delivery, was_sent, sequence_unused in [
        (outgoing(1), False, True),
        (outgoing(1), True, False),
        (known, False, False),
    ]:
        line = a_line()
        go(line)
        go(line, hand=Buffer(fresh=[delivery]))
        rest = go(line, unanswered(was_sent=was_sent))
        assert isinstance(rest, Rest)
        assert isinstance(rest.ended, Settlement)
        assert (rest.ended.sequence_unused, rest.ended.uncertain, line.last_sequence) == (
            sequence_unused,
            was_sent,
            10 - sequence_unused,
        )


@pytest.mark.behaviour("4.8")
def test_failures_add_up_while_the_head_is_the_same_and_end_with_success() -> None:
    line = a_line(head=1, failures=4)
    sent, step = run(line, Buffer(head=outgoing(1), fresh=fresh_deliveries(2)), [503])
    assert isinstance(step, Rest)
    assert line.hold
    assert (sent, line.hold.pause, line.failures) == ([1], 16.0, 5)
    line = a_line(head=1, failures=4)
    run(line, Buffer(head=outgoing(1), fresh=fresh_deliveries(2)), [200])
    assert (line.head_id, line.failures) == (None, 0)


@pytest.mark.behaviour("4.9")
def test_a_head_that_may_not_be_sent_any_more_holds_nothing_up() -> None:
    line = a_line(head=1, failures=4)
    sent, _ = run(line, Buffer(fresh=fresh_deliveries(2, 3)), [200])
    assert (sent, line.head_id, line.failures) == ([2], None, 0)


@pytest.mark.behaviour("4.6")
def test_new_and_stuck_take_turns_even_from_turn_to_turn() -> None:
    line = a_line()
    sent, _ = run(
        line, Buffer(fresh=fresh_deliveries(1, 2, 3), deferred=deferred_deliveries(7, 8, 9)), [200, 500, 404, 200]
    )
    assert (sent, line.deferred_next) == ([1, 7, 2, 8], False)
    line = a_line()
    run(line, Buffer(fresh=fresh_deliveries(1, 2), deferred=deferred_deliveries(7)), [500])
    assert line.deferred_next


@pytest.mark.behaviour("1.4", "4.6")
@pytest.mark.parametrize("waits_for_its_rate", [True, False])
def test_a_held_delivery_has_had_its_turn(*, waits_for_its_rate: bool) -> None:
    new, stuck = fresh_deliveries(1, 2, 3), deferred_deliveries(7, 8, 9)
    head: Outgoing | None = None
    deferred_next, order = False, list[int]()
    for _ in range(6):
        line = a_line(head=head.id if head else None)
        line.deferred_next = deferred_next
        if head:
            line.passed(head)
        taken = Buffer(fresh=new, deferred=stuck).take(deferred_next=line.deferred_next)
        assert taken
        (stuck if taken.is_deferred else new).remove(taken)
        if waits_for_its_rate:
            line.stops_at(taken, Hold(900.0, "", 2))
        else:
            line.holds(taken, Hold(1.0, "answered 503", 2))
        order.append(taken.id)
        head, deferred_next = taken, line.deferred_next
    assert order == [1, 7, 2, 8, 3, 9]


@pytest.mark.behaviour("4.15")
def test_a_changed_delivery_is_read_again() -> None:
    line = a_line()
    go(line)
    assert send(go(line, hand=Buffer(fresh=fresh_deliveries(1, 2)))).id == 1
    line.buffer = Buffer()  # as its event loop does
    assert go(line, NotStarted()) == Read(None)


@pytest.mark.behaviour("4.14")
@pytest.mark.parametrize("status", [200, 404, 500])
def test_at_the_end_of_its_turn_it_settles_and_rests(status: int) -> None:
    line = a_line()
    go(line)
    send(go(line, hand=Buffer(fresh=fresh_deliveries(1, 2))))
    line.stopping = True
    rest = go(line, answered(status))
    assert isinstance(rest, Rest)
    assert rest.ended
    assert (rest.ended.delivery_id, line.hold) == (1, None)


def test_a_turn_without_time_sends_nothing() -> None:
    line = a_line(seconds=0.0)
    assert go(line) == Rest(None)


@pytest.mark.behaviour("11.1")
def test_it_reads_on_when_its_hand_is_low_as_much_as_it_will_send_in_its_turn() -> None:
    line = a_line(seconds=0.5)
    line.taken_at -= 0.1
    line.sent = 20  # in a tenth of a second: 100 more in the half that is left
    sent, step = run(line, Buffer(fresh=fresh_deliveries(*range(32)), more=True), [200] * 20)
    assert (len(sent), isinstance(step, Read)) == (20, True)
    assert line.page_size == pytest.approx(1.25 * 100, rel=0.2)
    assert isinstance(step, Read)
    assert step.ended
    assert (step.ended.delivery_id, send(go(line, hand=Buffer(fresh=fresh_deliveries(20, 21)))).id) == (19, 20)


def suspending(*, half_open: bool = False) -> Outgoing:
    """Return a delivery whose policy suspends at the first failure."""
    policy = policy_of(replace(PRESETS["webMethods"], max_retries=0, on_exhausted=OnExhausted.SUSPEND))
    delivery = outgoing(1)
    return replace(delivery, destination=replace(delivery.destination, policy=policy, half_open=half_open))


@pytest.mark.behaviour("5.6")
@pytest.mark.parametrize("half_open", [False, True])
def test_a_suspension_stops_the_line(*, half_open: bool) -> None:
    line = a_line(head=1, failures=4)
    sent, step = run(line, Buffer(head=suspending(half_open=half_open), fresh=fresh_deliveries(2)), [503])
    assert (sent, isinstance(step, Rest)) == ([1], True)
    assert isinstance(step.ended, Settlement)
    assert (step.ended.status, step.ended.pause, step.ended.reason) == (PENDING, None, "suspended: answered 503")
    assert step.ended.side_effects == SideEffects(
        suspends=True, config_version=2, probe=60.0, announces=True, meaning="suspend"
    )
    assert (line.head_id, line.hold) == (1, Hold(10.0, "answered 503", 2))


@pytest.mark.behaviour("5.6")
def test_a_suspension_in_the_retry_line_reads_the_page_again() -> None:
    line = a_line()
    line.claim = replace(line.claim, lane="retry", sibling_line_id=7)
    sent, step = run(line, Buffer(deferred=[replace(suspending(), is_deferred=True), *deferred_deliveries(2)]), [503])
    assert (sent, isinstance(step, Read), line.hold) == ([1], True, None)
    assert isinstance(step.ended, Settlement)
    assert step.ended.side_effects
    assert (step.ended.side_effects.to_line_id, step.ended.side_effects.suspends) == (7, True)


@pytest.mark.behaviour("5.6")
def test_a_trial_that_holds_the_line_lets_its_subscription_go_on_and_waits_all_the_same() -> None:
    line, delivery = a_line(), suspending()
    held = replace(delivery.destination, policy=policy_of(PRESETS["webMethods"]), half_open=True)
    _, step = run(line, Buffer(fresh=[replace(delivery, destination=held)]), [503])
    assert isinstance(step, Rest)
    assert line.hold == Hold(10.0, "answered 503", 2)


@pytest.mark.behaviour("1.4", "11.1")
@pytest.mark.parametrize(("head", "failures", "size"), [(None, 0, 16), (1, 2, 16), (1, 0, 2)])
def test_a_line_that_waited_for_its_rate_reads_a_short_page(head: int | None, failures: int, size: int) -> None:
    assert a_line(head=head, failures=failures).page_request().capacity == size
