"""A subscriber's line and its retry line are judged each in its way, by what its endpoint got of both."""

from typing import Any

import pytest

from broker_project.stack.demo.records import Published
from tests.faults.exchanges import Exchange, Fault
from tests.faults.lanes import figures_of_lanes

EVENTS = [Published(number, "A", "", "", number, number + 0.5, 0, 1) for number in (1, 2, 3)]
KILLED = Fault(10.5, 10.5)


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
