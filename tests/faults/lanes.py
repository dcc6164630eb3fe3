"""A subscriber's two lines, by the requests that its endpoint got: its own, and the one of what is tried again apart.

Under a policy that sets nothing aside and holds nothing, only first tries are made by its own line.
"""

from collections.abc import Collection, Sequence

from broker_project.stack.demo.records import Published
from tests.faults.exchanges import (
    Exchange,
    Fault,
    extra_copies,
    misnumbered,
    most_of_a_fault,
    out_of_order,
    overlapping,
    unexplained,
)
from tests.faults.figures import Figures, renamed
from tests.faults.jobs import extra_copies as copies_in_any_order
from tests.faults.jobs import most_of_a_fault as most_of_a_fault_in_any_order
from tests.faults.jobs import unexplained as unexplained_in_any_order


def lanes(requests: Sequence[Exchange]) -> tuple[list[Exchange], list[Exchange]]:
    """Return what the line sent, and what its retry line did."""
    return [one for one in requests if one.attempt == 1], [one for one in requests if one.attempt > 1]


def have_one_under_way(requests: Sequence[Exchange]) -> bool:
    """Say whether both lines wait for an answer."""
    return all(lane and lane[-1].status is None for lane in lanes(requests))


def figures_of_lanes(
    published: Collection[Published],
    begun: Collection[int],
    requests: Sequence[Exchange],
    *,
    doomed: Collection[int] = (),
    faults: Collection[Fault] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge the requests of one subscriber in the order of their arrival; those for `doomed` events are all refused."""
    own, apart = lanes(requests)
    events = {event.number: event for event in published}
    accepted = {one.number for one in requests if one.status == 200}
    pairs = [*copies_in_any_order(apart)]
    copies = [copy.request for copy in extra_copies(own)] + [copy for copy, _ in pairs]
    return Figures(
        acknowledged=len(events),
        delivered=len(accepted),
        lost=len(events.keys() - accepted - {*doomed}),
        recovered=len(accepted - events.keys()),
        unexpected=sum(one.number not in begun for one in requests) + len(accepted & {*doomed}),
        duplicated=len(copies),
        inverted=out_of_order(own, events),
        unflagged=sum(not one.flagged for one in copies) + renamed({"": requests}),
        not_under_way=unexplained(own, faults) + len(unexplained_in_any_order(apart, faults)),
        overlapping=overlapping(own) + overlapping(apart),
        misnumbered=misnumbered(own),
        altered=sum(one.altered for one in requests),
        unfinished=unfinished,
        most_of_a_line=max(len([*extra_copies(own)]), len(pairs)),
        most_of_a_fault=max(most_of_a_fault(own, faults), most_of_a_fault_in_any_order(pairs, faults)),
    )
