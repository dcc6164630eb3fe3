"""What endpoints wrote down of a QUEUE's jobs, and what that says about copies: each job is for one of them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from tests.faults.burdens import least_burden
from tests.faults.exchanges import TRAVEL_SECONDS, Exchange, Fault
from tests.faults.figures import Figures

SENDERS = 5
UNDER_WAY = 16
"""Jobs that each sender has under way at most."""


def extra_copies(requests: Sequence[Exchange]) -> Iterator[tuple[Exchange, Exchange]]:
    """Yield the requests for jobs that an earlier one may have given away already, with that one."""
    taken: dict[int, Exchange] = {}
    for one in requests:
        if one.number in taken:
            yield one, taken[one.number]
        if one.may_have_been_taken:
            taken[one.number] = one


def was_under_way(request: Exchange, fault: Fault) -> bool:
    """Say whether a request may have been sent and not yet settled during the fault."""
    return request.at <= fault.ended + TRAVEL_SECONDS and request.may_be_unsettled_at(fault)


def unexplained(requests: Sequence[Exchange], faults: Collection[Fault]) -> list[Exchange]:
    """Return the copies of what was not under way when something was broken, and print them."""
    found = [
        (copy, repeated)
        for copy, repeated in extra_copies(requests)
        if not any(copy.at > fault.begun and was_under_way(repeated, fault) for fault in faults)
    ]
    for copy, repeated in found:
        before = [fault for fault in faults if fault.begun < copy.at]
        print(f"no fault explains {copy}, a copy of {repeated}; those before: {before[-3:]}")
    return [copy for copy, _ in found]


def most_of_a_fault(copies: Sequence[tuple[Exchange, Exchange]], faults: Collection[Fault]) -> int:
    """Return the most copies that one fault must have cost, of what comes in no order."""
    causes = (
        [n for n, fault in enumerate(faults) if copy.at > fault.begun and was_under_way(repeated, fault)]
        for copy, repeated in copies
    )
    return least_burden([*filter(None, causes)])


def most_copies(copies: Sequence[tuple[Exchange, Exchange]], faults: Collection[Fault]) -> int:
    """Return the most copies that one fault must have cost one sender."""
    of_sender: defaultdict[int, list[tuple[Exchange, Exchange]]] = defaultdict(list)
    for pair in copies:
        of_sender[pair[0].message_id % SENDERS].append(pair)
    return max((most_of_a_fault(pairs, faults) for pairs in of_sender.values()), default=0)


def figures_of_jobs(
    acknowledged: Collection[int],
    begun: Collection[int],
    requests: Sequence[Exchange],
    *,
    winners: Mapping[int, int],
    faults: Sequence[Fault] = (),
    unfinished: int = 0,
) -> Figures:
    """Judge the requests for jobs, in the order of their arrival wherever they went.

    `winners` is what the books say: how many deliveries of each job are DELIVERED.
    """
    copies = [*extra_copies(requests)]
    accepted = {one.number for one in requests if one.status == 200}
    names = {(one.number, one.webhook_id) for one in requests}
    return Figures(
        acknowledged=len(acknowledged),
        delivered=len(accepted),
        lost=len({*acknowledged} - accepted),
        recovered=len(accepted - {*acknowledged}),
        unexpected=sum(one.number not in begun for one in requests),
        duplicated=len(copies),
        unflagged=sum(not copy.flagged for copy, _ in copies) + len(names) - len({number for number, _ in names}),
        not_under_way=len(unexplained(requests, faults)) if faults else 0,
        altered=sum(one.altered for one in requests),
        misrecorded=sum(winners.get(number, 0) != 1 for number in {*acknowledged} | accepted | winners.keys()),
        unfinished=unfinished,
        most_of_a_line=max(Counter(copy.message_id % SENDERS for copy, _ in copies).values(), default=0),
        most_of_a_fault=most_copies(copies, faults),
    )
