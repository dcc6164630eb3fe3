"""The figures of the fault tests find what is wrong."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.stack.load.exchanges import Exchange, Published
from tests.support.faults.exchanges import SETTLE_SECONDS, TRAVEL_SECONDS, Fault, min_blame
from tests.support.faults.figures import Figures, figures, figures_of_jobs, figures_of_lanes
from tests.support.faults.mailbox_figures import Asked, Handed, Record, Said, figures_of_mailbox, in_hand

EVENTS = [Published(number, "A", number, number + 0.5) for number in (1, 2, 3)]
KILLED = Fault(10.5, 10.5)

TIME_OUT = 3.0


def event(number: int) -> Published:
    """One call after the other."""
    return Published(number, "Test.Event", number, number + 0.5)


def got(number: int, sequence: int | None = None, status: int | None = 200, *, flagged: bool = False) -> Exchange:
    return Exchange(number, f"dlv_{number}", sequence or number, flagged, altered=False, at=number, status=status)


def took(number: int, at: float, answered_at: float | None, *, hung_up: bool = False, copy: bool = False) -> Exchange:
    return Exchange(number, f"dlv_{number}", number, copy, False, at, 200, answered_at, hung_up)


def judged(line: Sequence[Exchange], events: int = 3) -> Figures:
    return figures([event(number + 1) for number in range(events)], set(range(1, 100)), {"line": line})


FINE = [got(1), got(2), got(3)]


@pytest.mark.parametrize(
    "line",
    [
        FINE,
        [got(1, status=503), got(1), got(2), got(3)],
        [got(1, status=500), got(2), got(3), got(1)],
        [got(1), got(2), got(2, flagged=True), got(3)],
        [got(1), got(2, status=None), got(2, flagged=True), got(3)],
    ],
)
def test_what_may_happen_breaks_nothing(line: list[Exchange]) -> None:
    assert judged(line).broken == {}


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ([got(1), got(2)], {"lost": 1}),
        ([got(1), got(2), got(3, status=503)], {"lost": 1}),
        ([got(1), got(2), got(2), got(3)], {"unflagged": 1}),
        ([got(1), got(3, 2), got(2, 3)], {"inverted": 2}),
        ([got(1), got(3), got(2)], {"inverted": 2, "misnumbered": 2}),
        ([got(1), got(2, status=503), got(3), got(2)], {"inverted": 1}),
        ([got(1), got(2, 3), got(3, 4)], {"misnumbered": 1}),
        ([got(1), got(2, status=500), got(3), got(2, 4)], {"unflagged": 1}),
        ([*FINE, Exchange(4, "dlv_4", 4, flagged=False, altered=True, at=4, status=200)], {"altered": 1}),
        ([*FINE, got(100, 4)], {"unexpected": 1}),
    ],
)
def test_what_must_not_happen_is_found(line: list[Exchange], broken: dict[str, int]) -> None:
    assert judged(line).broken == broken


def test_copies_are_counted_by_line() -> None:
    lines = {"one": [got(1), got(1, flagged=True)], "two": [got(1), got(1, flagged=True), got(1, flagged=True)]}
    made = figures([event(1)], {1}, lines)
    assert (made.duplicated, made.max_per_line, made.delivered) == (3, 2, 2)


def test_what_was_never_acknowledged_but_delivered_is_recovered() -> None:
    made = judged([*FINE, got(4)])
    assert (made.acknowledged, made.delivered, made.recovered, made.broken) == (3, 4, 1, {})


def test_the_pause_counts_from_the_fault() -> None:
    line = [got(1), got(2), got(9, 3)]
    assert figures([], set(), {"line": line}, steady=["line"], fault_at=1.5).pause == 7.0


OF_ONE_AND_OF_TWO = [took(1, 10, 11), took(1, 20, 21, copy=True), took(2, 30, 31), took(2, 50, 51, copy=True)]


@pytest.mark.parametrize(
    ("faults", "not_under_way", "max_per_fault"),
    [
        ([], 0, 0),
        ([Fault(10.5, 10.6), Fault(30.5, 30.6)], 0, 1),
        ([Fault(8.0, 10.0 - TRAVEL_SECONDS), Fault(31.0 + SETTLE_SECONDS, 40.0)], 0, 1),
        ([Fault(10.5, 35.0)], 0, 2),
        ([Fault(9.0, 35.0), Fault(10.5, 10.6), Fault(30.5, 30.6)], 0, 1),
        ([Fault(9.0, 35.0), Fault(30.5, 30.6)], 0, 1),
        ([Fault(10.5, 10.6)], 1, 1),
        ([Fault(10.5, 10.6), Fault(33.0, 40.0)], 1, 1),
        ([Fault(22.5, 22.6), Fault(50.5, 51.0)], 2, 0),
    ],
)
def test_a_copy_is_explained_by_a_fault_while_what_it_repeats_was_under_way(
    faults: list[Fault], not_under_way: int, max_per_fault: int
) -> None:
    made = figures([event(1), event(2)], {1, 2}, {"line": OF_ONE_AND_OF_TWO}, faults=faults)
    assert (made.not_under_way, made.max_per_fault, made.duplicated) == (not_under_way, max_per_fault, 2)


def in_a_row(*numbers: int) -> list[Exchange]:
    """A line that sends ten requests a second."""
    return [took(number, tenth / 10, tenth / 10 + 0.05) for tenth, number in enumerate(numbers)]


@pytest.mark.parametrize(
    ("line", "not_under_way"),
    [
        (in_a_row(1, 2, 2, 3), 0),
        (in_a_row(1, 2, 3, 2), 1),
        (in_a_row(1, 2, 3, 3), 0),
        (in_a_row(1, 2, 3, 4, 4), 1),
        (in_a_row(1, 1, 2), 1),
    ],
)
def test_only_the_last_request_before_a_fault_may_be_repeated_and_nothing_may_come_in_between(
    line: list[Exchange], not_under_way: int
) -> None:
    """The fault is between the second and the third request, which may have been on its way."""
    made = figures([], {1, 2, 3, 4}, {"line": line}, faults=[Fault(0.17, 0.18)])
    assert (made.duplicated, made.not_under_way) == (1, not_under_way)


def test_a_copy_that_is_repeated_in_its_turn_counts_for_the_fault_that_came_last() -> None:
    line = [took(1, 10, 11), took(1, 20, 21, copy=True), took(1, 30, 31, copy=True)]
    made = figures([], {1}, {"line": line}, faults=[Fault(10.5, 10.6), Fault(20.5, 20.6)])
    assert (made.duplicated, made.not_under_way, made.max_per_fault) == (2, 0, 1)


def test_what_the_broker_has_not_finished_must_not_be() -> None:
    assert figures([event(1)], {1}, {"line": [got(1)]}, unfinished=2).broken == {"unfinished": 2}


@pytest.mark.parametrize(
    ("first", "overlapping"),
    [
        (took(1, 10, 11), 0),
        (took(1, 10, 13), 1),
        (took(1, 10, 13, hung_up=True), 0),
        (took(1, 10, None), 0),
    ],
)
def test_two_requests_of_a_line_at_once_are_found_unless_the_first_was_given_up(
    first: Exchange, overlapping: int
) -> None:
    assert figures([], {1, 2}, {"line": [first, took(2, 12, 14)]}).overlapping == overlapping


def test_figures_of_different_lines_add_up() -> None:
    one, other = judged(FINE), judged([got(1), got(1), got(2, 3)], events=5)
    both = one + other
    assert (both.acknowledged, both.delivered, both.max_per_line) == (5, 5, 1)
    assert both.broken == {"lost": 3, "unflagged": 1, "misnumbered": 1}


def asked(number: int, at: float, *, answered_at: float | None, copy: bool = False, sender: int = 0) -> Exchange:
    status = None if answered_at is None else 200
    return Exchange(number, f"grp_{number}", 0, copy, False, at, status, answered_at, message_id=sender)


DONE = [asked(1, 1, answered_at=1.1), asked(2, 5, answered_at=None), asked(2, 7, answered_at=7.1, copy=True)]


def judged_jobs(requests: Sequence[Exchange], *, jobs: int = 2, winners: dict[int, int] | None = None) -> Figures:
    """Judge jobs among which something broke from second 6 on."""
    numbers = range(1, jobs + 1)
    winners = dict.fromkeys(numbers, 1) | (winners or {})
    return figures_of_jobs(numbers, numbers, requests, winners=winners, faults=[Fault(6, 6.5)])


def test_a_job_that_was_under_way_comes_again_and_says_so() -> None:
    made = judged_jobs(DONE)
    assert (made.broken, made.delivered, made.duplicated, made.max_per_fault) == ({}, 2, 1, 1)


@pytest.mark.parametrize(
    ("requests", "broken"),
    [
        (DONE[:2], {"lost": 1}),
        ([*DONE[:2], asked(2, 7, answered_at=7.1)], {"unflagged": 1}),
        ([*DONE, asked(1, 8, answered_at=8.1, copy=True)], {"not_under_way": 1}),
        ([*DONE, asked(3, 8, answered_at=8.1)], {"unexpected": 1, "misrecorded": 1}),
    ],
)
def test_jobs_that_are_lost_or_repeated_otherwise_are_found(requests: list[Exchange], broken: dict[str, int]) -> None:
    assert judged_jobs(requests).broken == broken


@pytest.mark.parametrize("count", [0, 2])
def test_a_job_that_the_books_do_not_have_once_is_found(count: int) -> None:
    assert judged_jobs(DONE, winners={2: count}).broken == {"misrecorded": 1}


def test_what_two_faults_came_upon_either_may_have_cost() -> None:
    requests = [
        *(asked(number, 2 + 4 * number, answered_at=None) for number in (1, 2)),
        *(asked(number, 13, answered_at=13.1, copy=True) for number in (1, 2)),
    ]
    faults = [Fault(11, 11.1), Fault(7, 7.1)]
    made = figures_of_jobs([1, 2], [1, 2], requests, winners={1: 1, 2: 1}, faults=faults)
    assert (made.broken, made.duplicated, made.max_per_fault) == ({}, 2, 1)


@pytest.mark.parametrize(
    ("wanted", "burden"),
    [
        ([], 0),
        ([[1]], 1),
        ([[1], [1]], 2),
        ([[1], [1, 2]], 1),
        ([[1, 2], [1]], 1),
        ([[1, 2], [1, 2], [1, 2]], 2),
        ([[1, 2], [2, 3], [1]], 1),
        ([[1, 2], [1], [2], [1]], 2),
        ([[1]] * 5 + [[1, 2]] * 5, 5),
    ],
)
def test_the_burden_is_shared_as_evenly_as_can_be(wanted: list[list[int]], burden: int) -> None:
    assert min_blame(wanted) == burden


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, unique=True), min_size=1, max_size=6))
def test_no_way_to_share_it_bears_less(wanted: list[list[int]]) -> None:
    ways = itertools.product(*wanted)
    assert min_blame(wanted) == min(max(Counter(way).values()) for way in ways)


def test_copies_after_a_fault_are_counted_by_sender() -> None:
    requests = [
        *(asked(number, 5, answered_at=None, sender=number % 5) for number in (1, 2, 6)),
        *(asked(number, 7, answered_at=7.1, copy=True, sender=number % 5) for number in (1, 2, 6)),
    ]
    winners = {1: 1, 2: 1, 6: 1}
    made = figures_of_jobs([1, 2, 6], [1, 2, 6], requests, winners=winners, faults=[Fault(6, 6.5)])
    assert (made.broken, made.duplicated, made.max_per_fault) == ({}, 3, 2)


def request(number: int, at: float, status: int | None = 200, **fields: Any) -> Exchange:
    """Return a request that was answered at once, unless it was not."""
    defaults: dict[str, Any] = {"webhook_id": f"dlv_{number}", "sequence": number, "flagged": False, "altered": False}
    answered_at = None if status is None else at + 0.01
    return Exchange(number=number, at=at, status=status, answered_at=answered_at, **(defaults | fields))


def refused_first() -> list[Exchange]:
    """Return what comes where the first event is refused, and tried again when the others have been sent."""
    return [request(1, 10, 500), request(2, 11), request(3, 12), request(1, 13, attempt=2)]


@pytest.mark.parametrize(
    ("requests", "broken"),
    [
        (refused_first(), {}),
        (refused_first()[:-1], {"lost": 1}),
        ([*refused_first(), request(1, 14, attempt=3, flagged=True)], {"not_under_way": 1}),
        ([request(1, 10, 500), request(2, 11), request(1, 11.005, attempt=2), request(3, 12)], {}),
        ([request(1, 10), request(2, 11), request(3, 11.005)], {"overlapping": 1}),
        ([request(2, 10, sequence=1), request(1, 11, sequence=2), request(3, 12)], {"inverted": 2}),
        ([request(1, 10), request(2, 11, sequence=3), request(3, 12, sequence=4)], {"misnumbered": 1}),
        ([request(1, 10), request(2, 11), request(3, 12, altered=True)], {"altered": 1}),
        ([*refused_first()[:-1], request(1, 13, attempt=2, sequence=4)], {"unflagged": 1}),
    ],
)
def test_what_is_tried_again_apart_has_no_order_and_all_else_has(
    requests: list[Exchange], broken: dict[str, int]
) -> None:
    assert figures_of_lanes(EVENTS, {1, 2, 3}, requests, faults=[KILLED]).broken == broken


def test_what_a_kill_leaves_unknown_comes_again_flagged_in_either_line() -> None:
    unknown = [request(1, 9, 500), request(2, 10, None), request(1, 10, None, attempt=2)]
    again = [request(2, 11, flagged=True), request(1, 11, attempt=2, flagged=True), request(3, 12)]
    seen = figures_of_lanes(EVENTS, {1, 2, 3}, unknown + again, faults=[KILLED])
    assert (seen.broken, seen.duplicated) == ({}, 2)


def test_what_is_never_taken_is_not_lost_but_must_not_be_taken() -> None:
    refused = [request(1, 10, 500), request(2, 11), request(3, 12), request(1, 13, 500, attempt=2)]
    assert figures_of_lanes(EVENTS, {1, 2, 3}, refused, doomed={1}).broken == {}
    assert figures_of_lanes(EVENTS, {1, 2, 3}, refused_first(), doomed={1}).broken == {"unexpected": 1}


def handed(number: int = 1, at: float = 10.0, redeliveries: int = 0, *, until: float = 0.0) -> Handed:
    receipt = f"{number} at {at}"
    flagged, ends = redeliveries > 0, until or at + TIME_OUT
    return Handed(receipt, "client", number, f"dlv_{number}", redeliveries, flagged, False, at, ends)


def said(of: Handed, word: str = "ack", *, at: float = 11.0, status: int = 200, until: float = 0.0) -> Said:
    return Said(of.receipt, word, status, "said", at, at + 0.01, until)


def asked_of(of: Handed, word: str, *, at: float = 11.0) -> Asked:
    return Asked(of.receipt, word, at)


def broken(records: list[Record], *, winners: int = 1, sent: list[Exchange] | None = None) -> dict[str, int]:
    """Return what is wrong with the hand-outs of one event."""
    return figures_of_mailbox([1], [1], records, sent=sent or [], winners={1: winners}).broken


FIRST = handed()
AGAIN = handed(at=13.1, redeliveries=1)
HAND_OUT_DONE = said(AGAIN, at=14.0)
EXTENDED = said(FIRST, "extend", at=12.0, until=15.0)
RETURNED = said(FIRST, "nack", at=11.0)
SOON = handed(at=11.1, redeliveries=1)


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([FIRST, said(FIRST)], {}),
        ([FIRST, said(FIRST), said(FIRST)], {}),
        ([FIRST, AGAIN, HAND_OUT_DONE], {}),
        ([FIRST, asked_of(FIRST, "nack"), RETURNED, SOON, said(SOON, at=12.0)], {}),
        ([FIRST, asked_of(FIRST, "nack"), SOON, said(FIRST, "nack", at=11.5, status=409), said(SOON, at=12.0)], {}),
        ([FIRST, asked_of(FIRST, "nack", at=11.5), SOON, said(SOON, at=12.0)], {"overlapping": 1}),
        ([FIRST, AGAIN, said(FIRST, at=13.5, status=409), HAND_OUT_DONE], {}),
        ([FIRST], {"lost": 1}),
        ([FIRST, said(FIRST, status=409)], {"lost": 1}),
        ([FIRST, said(FIRST, "nack")], {"lost": 1}),
        ([FIRST, SOON, said(SOON, at=12.0)], {"overlapping": 1}),
        ([FIRST, EXTENDED, AGAIN, HAND_OUT_DONE], {"overlapping": 1}),
        ([FIRST, said(FIRST), AGAIN, said(AGAIN, at=14.0, status=409)], {"unexpected": 1}),
        ([FIRST, replace(AGAIN, flagged=False), HAND_OUT_DONE], {"unflagged": 1}),
        ([FIRST, replace(AGAIN, webhook_id="dlv_2"), HAND_OUT_DONE], {"unflagged": 1}),
        ([FIRST, replace(AGAIN, redeliveries=0), HAND_OUT_DONE], {"misnumbered": 1}),
        ([replace(FIRST, altered=True), said(FIRST)], {"altered": 1}),
        ([FIRST, said(FIRST), handed(2)], {"unexpected": 1}),
    ],
)
def test_a_message_has_one_holder_at_a_time_and_one_end(records: list[Record], wrong: dict[str, int]) -> None:
    assert broken(records) == wrong


@pytest.mark.parametrize("winners", [0, 2])
def test_the_books_have_to_say_that_it_was_delivered_once(winners: int) -> None:
    assert broken([FIRST, said(FIRST)], winners=winners) == {"misrecorded": 1}


def test_an_acknowledgement_of_a_client_that_was_killed_counts_if_the_books_say_so() -> None:
    killed: list[Record] = [FIRST, asked_of(FIRST, "ack")]
    assert broken(killed) == {}
    assert broken(killed, winners=0) == {"lost": 1, "misrecorded": 1}
    assert broken([*killed, said(FIRST, status=409)]) == {"lost": 1}
    assert broken([FIRST, asked_of(FIRST, "nack")]) == {"lost": 1}


def test_what_is_sent_meanwhile_must_not_be_in_anybodys_hands() -> None:
    request = Exchange(number=1, webhook_id="dlv_1", sequence=1, flagged=True, altered=False, at=12.0)
    taken = replace(request, status=200, answered_at=12.1)
    assert broken([FIRST], sent=[taken]) == {"overlapping": 1}
    assert broken([FIRST], sent=[replace(taken, at=13.5, answered_at=13.6)]) == {}


def test_what_has_expired_or_was_purged_was_not_to_be_delivered() -> None:
    assert figures_of_mailbox([1], [1], [], winners={1: 0}, dropped=[1]) == Figures()
    seen = figures_of_mailbox([1], [1], [FIRST, said(FIRST)], winners={1: 1}, dropped=[1])
    assert seen.broken == {"unexpected": 1}


def test_copies_are_counted_and_delivered_only_once() -> None:
    seen = figures_of_mailbox([1], [1], [FIRST, AGAIN, HAND_OUT_DONE], winners={1: 1})
    assert (seen.acknowledged, seen.delivered, seen.duplicated) == (1, 1, 1)


def test_what_nobody_has_said_anything_of_is_in_hand() -> None:
    assert in_hand([FIRST, AGAIN]) == [FIRST, AGAIN]
    assert in_hand([FIRST, asked_of(FIRST, "ack"), AGAIN]) == [AGAIN]
