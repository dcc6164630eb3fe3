"""What endpoints wrote down of a QUEUE's jobs, and what that says about copies: each job is for one of them."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from tests.faults.exchanges import SETTLE_SECONDS, TRAVEL_SECONDS, Exchange, Fault
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
    ended = float("inf") if request.answered_at is None else request.answered_at + SETTLE_SECONDS
    return request.at <= fault.ended + TRAVEL_SECONDS and ended >= fault.begun


def unexplained(requests: Sequence[Exchange], faults: Collection[Fault]) -> list[Exchange]:
    """Return the copies of what was not under way when something was broken."""
    return [
        copy
        for copy, repeated in extra_copies(requests)
        if not any(copy.at > fault.begun and was_under_way(repeated, fault) for fault in faults)
    ]


def most_copies(copies: Sequence[tuple[Exchange, Exchange]], faults: Collection[Fault]) -> int:
    """Return the most copies that one fault has cost one sender.

    What several faults came upon, at the same time or before it was repeated, the first of them has cost.
    """
    costs: Counter[tuple[float, int]] = Counter()
    for copy, repeated in copies:
        begun = [fault.begun for fault in faults if copy.at > fault.begun and was_under_way(repeated, fault)]
        costs.update([(min(begun), copy.message_id % SENDERS)] if begun else [])
    return max(costs.values(), default=0)


def figures_of_jobs(
    acknowledged: Collection[int],
    begun: Collection[int],
    requests: Sequence[Exchange],
    *,
    winners: Mapping[int, int],
    faults: Collection[Fault] = (),
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
