"""A QUEUE sender's slot as a pure generator (contract 6), and how slots are shared among endpoints."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from delivery.dispatch.claim import Claim
from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.limits import HANGING_SECONDS, HANGS_SECONDS
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import Outgoing
from delivery.worker.buffer import Buffer, SlotShares
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.queue import Endpoint, OutgoingGroup, queue_line
from delivery.worker.steps import NotStarted, Read, Reply, RequestSent, Rest, Send, Settlement, Step, Turn
from tests.support.factories import CONTENT, DESTINATION
from tests.unit.worker.test_topic import NOW, answered, unanswered

DELIVERED, PENDING, REJECTED = DeliveryStatus.DELIVERED, DeliveryStatus.PENDING, DeliveryStatus.REJECTED
NOT_SUPPORTED = DeliveryStatus.NOT_SUPPORTED


def a_sender(slots: int = 1, *, seconds: float = 60.0) -> ActiveLine:
    """Return a sender's line whose endpoints are tried from the last to the first."""
    claim = Claim(1, "queue", "queue.0", 1, 0, head_id=None, failures=0, deferred_next=False, capacity=500)
    line = ActiveLine(claim, Turn([1], seconds), time.monotonic(), slot_shares=SlotShares(slots))
    line.slots = [Slot(line) for _ in range(slots)]
    for slot in line.slots:
        slot.generator = queue_line(slot, lambda endpoints: endpoints.reverse())
    return line


def group(number: int = 7, *endpoints: int, cycles: int = 0, **fields: object) -> OutgoingGroup:
    known: dict[str, object] = {"first_id": None, "attempts": 0, "uncertain": False, "is_deferred": False, **fields}
    tried = [Endpoint(one, replace(DESTINATION, subscription_id=one)) for one in endpoints]
    return OutgoingGroup(number, CONTENT, tried, cycles=cycles, size=2, **known)  # type: ignore[arg-type]


def begin(line: ActiveLine, *groups: OutgoingGroup) -> Step:
    """Let the first slot read these; return what it wants then."""
    (slot, *_) = line.slots
    assert slot.advance(None) == Read(None)
    line.receive(
        Buffer(
            fresh=[one for one in groups if not one.is_deferred], deferred=[one for one in groups if one.is_deferred]
        )
    )
    return slot.advance(None)


def sent(step: Step) -> Outgoing:
    assert isinstance(step, Send)
    return step.delivery


def ended(step: Step) -> tuple[int, DeliveryStatus, float | None]:
    """Return the delivery, its status and when its group is tried again, of what is settled with a step."""
    assert isinstance(step.ended, Settlement)
    return step.ended.delivery_id, step.ended.status, step.ended.again


@pytest.mark.behaviour("6.4", "6.5")
@pytest.mark.parametrize(
    ("replies", "settled"),
    [
        ([answered(200)], [(3, DELIVERED, None)]),
        ([answered(404), answered(204)], [(3, REJECTED, None), (2, DELIVERED, None)]),
        (
            [answered(302), answered(503), answered(299)],
            [(3, NOT_SUPPORTED, None), (2, PENDING, None), (1, DELIVERED, 1.0)],
        ),
        (
            [answered(500), answered(999), unanswered(was_sent=False)],
            [(3, PENDING, None), (2, PENDING, None), (1, PENDING, 1.0)],
        ),
        (
            [answered(404), answered(410), answered(301)],
            [(3, REJECTED, None), (2, REJECTED, None), (1, NOT_SUPPORTED, 1.0)],
        ),
        (
            [answered(408), unanswered(was_sent=True), answered(429)],
            [(3, REJECTED, None), (2, PENDING, None), (1, REJECTED, 1.0)],
        ),
    ],
)
def test_endpoints_are_tried_until_one_takes_it(
    replies: Sequence[Reply], settled: list[tuple[int, DeliveryStatus, float | None]]
) -> None:
    line = a_sender()
    step = begin(line, group(7, 1, 2, 3))
    found = []
    for place, reply in enumerate(replies):
        assert sent(step).id == 3 - place
        step = line.slots[0].advance(reply)
        found.append(ended(step))
    assert isinstance(step, Read)
    assert found == settled


@pytest.mark.behaviour("6.5")
@pytest.mark.parametrize(("cycles", "again"), [(0, 1.0), (1, 2.0), (2, 4.0), (5, 32.0), (6, 60.0), (900, 60.0)])
def test_a_group_that_nobody_takes_waits_longer_after_each_cycle(cycles: int, again: float) -> None:
    line = a_sender()
    begin(line, group(7, 1, cycles=cycles))
    assert ended(line.slots[0].advance(answered(500))) == (1, PENDING, again)


@pytest.mark.behaviour("4.11", "6.4")
def test_an_endpoint_with_an_unknown_outcome_goes_first() -> None:
    assert sent(begin(a_sender(), group(7, 1, 2, 3, first_id=2))).id == 2


@pytest.mark.behaviour("4.11")
@pytest.mark.parametrize(
    ("reply", "uncertain"),
    [(answered(500), False), (unanswered(was_sent=False), False), (unanswered(was_sent=True), True)],
)
def test_the_next_endpoint_is_flagged_if_the_last_outcome_is_unknown(reply: Reply, uncertain: bool) -> None:
    line = a_sender()
    step = begin(line, group(7, 1, 2, attempts=4))
    first = sent(step)
    second = sent(line.slots[0].advance(reply))
    assert (first.attempts, first.uncertain, first.group_id) == (4, False, 7)
    assert (second.attempts, second.uncertain, second.group_id) == (5, uncertain, 7)


def test_a_group_that_is_no_longer_as_it_was_read_is_left_for_the_next_page() -> None:
    line = a_sender()
    begin(line, group(7, 1, 2), group(8, 3))
    line.buffer = Buffer()
    assert line.slots[0].advance(NotStarted()) == Read(None)
    assert line.page_request().cut_short == []


def test_a_group_of_which_one_was_asked_already_is_not_begun_again_at_once() -> None:
    line = a_sender()
    begin(line, group(7, 1, 2))
    line.slots[0].advance(answered(500))
    assert line.slots[0].advance(NotStarted()) == Read(None)
    assert line.page_request().cut_short == [7]
    line.receive(Buffer())
    assert line.page_request().cut_short == []


@pytest.mark.behaviour("6.6")
def test_an_endpoint_with_half_of_the_slots_gets_no_more_until_it_answers() -> None:
    line = a_sender(4)
    for slot in line.slots:
        slot.advance(None)
    line.receive(Buffer(fresh=[group(number, 1) for number in range(1, 9)]))
    one, two, three, four = line.slots
    assert [sent(slot.advance(None)).group_id for slot in (one, two)] == [1, 2]
    assert [slot.advance(None) for slot in (three, four)] == [Read(None, linger=True)] * 2
    line.receive(Buffer(fresh=[group(3, 1), group(4, 2), *(group(number, 1) for number in range(5, 9))]))
    assert sent(three.advance(None)).group_id == 4
    assert sent(one.advance(answered(200))).group_id == 3
    assert sent(four.advance(None)).group_id == 5, "it answers: as many as there are slots"


@pytest.mark.behaviour("6.5", "6.6")
def test_an_endpoint_with_half_of_the_slots_is_left_out() -> None:
    line = a_sender(2)
    step = begin(line, group(7, 1, 2))
    assert sent(step).id == 2
    line.slot_shares.join(1, time.monotonic())
    assert ended(line.slots[0].advance(answered(500))) == (2, PENDING, 1.0)


@pytest.mark.behaviour("6.5")
def test_fresh_and_deferred_groups_take_turns() -> None:
    line = a_sender()
    step = begin(line, group(1, 11), group(2, 12), group(3, 13, is_deferred=True), group(4, 14, is_deferred=True))
    order = []
    for _ in range(4):
        order.append(sent(step).group_id)
        step = line.slots[0].advance(answered(200))
    assert order == [1, 3, 2, 4]


@pytest.mark.behaviour("6.6")
def test_each_slot_takes_another_group() -> None:
    line = a_sender(3)
    groups = [group(number, number * 10) for number in range(1, 4)]
    for slot in line.slots:
        slot.advance(None)
    line.receive(Buffer(fresh=groups))
    assert [sent(slot.advance(None)).group_id for slot in line.slots] == [1, 2, 3]
    assert line.page_request().busy == [1, 2, 3]


@pytest.mark.behaviour("6.6")
def test_a_slot_rests_after_its_turn_unless_another_hangs() -> None:
    line = a_sender(2, seconds=-1.0)
    hanging, other = line.slots
    hanging.waiting_since = time.monotonic()
    assert other.advance(None) == Rest(None)
    hanging.waiting_since -= HANGS_SECONDS
    assert other.advance(None) == Read(None)
    line.stopping = True
    assert other.advance(None) == Rest(None)


def test_a_sender_that_is_stopped_asks_nobody_else() -> None:
    line = a_sender()
    begin(line, group(7, 1, 2), group(8, 3))
    line.stopping = True
    step = line.slots[0].advance(answered(500))
    assert (type(step), ended(step)) == (Rest, (2, PENDING, None))


def refused() -> RequestSent:
    result = RequestNotCompleted("Address not allowed (loopback)", was_sent=False, is_refused=True)
    return RequestSent(Answer(None, result, b"", 0), NOW)


@pytest.mark.behaviour("6.5")
@pytest.mark.parametrize(
    ("answers", "again"),
    [
        ([refused()], 60.0),
        ([refused(), refused()], 60.0),
        ([refused(), answered(404)], 60.0),
        ([answered(500), refused()], 2.0),
        ([refused(), unanswered(was_sent=True)], 2.0),
    ],
)
def test_what_only_waits_for_those_out_of_reach_waits_for_long(answers: list[RequestSent], again: float) -> None:
    line = a_sender()
    step = begin(line, group(7, *range(1, len(answers) + 1), cycles=1))
    for one in answers:
        step = line.slots[0].advance(one)
    assert ended(step)[2] == again


def slot_shares(slots: int, waiting: Mapping[int, int]) -> SlotShares:
    """Return so many slots, of which so many have waited for each subscription since 10 s."""
    made = SlotShares(slots)
    for subscription_id, count in waiting.items():
        for _ in range(count):
            made.join(subscription_id, 10.0)
    return made


@pytest.mark.behaviour("6.4")
@pytest.mark.parametrize(
    ("waiting", "first_id", "order"),
    [
        ({}, None, [3, 2, 1]),
        ({3: 4}, None, [3, 2, 1]),
        ({3: 5}, None, [2, 1, 3]),
        ({3: 5, 2: 6}, None, [1, 3, 2]),
        ({3: 8, 2: 5, 1: 5}, None, [2, 1, 3]),
        ({3: 5, 2: 5, 1: 5}, None, [3, 2, 1]),
        ({3: 5}, 1, [1, 2, 3]),
        ({3: 5, 1: 5}, 3, [3, 2, 1]),
        ({3: 5}, 99, [2, 1, 3]),
    ],
)
def test_endpoints_with_their_share_of_slots_go_last(
    waiting: Mapping[int, int], first_id: int | None, order: Sequence[int]
) -> None:
    endpoints = [Endpoint(one, replace(DESTINATION, subscription_id=one)) for one in (1, 2, 3)]
    group = OutgoingGroup(7, CONTENT, endpoints, first_id, 0, uncertain=False, cycles=0, size=2, is_deferred=False)
    found = group.in_turn(lambda listed: listed.reverse(), slot_shares(16, waiting))
    assert [one.delivery_id for one in found] == order
    assert [one.delivery_id for one in endpoints] == [1, 2, 3]


@pytest.mark.behaviour("6.4", "6.6")
@pytest.mark.parametrize("slots", [1, 2, 3, 16, 100])
@pytest.mark.parametrize("endpoints", [2, 3, 5, 16])
def test_a_slot_is_left_for_the_last_good_endpoint(slots: int, endpoints: int) -> None:
    waiting = SlotShares(slots)
    for one in range(1, endpoints):
        while not waiting.place(one, endpoints):
            waiting.join(one, 0.0)
    assert waiting.place(endpoints, endpoints) == 0
    taken = (endpoints - 1) * max(1, slots // endpoints)
    assert taken < slots or endpoints > slots


@pytest.mark.behaviour("6.6")
@pytest.mark.parametrize(
    ("slots", "waiting", "full"),
    [
        (16, 7, False),
        (16, 8, True),
        (16, 9, True),
        (3, 1, False),
        (3, 2, True),
        (2, 1, True),
        (1, 0, False),
        (1, 1, True),
    ],
)
def test_at_most_half_of_the_slots_wait_for_one_endpoint(slots: int, waiting: int, full: bool) -> None:
    assert slot_shares(slots, {1: waiting}).is_full(1) is full
    assert not slot_shares(slots, {1: waiting}).is_full(2)


@pytest.mark.behaviour("6.6")
@pytest.mark.parametrize(("answered", "full"), [(True, False), (False, True)])
def test_all_may_wait_for_one_that_has_answered_since_the_first_of_them_began(answered: bool, full: bool) -> None:
    waiting = slot_shares(4, {1: 2})
    waiting.join(1, 11.0)
    waiting.leave(1, 10.0, 12.0, answered=answered)
    assert waiting.is_full(1) is full
    waiting.leave(1, 10.0, 12.1, answered=False)
    for _ in range(2):
        waiting.join(1, 13.0)
    waiting.leave(1, 11.0, 14.0, answered=False)
    assert waiting.is_full(1), "none of those that wait began before its last answer"


@pytest.mark.behaviour("6.6")
def test_it_hangs_once_half_of_them_have_waited_for_a_second() -> None:
    waiting = slot_shares(4, {1: 2, 2: 1, 3: 0})
    assert waiting.hanging(10.0 + HANGING_SECONDS - 0.01) == {}
    assert waiting.hanging(10.0 + 3 * HANGING_SECONDS) == {1: 3 * HANGING_SECONDS}
    waiting.leave(1, 10.0, 13.0, answered=True)
    assert waiting.hanging(20.0) == {}
