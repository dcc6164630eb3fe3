"""Whose script is run next: turns are shared by CPU time, not by number (contract 8.3)."""

from collections import Counter
from collections.abc import Hashable

import pytest

from subscriptions.scripting.jobs import Job
from subscriptions.scripting.process_pool import MAX_WAITING_SECONDS, QueuedScript, Waiting


@pytest.fixture(autouse=True)
def _unhurried_scripts() -> None:
    """Leave the limits as they are: here the time is an argument."""


def taken(waiting: Waiting) -> QueuedScript | None:
    """Take one as a single process would that runs them all."""
    return waiting.take(slow=False) or waiting.take(slow=True)


def shared(costs: dict[int, float], seconds: float) -> Counter[int]:
    """Let owners, whose scripts cost so much CPU, run one after the other, each at once again; return their runs."""
    waiting, now, runs = Waiting(), 0.0, Counter[int]()
    for owner in costs:
        waiting.add(owner, Job("", owner), now)
    while now < seconds:
        entry = taken(waiting)
        assert entry
        owner = entry.job.owner
        runs[owner] += 1
        now += costs[owner]
        waiting.ran(owner, costs[owner])
        waiting.add(owner, Job("", owner), now)
    return runs


@pytest.mark.behaviour("8.3")
@pytest.mark.parametrize(
    ("others", "cost", "own", "least"),
    [(200, 0.027, 0.001, 50), (200, 0.049, 0.001, 50), (40, 0.25, 0.075, 9), (3, 0.02, 0.02, 100)],
)
def test_each_owner_has_its_share_of_the_time(others: int, cost: float, own: float, least: int) -> None:
    runs = shared({0: own} | dict.fromkeys(range(1, others + 1), cost), seconds=100 if cost > 0.1 else 16)
    assert runs[0] >= least
    assert max(runs[number] for number in range(1, others + 1)) - min(runs[n] for n in range(1, others + 1)) <= 1


@pytest.mark.behaviour("8.3")
def test_who_is_new_does_not_wait_for_ever_behind_the_quick() -> None:
    waiting = Waiting()
    for owner in range(1, 50):
        waiting.ran(owner, 0.04)
        waiting.add(owner, Job("", owner), 0.0)
    waiting.add("new", Job("", 1000), 0.0)
    turns: list[Hashable] = []
    while "new" not in turns:
        entry = waiting.take(slow=False)
        assert entry
        turns.append(entry.token)
        waiting.ran(entry.job.owner, 0.04)
        waiting.add(entry.token, entry.job, 0.0)
    assert len(turns) < 100


def test_who_waits_in_vain_does_not_lose_its_place_to_the_quicker() -> None:
    waiting, now, runs = Waiting(), 0.0, Counter[int]()
    costs = {0: 0.075} | dict.fromkeys(range(1, 41), 0.25)
    for owner, cost in costs.items():
        waiting.ran(owner, cost)
        waiting.add(owner, Job("", owner), now)
    while now < 100.0:
        entry = taken(waiting)
        assert entry
        owner = entry.job.owner
        runs[owner] += 1
        now += costs[owner]
        waiting.ran(owner, costs[owner])
        for again in (owner, *waiting.give_up(now)):
            assert isinstance(again, int)
            waiting.add(again, Job("", again), now)
    assert min(runs[number] for number in range(1, 41)) >= 8
    assert runs[0] >= 24


def test_who_was_away_has_saved_up_nothing() -> None:
    waiting = Waiting()
    waiting.ran(1, 0.01)
    for _ in range(100):
        waiting.add(2, Job("", 2), 0.0)
        assert taken(waiting)
        waiting.ran(2, 0.04)
    runs: Counter[int] = Counter()
    for owner in (1, 2):
        waiting.add(owner, Job("", owner), 0.0)
    for _ in range(20):
        entry = taken(waiting)
        assert entry
        runs[entry.job.owner] += 1
        waiting.ran(entry.job.owner, 0.04)
        waiting.add(entry.token, entry.job, 0.0)
    assert abs(runs[1] - runs[2]) <= 8, "the credit of one long run"


def test_what_is_given_up_is_let_go_at_once() -> None:
    waiting = Waiting()
    for number in range(1000):
        waiting.add(number, Job("", number, b"body"), 0.0)
    waiting.add("last", Job("", 1), 1.0)
    assert len(waiting.give_up(MAX_WAITING_SECONDS)) == 1000
    assert [entry.token for entry in waiting._entries.values()] == ["last"]
    assert len(waiting._others.tickets) == 1
    last = waiting.take(slow=False)
    assert last
    assert (last.token, waiting.oldest(), waiting.give_up(9.0)) == ("last", None, [])
