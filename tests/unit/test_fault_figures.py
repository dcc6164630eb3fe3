"""The figures of the fault tests find what is wrong."""

from collections.abc import Sequence

import pytest

from broker_project.stack.demo.records import Published
from tests.faults.figures import Exchange, Figures, figures


def event(number: int) -> Published:
    """One call after the other."""
    return Published(number, "Test.Event", "", "", number, number + 0.5, 0, 0)


def got(number: int, sequence: int | None = None, status: int | None = 200, *, flagged: bool = False) -> Exchange:
    return Exchange(number, f"dlv_{number}", sequence or number, flagged, altered=False, at=number, status=status)


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
