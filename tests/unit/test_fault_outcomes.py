"""What must not be, of one kind of work under one fault."""

import pytest

from tests.faults.everything.surviving import judged
from tests.faults.figures import Figures

FINE = Figures(acknowledged=3, delivered=3)


@pytest.mark.parametrize(
    ("figures", "most_copies", "wrong"),
    [
        (FINE, 0, []),
        (Figures(delivered=3, duplicated=2, most_of_a_fault=1), 1, []),
        (Figures(delivered=3, duplicated=900), None, []),
        (Figures(delivered=3, duplicated=1), 0, ["duplicated 1"]),
        (
            Figures(delivered=3, duplicated=2, most_of_a_fault=2),
            1,
            ["2 copies of a fault, and not 1 at most"],
        ),
        (Figures(delivered=3, lost=1, inverted=2), 1, ["lost 1", "inverted 2"]),
        (Figures(delivered=3, pause=5.5), 1, ["a pause of 5.5 s, and not 5 s at most"]),
        (Figures(), 1, ["nothing was delivered"]),
    ],
)
def test_what_is_wrong_with_an_outcome(figures: Figures, most_copies: int | None, wrong: list[str]) -> None:
    assert [*judged(figures, most_copies, max_delay_seconds=5.0)] == wrong
