"""The slots of a CONCURRENT subscriber's line, and of lines that keep to a rate, as pure generators (4.13, 1.4)."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.dispatch.claim import Claim
from delivery.webhook.parts import Outgoing
from delivery.worker.buffer import MIN_KEPT, BodyBudget, Buffer, RateLimiter, SlotShares
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.steps import Hold, NotStarted, Read, Rest, Send, Step, Turn, Wait
from delivery.worker.topic import topic_line
from tests.support.factories import outgoing
from tests.unit.worker.test_topic import answered

TURN = 60.0


def a_line(slots: int = 1, lane: str = "main", *, head: int | None = None, failures: int = 0) -> ActiveLine:
    claim = Claim(
        1, lane, "topic", 1, 10, head_id=head, failures=failures, deferred_next=False, capacity=500, concurrency=slots
    )
    line = ActiveLine(claim, Turn([1], TURN), time.monotonic(), slot_shares=SlotShares(slots))
    line.slots = [Slot(line) for _ in range(slots)]
    for slot in line.slots:
        slot.generator = topic_line(slot, lambda: 0.0)
        assert slot.advance(None) == Read(None)
    return line


def to(number: int, *, subscription_id: int = 1, spacing: float | None = None, concurrency: int = 1) -> Outgoing:
    delivery = outgoing(number)
    return replace(
        delivery,
        destination=replace(
            delivery.destination, subscription_id=subscription_id, spacing=spacing, concurrency=concurrency
        ),
    )


def hand_of(line: ActiveLine, *deliveries: Outgoing) -> list[Step]:
    """Give the line these in hand; return what each of its slots wants then."""
    line.receive(Buffer(fresh=deliveries))
    return [slot.advance(None) for slot in line.slots]


@pytest.mark.behaviour("4.13")
@given(slots=st.integers(2, 5), answers=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([200, 404, 503]))))
def test_each_delivery_is_taken_by_one_slot_and_a_hold_stops_all(slots: int, answers: list[tuple[int, int]]) -> None:
    line = a_line(slots)
    steps = dict(enumerate(hand_of(line, *(to(number, concurrency=slots) for number in range(100)))))
    sent = [step.delivery.id for step in steps.values() if isinstance(step, Send)]
    held: list[int] = []
    for which, status in answers:
        step = steps[which % slots]
        if isinstance(step, Send):
            held += [step.delivery.id] if status == 503 else []
            steps[which % slots] = after = line.slots[which % slots].advance(answered(status))
            sent += [after.delivery.id] if isinstance(after, Send) else []
            assert isinstance(after, Rest) == bool(held)
    assert sent == [*range(len(sent))]
    assert (line.head_id, line.failures) == ((held[0], 1) if held else (None, 0))
    assert (line.last_sequence, line.mark(to(1)).sequence) == (10, None)


@pytest.mark.behaviour("4.13")
def test_a_page_leaves_out_what_slots_have_taken() -> None:
    line = a_line(3)
    hand_of(line, *(to(number, concurrency=3) for number in (1, 2, 3, 4)))
    assert sorted(line.page_request().busy) == [1, 2, 3]


@pytest.mark.behaviour("4.13", "5.6")
@pytest.mark.parametrize(("slots", "wants"), [(3, [Send, Send, Read]), (1, [Send])])
def test_a_trial_is_one_request_and_the_others_go_on_beside_it(slots: int, wants: list[type[Step]]) -> None:
    line = a_line(slots)
    tried = [to(number, concurrency=slots) for number in (1, 2, 3)]
    tried = [replace(one, destination=replace(one.destination, half_open=True)) for one in tried]
    steps = hand_of(line, *tried, to(4, subscription_id=2, concurrency=slots))
    assert [type(step) for step in steps] == wants
    assert [step.delivery.id for step in steps if isinstance(step, Send)] == [1, 4][:slots]
    line.slots[0].advance(answered(503))
    assert (line.head_id, line.failures) == (1, 1)


@pytest.mark.behaviour("1.4", "4.13", "5.6")
def test_a_trial_that_waits_for_its_rate_is_not_tried_yet() -> None:
    line = a_line(2)
    limited = to(1, spacing=1000.0, concurrency=2)
    half_open = replace(limited, destination=replace(limited.destination, half_open=True))
    line.rate_limiter.learn(half_open.destination, 900.0, time.monotonic())
    hand_of(line, half_open)
    assert ([*line.left_out], line.may_try(half_open)) == ([1], True)


@pytest.mark.behaviour("4.13", "5.6")
def test_once_a_trial_has_worked_as_many_as_allowed_are_sent() -> None:
    line = a_line(2)
    tried, *others = (to(number, concurrency=2) for number in (1, 2, 3))
    half_open = replace(tried, destination=replace(tried.destination, half_open=True, config_version=7))
    hand_of(line, half_open)
    line.receive(Buffer(fresh=[replace(one, destination=replace(one.destination, config_version=8)) for one in others]))
    assert [type(step) for step in (line.slots[0].advance(answered(200)), line.slots[1].advance(None))] == [
        Send,
        Send,
    ]


@pytest.mark.behaviour("4.13")
@pytest.mark.parametrize(("now", "lane", "goes_on"), [(1, "main", False), (4, "main", False), (1, "retry", True)])
def test_a_line_with_a_changed_concurrency_is_claimed_again(now: int, lane: str, goes_on: bool) -> None:
    line = a_line(1 if lane == "retry" else 3, lane)
    steps = hand_of(line, *(to(number, concurrency=3 if lane == "retry" else now) for number in range(9)))
    assert {type(step) for step in steps} == {Send if goes_on else Rest}
    assert (line.must_stop(), line.update(let_go=True).pause) == (not goes_on, None)


@pytest.mark.behaviour("1.4", "4.12")
def test_in_order_the_line_waits_with_what_waits_for_its_rate() -> None:
    line = a_line()
    limited = to(1, spacing=1000.0)
    line.rate_limiter.learn(limited.destination, 900.0, time.monotonic())
    (step,) = hand_of(line, limited, to(2, subscription_id=2))
    assert (step, line.head_id, line.failures) == (Rest(None), 1, 0)
    assert line.hold
    assert line.hold.pause == pytest.approx(900.0, abs=5.0)
    assert line.hold.reason == ""


def leaving_out(line: ActiveLine, wait: float) -> None:
    """Let the line's first slot send something else before what waits so long for its rate, and read without it."""
    slots = len(line.slots)
    limited = to(1, spacing=wait, concurrency=slots)
    line.rate_limiter.learn(limited.destination, wait, time.monotonic())
    first, *_ = hand_of(line, limited, *(to(number, subscription_id=2, concurrency=slots) for number in (2, 3)))
    assert isinstance(first, Send)
    assert first.delivery.id == 2
    line.buffer = Buffer(fresh=[limited])
    assert isinstance(line.slots[0].advance(answered(200)), Read)
    assert [*line.page_request().left_out] == [1]
    line.receive(Buffer())


@pytest.mark.behaviour("1.4", "4.13")
def test_where_no_order_counts_the_others_are_looked_for_as_long_as_the_turn_lasts_and_a_request_hangs() -> None:
    line = a_line(2)
    leaving_out(line, 900.0)
    first, other = line.slots
    assert first.advance(None) == Read(None, linger=True)
    line.run.until, other.waiting_since = 0.0, 0.0
    assert (first.advance(None), line.hold) == (Read(None, linger=True), None)
    other.waiting_since = None
    assert (first.advance(None), line.hold) == (Rest(None), None)
    assert (line.update(let_go=True).pause, line.update(let_go=True).head_id, line.update(let_go=False).pause) == (
        1.0,
        None,
        None,
    )


@pytest.mark.behaviour("1.4", "5.3")
def test_a_retry_line_does_not_stay_for_what_waits_for_its_rate() -> None:
    line = a_line(1, "retry")
    leaving_out(line, 900.0)
    assert (line.slots[0].advance(None), line.hold, line.head_id) == (Rest(None), Hold(5.0, "", 0), None)


@pytest.mark.behaviour("1.4")
@pytest.mark.parametrize(("lane", "slots"), [("main", 2), ("retry", 1)])
@pytest.mark.parametrize(
    ("in_hand", "until"),
    [(Buffer(fresh=[to(2)]), 900.0), (Buffer(more=True), 900.0), (Buffer[Outgoing](), 1.0)],
    ids=["more in hand", "more to read", "soon"],
)
def test_a_line_with_more_work_is_let_go(lane: str, slots: int, in_hand: Buffer[Outgoing], until: float) -> None:
    line = a_line(slots, lane)
    line.leave_out(to(1), time.monotonic() + until)
    line.buffer = in_hand
    assert line.update(let_go=True).pause is None
    line.return_buffer(BodyBudget(100))
    assert line.update(let_go=True).pause is None


@pytest.mark.behaviour("1.4", "4.7", "4.8")
@pytest.mark.parametrize(
    ("lane", "failures", "waits"), [("main", 3, True), ("main", 0, False), ("retry", 3, False), ("retry", 0, False)]
)
def test_a_hold_lasts_while_an_unordered_head_waits_for_its_rate(lane: str, failures: int, *, waits: bool) -> None:
    line = a_line(2, lane, head=1, failures=failures)
    limited = to(1, spacing=1000.0, concurrency=2)
    line.rate_limiter.learn(limited.destination, 900.0, time.monotonic())
    line.receive(Buffer(head=limited))
    step = line.slots[0].advance(None)
    assert (step, [*line.left_out]) == ((Rest(None), []) if waits else (Read(None), [1]))
    assert (line.head_id, line.failures) == ((1, failures) if waits else (None, 0))
    assert line.hold is None or line.hold.pause == pytest.approx(900.0, abs=60.0)


@pytest.mark.behaviour("1.4", "11.1")
@pytest.mark.parametrize("step", [Read(None), Read(None, linger=True), Rest(None)])
def test_a_delivery_that_its_slot_does_not_send_is_given_back(step: Step) -> None:
    line, budget = a_line(2), BodyBudget(100)
    slot = line.slots[0]
    line.buffer = Buffer(fresh=[to(1)])
    taken = slot.take()
    assert budget.take(taken.size)
    slot.settled(budget, Wait(None, taken, 1.0))
    assert ([*line.page_request().busy], budget.take(99)) == ([1], False)
    slot.settled(budget, step)
    assert ([*line.page_request().busy], budget.take(100)) == ([], True)


@pytest.mark.behaviour("1.4")
def test_what_is_left_out_is_read_again_when_its_time_has_come_however_long_the_turn() -> None:
    line = a_line(2)
    limited = to(1, spacing=1000.0, concurrency=2)
    line.rate_limiter.learn(limited.destination, 900.0, time.monotonic())
    hand_of(line, limited)
    assert [*line.page_request().left_out] == [1]
    line.leave_out(limited, time.monotonic())
    assert ([*line.page_request().left_out], line.left_out) == ([], {})


@pytest.mark.behaviour("1.4", "4.13")
@pytest.mark.parametrize(("wait", "second"), [(50.0, Read), (0.1, Wait)])
def test_one_slot_waits_for_a_rate(wait: float, second: type[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    line = a_line(2)
    limited = [to(number, spacing=1000.0, concurrency=2) for number in (1, 2)]
    monkeypatch.setattr(line.rate_limiter, "wait", lambda *_: wait)
    assert [type(step) for step in hand_of(line, *limited)] == [Wait, second]


@pytest.mark.behaviour("1.4")
def test_a_slot_waits_for_a_delivery_due_soon() -> None:
    line = a_line()
    limited = to(1, spacing=2.0)
    line.rate_limiter.learn(limited.destination, 1.0, time.monotonic() - 0.5)
    (step,) = hand_of(line, limited)
    assert isinstance(step, Wait)
    assert 0.0 < step.seconds <= 0.5
    line.rate_limiter.learn(limited.destination, 0.0, time.monotonic())
    assert line.slots[0].advance(None) == Send(None, limited)


@pytest.mark.behaviour("1.4")
@pytest.mark.parametrize(("slots", "lane"), [(1, "main"), (1, "retry"), (2, "main")])
def test_a_slot_soon_after_the_turn_is_waited_for(slots: int, lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.worker.line.LONG_WAIT_SECONDS", 1000.0)  # no machine is as slow as that
    line = a_line(slots, lane)
    limited = [to(number, subscription_id=number, spacing=1000.0, concurrency=slots) for number in range(slots)]
    for one in limited:
        line.rate_limiter.learn(one.destination, 900.0, time.monotonic())
    assert {type(step) for step in hand_of(line, *limited)} == {Wait}
    line.run.until = time.monotonic()
    assert not line.must_stop(), "whatever else comes may go meanwhile"
    assert (line.has_time_for(999.0), line.has_time_for(1001.0)) == (slots == 1, False), "what others would wait for"
    line.rate_limiter = RateLimiter()
    assert isinstance(line.slots[0].advance(None), Send)
    assert line.must_stop() == (slots == 1)
    line.run.until -= 1000.0
    assert line.must_stop()


@pytest.mark.behaviour("1.4")
def test_while_the_database_is_asked_for_one_the_others_of_the_process_wait() -> None:
    line = a_line(2)
    steps = hand_of(line, *(to(number, spacing=5.0, concurrency=2) for number in (1, 2)))
    assert [type(step) for step in steps] == [Send, Wait]
    line.rate_limiter.learn(to(1, spacing=5.0).destination, 3.0, time.monotonic())
    line.buffer = Buffer(fresh=[to(1, spacing=5.0, concurrency=2)])
    line.slots[1].paced_for = None
    again = line.slots[0].advance(NotStarted())
    assert isinstance(again, Wait)
    assert 1.0 < again.seconds <= 3.0


@pytest.mark.behaviour("1.4")
def test_a_process_remembers_of_any_number_of_subscriptions_only_whose_time_has_not_come() -> None:
    rate_limiter, late = RateLimiter(), to(1, spacing=1.0).destination
    rate_limiter.learn(late, 90_000.0, 0.0)
    for number in range(2, 20_000):
        rate_limiter.learn(replace(late, subscription_id=number), 1.0, float(number))
    assert len(rate_limiter) <= MIN_KEPT
    assert rate_limiter.wait(late, 20_000.0) == 70_000.0


@pytest.mark.behaviour("1.4")
def test_a_limit_that_has_changed_is_not_what_was_learnt() -> None:
    line = a_line()
    limited = to(1, spacing=1000.0)
    line.rate_limiter.learn(limited.destination, 900.0, time.monotonic())
    changed = replace(limited.destination, config_version=limited.destination.config_version + 1, spacing=1.0)
    assert line.rate_limiter.wait(changed, time.monotonic()) == 0.0
    assert line.rate_limiter.wait(replace(changed, spacing=None), time.monotonic()) == 0.0
