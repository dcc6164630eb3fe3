"""Events that are delivered and then replayed, and what their endpoint's log says about both."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tests.faults.exchanges import Exchange, Fault, most_of_a_fault, unexplained
from tests.faults.figures import Figures
from tests.faults.replayed import compared


@dataclass(frozen=True, slots=True)
class Round:
    """What was published, and where in the endpoint's log the first time and the second time begin and end."""

    numbers: frozenset[int]
    begun: int
    asked: int
    ended: int

    def judged(self, log: Sequence[Exchange], faults: Collection[Fault]) -> Figures:
        """Judge the second time by the first."""
        first, second = log[self.begun : self.asked], log[self.asked : self.ended]
        again = compared(first, second)
        return Figures(
            acknowledged=len(self.numbers),
            delivered=len({one.number for one in second if one.status == 200}),
            lost=again.missing + len(self.numbers - {one.number for one in first}),
            unexpected=sum(one.number not in self.numbers for one in (*first, *second)),
            duplicated=again.copies,
            inverted=again.inverted,
            unflagged=again.unflagged,
            not_under_way=unexplained(second, faults),
            altered=sum(one.altered for one in second),
            misrecorded=again.doubled,
            most_of_a_fault=max(most_of_a_fault(time, faults) for time in (first, second)),
        )
