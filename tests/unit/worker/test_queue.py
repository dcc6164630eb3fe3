"""A QUEUE sender's slot as a pure generator, and shares of slots: what no story shows (contract 6.4 to 6.6)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker_project.core import boot_clock
from delivery.dispatch.claim import Claim
from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.limits import HANGING_SECONDS
from delivery.worker.buffer import Buffer, SlotShares
from delivery.worker.line import ActiveLine
from delivery.worker.queue import Endpoint, OutgoingGroup, queue_line
from delivery.worker.rounds import NO_LINK
from delivery.worker.slots import Read, RequestSent, Send, Settlement, Slot, Step
from tests.support.factories import CONTENT, DESTINATION
from tests.unit.worker.test_topic import NOW, answered, resumed, unanswered

NOT_ALLOWED = RequestNotCompleted("Address not allowed (loopback)", was_sent=False, is_refused=True)
REFUSED = RequestSent(Answer(None, 0, b"", b"", 0, NOT_ALLOWED), NOW)


def group(number: int, *endpoints: int, cycles: int = 0, is_deferred: bool = False) -> OutgoingGroup:
    tried = [Endpoint(one, replace(DESTINATION, subscription_id=one)) for one in endpoints]
    return OutgoingGroup(
        number, CONTENT, tried, None, 0, uncertain=False, cycles=cycles, size=2, is_deferred=is_deferred
    )


def begin(*groups: OutgoingGroup) -> tuple[Slot, Step]:
    """Let the slot of a sender read these; return it, and what it wants then."""
    claim = Claim(1, "queue", "queue.0", 1, 0, deferred_next=False, capacity=500)
    line = ActiveLine(claim, NO_LINK, boot_clock.since_boot(), slot_shares=SlotShares(1))
    slot = Slot(line)
    line.slots = [slot]
    slot.generator = queue_line(slot, lambda endpoints: endpoints.reverse())
    assert resumed(slot, None) == Read()
    fresh, deferred = ([one for one in groups if one.is_deferred == is_deferred] for is_deferred in (False, True))
    line.receive(Buffer(fresh=fresh, deferred=deferred))
    return slot, resumed(slot, None)


def again_after(answers: Sequence[RequestSent], cycles: int) -> float | None:
    """Return when a group is tried again after these answers of all its endpoints."""
    slot, _ = begin(group(7, *range(1, len(answers) + 1), cycles=cycles))
    for one in answers:
        resumed(slot, one)
    assert isinstance(slot.ended, Settlement)
    return slot.ended.again


@pytest.mark.behaviour("6.5")
@pytest.mark.parametrize(("cycles", "again"), [(0, 1.0), (1, 2.0), (2, 4.0), (5, 32.0), (6, 60.0), (900, 60.0)])
def test_a_group_that_nobody_takes_waits_longer_after_each_cycle(cycles: int, again: float) -> None:
    assert again_after([answered(500)], cycles) == again


@pytest.mark.behaviour("6.5")
@pytest.mark.parametrize("answers", [[REFUSED], [REFUSED, REFUSED], [REFUSED, answered(404)]])
def test_a_group_whose_endpoints_are_all_out_of_reach_waits_for_long(answers: list[RequestSent]) -> None:
    assert again_after(answers, 1) == 60.0


@pytest.mark.behaviour("6.5")
@pytest.mark.parametrize("other", [answered(500), unanswered(was_sent=True)])
def test_an_endpoint_out_of_reach_does_not_delay_the_others(other: RequestSent) -> None:
    assert [again_after([REFUSED, other], 1), again_after([other, REFUSED], 1)] == [2.0, 2.0]


@pytest.mark.behaviour("6.5")
def test_fresh_and_deferred_groups_take_turns() -> None:
    deferred = [group(number, number, is_deferred=True) for number in (3, 4)]
    slot, step = begin(group(1, 1), group(2, 2), *deferred)
    order = []
    for _ in range(4):
        assert isinstance(step, Send)
        order.append(step.delivery.group_id)
        step = resumed(slot, answered(200))
    assert order == [1, 3, 2, 4]


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
def test_an_endpoint_hangs_once_half_of_the_slots_have_waited_for_a_second() -> None:
    waiting = SlotShares(4)
    for subscription_id in (1, 1, 2):
        waiting.join(subscription_id, 10.0)
    assert waiting.hanging(10.0 + HANGING_SECONDS - 0.01) == {}
    assert waiting.hanging(10.0 + 3 * HANGING_SECONDS) == {1: 3 * HANGING_SECONDS}
    waiting.leave(1, 10.0, 13.0, answered=True)
    assert waiting.hanging(20.0) == {}
