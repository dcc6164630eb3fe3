"""The figures of the fault tests find what is wrong."""

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.stack.demo.records import Published
from tests.faults.burdens import least_burden
from tests.faults.exchanges import SETTLE_SECONDS, TRAVEL_SECONDS, Exchange, Fault
from tests.faults.figures import Figures, figures
from tests.faults.jobs import figures_of_jobs


def event(number: int) -> Published:
    """One call after the other."""
    return Published(number, "Test.Event", "", "", number, number + 0.5, 0, 0)


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
    assert (made.duplicated, made.most_of_a_line, made.delivered) == (3, 2, 2)


def test_what_was_never_acknowledged_but_delivered_is_recovered() -> None:
    made = judged([*FINE, got(4)])
    assert (made.acknowledged, made.delivered, made.recovered, made.broken) == (3, 4, 1, {})


def test_the_pause_counts_from_the_fault() -> None:
    line = [got(1), got(2), got(9, 3)]
    assert figures([], set(), {"line": line}, steady=["line"], fault_at=1.5).pause == 7.0


OF_ONE_AND_OF_TWO = [took(1, 10, 11), took(1, 20, 21, copy=True), took(2, 30, 31), took(2, 50, 51, copy=True)]


@pytest.mark.parametrize(
    ("faults", "not_under_way", "most_of_a_fault"),
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
    faults: list[Fault], not_under_way: int, most_of_a_fault: int
) -> None:
    made = figures([event(1), event(2)], {1, 2}, {"line": OF_ONE_AND_OF_TWO}, faults=faults)
    assert (made.not_under_way, made.most_of_a_fault, made.duplicated) == (not_under_way, most_of_a_fault, 2)


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
    assert (made.duplicated, made.not_under_way, made.most_of_a_fault) == (2, 0, 1)


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
    assert (both.acknowledged, both.delivered, both.most_of_a_line) == (5, 5, 1)
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
    assert (made.broken, made.delivered, made.duplicated, made.most_of_a_fault) == ({}, 2, 1, 1)


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
    assert (made.broken, made.duplicated, made.most_of_a_fault) == ({}, 2, 1)


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
    assert least_burden(wanted) == burden


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, unique=True), min_size=1, max_size=6))
def test_no_way_to_share_it_bears_less(wanted: list[list[int]]) -> None:
    ways = itertools.product(*wanted)
    assert least_burden(wanted) == min(max(Counter(way).values()) for way in ways)


def test_copies_after_a_fault_are_counted_by_sender() -> None:
    requests = [
        *(asked(number, 5, answered_at=None, sender=number % 5) for number in (1, 2, 6)),
        *(asked(number, 7, answered_at=7.1, copy=True, sender=number % 5) for number in (1, 2, 6)),
    ]
    winners = {1: 1, 2: 1, 6: 1}
    made = figures_of_jobs([1, 2, 6], [1, 2, 6], requests, winners=winners, faults=[Fault(6, 6.5)])
    assert (made.broken, made.duplicated, made.most_of_a_fault) == ({}, 3, 2)
