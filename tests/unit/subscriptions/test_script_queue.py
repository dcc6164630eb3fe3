"""Whose script is run next: turns are shared by CPU time, not by number (contract 8.3)."""

from collections import Counter
from collections.abc import Hashable

import pytest

from subscriptions.scripting.jobs import Job
from subscriptions.scripting.runner import MAX_WAITING_SECONDS, QueuedScript, ScriptQueue


@pytest.fixture(autouse=True)
def _unhurried_scripts() -> None:
    """Leave the limits as they are: here the time is an argument."""


def run_next(queue: ScriptQueue, costs: dict[int, float], now: float = 0.0) -> tuple[QueuedScript, float]:
    """Run the next script as a single process does; its owner asks for it again at once. Return it, and the time."""
    entry = queue.take(slow=False) or queue.take(slow=True)
    assert entry
    owner = entry.job.owner
    now += costs[owner]
    queue.charge(owner, costs[owner])
    queue.add(entry.token, entry.job, now)
    return entry, now


def shared(costs: dict[int, float], seconds: float) -> Counter[int]:
    """Let owners, whose scripts cost so much CPU, run one after the other, each at once again; return their runs."""
    queue, now, runs = ScriptQueue(), 0.0, Counter[int]()
    for owner in costs:
        queue.add(owner, Job("", owner), now)
    while now < seconds:
        entry, now = run_next(queue, costs, now)
        runs[entry.job.owner] += 1
    return runs


@pytest.mark.behaviour("8.3")
@pytest.mark.parametrize(
    ("others", "cost", "own", "least"),
    [(200, 0.027, 0.001, 50), (200, 0.049, 0.001, 50), (40, 0.25, 0.075, 9), (3, 0.02, 0.02, 100)],
)
def test_each_owner_gets_its_share_of_the_cpu(others: int, cost: float, own: float, least: int) -> None:
    runs = shared({0: own} | dict.fromkeys(range(1, others + 1), cost), seconds=100 if cost > 0.1 else 16)
    assert runs[0] >= least
    assert max(runs[number] for number in range(1, others + 1)) - min(runs[n] for n in range(1, others + 1)) <= 1


@pytest.mark.behaviour("8.3")
def test_a_new_owner_is_not_starved_by_quick_ones() -> None:
    queue, costs = ScriptQueue(), dict.fromkeys([*range(1, 50), 1000], 0.04)
    for owner in range(1, 50):
        queue.charge(owner, 0.04)
        queue.add(owner, Job("", owner), 0.0)
    queue.add("new", Job("", 1000), 0.0)
    turns: list[Hashable] = []
    while "new" not in turns:
        turns.append(run_next(queue, costs)[0].token)
    assert len(turns) < 100


def test_an_owner_whose_jobs_time_out_keeps_its_place() -> None:
    queue, now, runs = ScriptQueue(), 0.0, Counter[int]()
    costs = {0: 0.075} | dict.fromkeys(range(1, 41), 0.25)
    for owner, cost in costs.items():
        queue.charge(owner, cost)
        queue.add(owner, Job("", owner), now)
    while now < 100.0:
        entry, now = run_next(queue, costs, now)
        runs[entry.job.owner] += 1
        for again in queue.expire(now):
            assert isinstance(again, int)
            queue.add(again, Job("", again), now)
    assert min(runs[number] for number in range(1, 41)) >= 8
    assert runs[0] >= 24


def test_an_idle_owner_saves_up_no_credit() -> None:
    queue, costs, runs = ScriptQueue(), {1: 0.04, 2: 0.04}, Counter[int]()
    queue.charge(1, 0.01)
    queue.add(2, Job("", 2), 0.0)
    for _ in range(100):
        run_next(queue, costs)
    queue.add(1, Job("", 1), 0.0)
    for _ in range(20):
        runs[run_next(queue, costs)[0].job.owner] += 1
    assert abs(runs[1] - runs[2]) <= 8, "the credit of one long run"


def test_expired_jobs_are_freed_at_once() -> None:
    queue = ScriptQueue()
    for number in range(1000):
        queue.add(number, Job("", number, b"body"), 0.0)
    queue.add("last", Job("", 1), 1.0)
    assert len(queue.expire(MAX_WAITING_SECONDS)) == 1000
    assert [entry.token for entry in queue._entries.values()] == ["last"]
    assert len(queue.lanes[False].tickets) == 1
    last = queue.take(slow=False)
    assert last
    assert (last.token, queue.oldest(), queue.expire(9.0)) == ("last", None, [])
