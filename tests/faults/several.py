"""What the endpoint of a subscriber that is sent several at a time wrote down, and what that says."""

from collections.abc import Collection, Sequence

from broker_project.stack.demo.records import Published
from tests.faults.exchanges import Exchange, Fault
from tests.faults.figures import Figures, renamed
from tests.faults.jobs import extra_copies, most_of_a_fault, unexplained


def figures_of_several(
    published: Collection[Published],
    begun: Collection[int],
    requests: Sequence[Exchange],
    *,
    faults: Collection[Fault] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge the requests of a subscriber that gets everything in no order."""
    acknowledged = {event.number for event in published}
    accepted = {one.number for one in requests if one.status == 200}
    pairs = [*extra_copies(requests)]
    copies = [copy for copy, _ in pairs]
    return Figures(
        acknowledged=len(acknowledged),
        delivered=len(accepted),
        lost=len(acknowledged - accepted),
        recovered=len(accepted - acknowledged),
        unexpected=sum(one.number not in begun for one in requests),
        duplicated=len(copies),
        unflagged=sum(not one.flagged for one in copies) + renamed({"": requests}),
        not_under_way=len(unexplained(requests, faults)),
        altered=sum(one.altered for one in requests),
        unfinished=unfinished,
        most_of_a_line=len(copies),
        most_of_a_fault=most_of_a_fault(pairs, faults),
    )
