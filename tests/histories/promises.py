"""What holds in every history: judged by what left, what arrived, and what is stored in the end (contract 4, 6)."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

from broker_project.core.db import rows
from tests.histories.world import RETRIES, Worker
from tests.support.stepped_worker import HUNG, MAX_IN_FLIGHT, Request

if TYPE_CHECKING:
    from tests.histories.history import History, Published

STATUS_OF: Final = {200: "DELIVERED", 302: "3xxNOTSUPPORTED", 404: "REJECTED"}
MARKED: Final = """
SELECT d.id, l.worker, l.epoch, l.lane = 'main' AND s.diverted_since IS NOT NULL
  FROM delivery_open d JOIN delivery_line l ON l.id = d.line_id
  JOIN subscriptions_subscription s ON s.id = d.subscription_id
 WHERE d.status = 'IN_FLIGHT'
"""
DELIVERIES: Final = "SELECT id, status, attempts FROM delivery_delivery"
ATTEMPTS: Final = "SELECT delivery_id, number, status_code FROM delivery_attempt ORDER BY id"
TOLD: Final = "SELECT l.subscriber_id, e.sequence FROM delivery_lineevent e JOIN delivery_line l ON l.id = e.line_id"
LEFT_OUT: Final = f"{TOLD} WHERE e.delivery_id IS NULL AND e.kind = 'NUMBER_UNCERTAIN'"
"""Up to which number they are left out, since the database was restored."""
LEFT_OVER: Final = """
SELECT 'lease of line ' || id FROM delivery_line WHERE lease_until IS NOT NULL
 UNION ALL SELECT status || ' delivery ' || id FROM delivery_open
 UNION ALL SELECT 'group ' || id FROM delivery_queuegroup
 UNION ALL SELECT 'notes of line ' || l.id FROM delivery_line l JOIN delivery_pageread p ON p.line_id = l.id
            WHERE l.sender IS NOT NULL GROUP BY l.id HAVING count(*) > 1
"""


class BrokenPromise(AssertionError):
    """Says which."""


def require(is_kept: object, promise: str) -> None:
    if not is_kept:
        raise BrokenPromise(promise)


def check_names(history: "History", published: dict[int, "Published"]) -> None:
    """Check that deliveries and groups have ids that no others have had, nor any that a restored database lacks."""
    of_others = {name for known in (history.published, history.lost) for name in names_of(known)}
    require(not of_others & names_of(published), "no id names a second message (4.10)")


def names_of(published: dict[int, "Published"]) -> set[int | None]:
    return {*published, *(one.group_id for one in published.values())} - {None}


def check_request(history: "History", worker: Worker, request: Request) -> None:
    """Check what must hold when a request leaves."""
    if history.marked is None:
        history.marked = {one: of for one, *of in rows(MARKED)}
    *owner, is_diverted = history.marked.get(request.delivery_id, [None])
    require(owner == [worker.name, request.epoch], f"only who owns a line sends what is marked: {owner}")
    require(not is_diverted, "a main line sends nothing of a subscription whose endpoint hangs (5.10)")
    earlier = [one for one in history.requests if one.webhook_id == request.webhook_id]
    is_unknown = any(
        one.is_flagged or one.result in {0, "lost", "cut", HUNG} or one.attempt == request.attempt for one in earlier
    )
    require(request.is_flagged or not is_unknown, "what may have arrived before is flagged (4.11)")
    is_doubtful = request.delivery_id in history.doubtful
    require(request.is_flagged or not is_doubtful, "what was unfinished in a restored database is flagged (4.10)")
    require(is_unknown or history.faults[request.line_id] or not request.is_flagged, "nothing else is flagged (4.11)")
    beside = [one for one in worker.wire.in_flight if one.line is request.line]
    require(len(beside) <= width(history, request), "a line has as many in flight as it may (4.1, 4.13, 6.6)")
    workers = [other for other in history.workers if other is not worker and other not in history.outdated]
    others = [(other, one) for other in workers for one in other.wire.in_flight]
    leased = [one for other, one in others if one.line_id == request.line_id and other.clock < one.line.lease_ends_at]
    require(not leased, "nothing is in flight under an earlier lease, unless its worker is frozen (4.16)")
    require(len({one.webhook_id for one in beside}) == len(beside), "one endpoint at a time is asked (6.4)")


def is_queued(history: "History", request: Request) -> bool:
    return history.published[request.delivery_id].group_id is not None


def width(history: "History", request: Request) -> int:
    """Return how many requests of a line may be in flight."""
    return MAX_IN_FLIGHT if is_queued(history, request) else owner_of(history, request).concurrency


def owner_of(history: "History", request: Request) -> Any:
    return history.world.owners[request.destination.subscription_id]


def check(history: "History") -> None:
    """Check what must hold in the end."""
    left_over = [what for (what,) in rows(LEFT_OVER)]
    require(not left_over, f"nothing is left over: {left_over}")
    check_ends(history)
    check_repetitions(history)
    check_one_message_a_number(history)
    by_owner: dict[int, list[Request]] = defaultdict(list)
    for request in history.requests:
        if not is_queued(history, request):
            by_owner[owner_of(history, request).pk].append(request)
    for owner_id, requests in by_owner.items():
        if history.published[requests[0].delivery_id].ordering_key is not None:
            check_keys(history, owner_id, requests)
            continue
        if width(history, requests[0]) > 1:
            require(not any(one.sequence for one in requests), "what has no order has no number (4.13)")
            continue
        check_numbers(history, owner_id, requests)
        check_order(history, requests, "left_at")
        arrived = [one for one in requests if one.arrived_at]
        retried = history.world.retried
        held = [it for it in arrived if it.destination.subscription_id != retried and not is_given_up(history, it)]
        check_order(history, sorted(held, key=arrival), "arrived_at")


def arrival(request: Request) -> int:
    """Return when it arrived."""
    return request.arrived_at


def is_given_up(history: "History", request: Request) -> bool:
    """Return whether it was cancelled after its worker had lost the line: nobody waits until it arrives."""
    losses = [at for at in history.faults[request.line_id] if request.left_at <= at <= request.arrived_at]
    return bool(losses) and request.delivery_id in history.cancelled


def check_ends(history: "History") -> None:
    """Check that each delivery ended as its endpoint said, and that each attempt is recorded once."""
    ends = {one: (status, attempts) for one, status, attempts in rows(DELIVERIES)}
    require(ends.keys() == history.published.keys(), "what is accepted ends, and nothing else (2.1, 11.3)")
    sent: dict[int, list[Request]] = defaultdict(list)
    for request in history.requests:
        sent[request.delivery_id].append(request)
    codes: dict[int, list[int | None]] = defaultdict(list)
    for one, number, code in rows(ATTEMPTS):
        # the attempts of a group are counted over all its endpoints
        heard = [it.result for it in sent[one] if it.attempt == number or is_queued(history, it)]
        require((code or "no answer") in {it if isinstance(it, int) else "no answer" for it in heard}, f"{one}: {code}")
        codes[one].append(code)
    winners = Counter(history.published[one].group_id for one, (status, _) in ends.items() if status == "DELIVERED")
    require(all(count == 1 for group_id, count in winners.items() if group_id), "a group has one winner (6.4)")
    for one, (status, attempts) in ends.items():
        group_id, last = history.published[one].group_id, next(reversed(codes[one]), None)
        is_retried = history.published[one].subscription_id == history.world.retried
        expected = "FAILED" if is_retried and attempts == RETRIES + 1 and last != 200 else STATUS_OF.get(last or 0)
        is_redundant = status == "REDUNDANT" and winners[group_id] == 1
        is_cancelled = status == "CANCELLED" and one in history.cancelled
        require(status == expected or is_redundant or is_cancelled, f"{one} is {status}, not {expected}")
        require(attempts == len(codes[one]), f"each attempt of {one} is recorded once (10.3)")
        if group_id is None:
            require(all(it.attempt <= attempts + is_cancelled for it in sent[one]), f"{one} was sent after its end")


def check_repetitions(history: "History") -> None:
    """Check that each request whose outcome was lost is due to a fault, and what a fault costs (4.11, 4.13, 6.4)."""
    same = sorted(history.requests, key=lambda one: (one.webhook_id, one.attempt, one.left_at))
    cost: Counter[tuple[int, int]] = Counter()
    for _, requests in groupby(same, key=lambda one: (one.webhook_id, one.attempt)):
        for first, second in pairwise(requests):
            most, faults = width(history, first), history.faults[first.line_id]
            # One with several slots may be given up a round after a commit that was not heard, with what it just sent.
            earlier = [at for at in faults if at < first.left_at][-1:] if most > 1 else []
            causes = [at for at in faults if first.left_at <= at <= second.left_at] or earlier
            require(causes, f"{first.webhook_id} is repeated although nothing broke")
            cost[first.line_id, causes[0]] += 1
            require(cost[first.line_id, causes[0]] <= most, f"a fault costs a line at most {most}")


def may_be_diverted(history: "History", delivery_id: int) -> bool:
    """Return whether a delivery may have waited for an endpoint that hangs: later ones were sent before it (5.10)."""
    retried = history.world.retried
    hung = any(one.result == HUNG and one.destination.subscription_id == retried for one in history.requests)
    return hung and history.published[delivery_id].subscription_id == retried


def check_numbers(history: "History", owner_id: int, requests: Sequence[Request]) -> None:
    """Check that numbers name deliveries, and rise by one in the order of first sending (4.10).

    What was certainly not sent gives its number back, but for what goes to the retry line. What is flagged when it is
    first seen got its number from a worker that was killed before it sent that.
    """
    may_have_arrived = {(one.delivery_id, one.sequence) for one in requests if one.result != "refused"}
    pairs = dict.fromkeys((one.delivery_id, one.sequence) for one in requests)
    given = [pair for pair in pairs if pair in may_have_arrived]
    numbers = [number for _, number in given]
    marked_by_killed = {one.delivery_id for one in requests if one.is_flagged} - {
        one.delivery_id for one in requests if not one.is_flagged
    }
    in_order = [
        number
        for delivery_id, number in given
        if delivery_id not in marked_by_killed and not may_be_diverted(history, delivery_id)
    ]
    require(in_order == sorted(in_order), f"numbers rise: {given}")
    check_kept(history, given)
    check_gaps(owner_id, numbers)


def check_keys(history: "History", owner_id: int, requests: Sequence[Request]) -> None:
    """Check the order within each ordering key, and that each number is used or the line's history has it (4.18)."""
    by_key: dict[str | None, list[Request]] = defaultdict(list)
    for request in requests:
        by_key[history.published[request.delivery_id].ordering_key].append(request)
    for of_key in by_key.values():
        check_order(history, of_key, "left_at")
        arrived = [one for one in of_key if one.arrived_at and not is_given_up(history, one)]
        check_order(history, sorted(arrived, key=arrival), "arrived_at")
        numbers = [number for _, number in dict.fromkeys((one.delivery_id, one.sequence) for one in of_key)]
        require(numbers == sorted({*numbers}), f"numbers rise within a key: {numbers}")
    names = {(one.delivery_id, one.sequence) for one in requests}
    require(len(names) == len({number for _, number in names}), "a number names one delivery")
    check_kept(history, names)
    check_gaps(owner_id, [number for _, number in names])


def check_kept(history: "History", names: Collection[tuple[int, int]]) -> None:
    """Check that a delivery keeps its number, unless it was under way in a database that was restored."""
    kept = [one for one, _ in names if one not in history.doubtful]
    require(len({*kept}) == len(kept), f"a delivery keeps its number: {names}")


def check_gaps(owner_id: int, numbers: Collection[int]) -> None:
    """Check that no number is missing, or that the line's history says so: one, or all up to where they jumped."""
    left_out, told = ({number for of, number in rows(one) if of == owner_id} for one in (LEFT_OUT, TOLD))
    missing = {*range(max(left_out, default=0) + 1, max(numbers, default=0))} - {*numbers} - told
    require(not missing, f"no number is missing, or the line's history says so: {missing}")


def check_one_message_a_number(history: "History") -> None:
    """Check that a number of a line names one delivery, also if a restored database has forgotten it (4.10)."""
    named: dict[tuple[int, int], int] = {}
    for request in [*history.forgotten, *history.requests]:
        if request.sequence and request.result != "refused":
            owner_id = owner_of(history, request).pk
            one = named.setdefault((owner_id, request.sequence), request.delivery_id)
            require(one == request.delivery_id, f"a number names one delivery: {request.sequence}")


def check_order(history: "History", requests: Iterable[Request], at: str) -> None:
    """Check that what is older comes first, unless nothing was sent to its subscription for a while (4.1, 4.10)."""
    first: dict[int, Request] = {}
    for request in requests:
        first.setdefault(request.delivery_id, request)
    for (new, overtook), (old, _) in combinations(first.items(), 2):
        published = history.published[old]
        was_off = any(
            one == published.subscription_id and since <= getattr(overtook, at) and until >= published.at
            for one, since, until in history.off
        )
        of_another = history.published[new].subscription_id != published.subscription_id
        was_off |= of_another and may_be_diverted(history, old)
        require(new < old or was_off, f"{new} overtook {old} ({at})")
