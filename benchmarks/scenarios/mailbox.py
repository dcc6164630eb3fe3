"""`mailbox.polling`: how soon those who wait have a message, what they cost publishers, and what the others are told.

Nobody, as many as may wait, and many more, by turns on one stack.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks import arranging
from benchmarks.bench import Bench
from benchmarks.children import RunningConsumers, fetching, publishing
from benchmarks.errands import Errand
from benchmarks.figures import Figure, Outcome, at_most, percentile
from benchmarks.moments import watched
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import problems
from benchmarks.scenarios.taking import faults, purge, wanted_from
from benchmarks.throughput import publishing_problems
from benchmarks.timing import accepted

NAME: Final = "mailbox.polling"
SEATS: Final = 48
"""As many as may wait in the one web process of the stack."""
CLIENTS: Final = 200
WAIT_SECONDS: Final = 20.0
CONNECTIONS: Final = 4
ROUNDS: Final = 2
SOON: Final = at_most(100)
DEARER: Final = at_most(1.2)


@dataclass(slots=True)
class Seen:
    """What came of one number of clients, over all rounds; all in seconds."""

    accepted: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    """At each message that came: how many others were waiting, or about to; no seconds."""
    turned_away: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def run(bench: Bench, *, per_second: float = 50, seats: int = SEATS, clients: int = CLIENTS) -> Outcome:
    """Publish singly and evenly to a mailbox; every other round goes the other way round."""
    seen: defaultdict[int, Seen] = defaultdict(Seen)
    for number in range(ROUNDS):
        for count in sorted((0, seats, clients), reverse=bool(number % 2)):
            _measure(bench, count, per_second, seen[count])
    wrong = [text for one in seen.values() for text in one.problems]
    if seen[seats].turned_away:
        wrong.append(f"{len(seen[seats].turned_away)} of {seats} clients were turned away")
    if not seen[clients].turned_away:
        wrong.append(f"all of {clients} clients were let wait")
    return Outcome([*_figures(seen, seats, clients)], wrong)


def _measure(bench: Bench, clients: int, per_second: float, seen: Seen) -> None:
    """Publish to a new mailbox for which so many clients ask, a message a call."""
    (event_type,) = arranging.event_types(bench.api, 1)
    mailbox, key = arranging.mailbox(bench.api, event_type)
    publisher_key = arranging.publisher_key(bench.api)
    plan = Plan(bench.stack.web, publisher_key, [event_type], CONNECTIONS, per_call=1, per_second=per_second)
    with fetching(Errand(bench.stack.web, key, mailbox, clients, most=1, wait=WAIT_SECONDS)) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, _ = watched(bench, consumers, publisher)
            published = publisher.stop()
        seen.accepted += accepted(published, since=begin.at)
        seen.problems += publishing_problems(published)
        if clients:
            seen.problems += _gone_through(bench, consumers, published, seen)
        else:
            purge(bench, mailbox)


def _gone_through(bench: Bench, consumers: RunningConsumers, published: Sequence[Published], seen: Seen) -> list[str]:
    """Wait until all is acknowledged; note how soon it came, and return what was wrong."""
    wanted = wanted_from(published)
    unfinished = bench.unfinished(consumers, sum(wanted.values()))
    taken = consumers.report()
    seen.reached += taken.receipts.seconds()
    seen.others += taken.others
    seen.turned_away += taken.turned_away
    return [*unfinished, *faults(taken), *problems(taken.receipts, wanted)]


def _figures(seen: Mapping[int, Seen], seats: int, clients: int) -> Iterator[Figure]:
    alone = _p95(seen[0].accepted)
    yield Figure(NAME, "accepted p95, nobody waits", alone, "ms")
    for count in (seats, clients):
        one = seen[count]
        yield Figure(NAME, f"accepted p95, {count} clients", _p95(one.accepted), "ms")
        yield Figure(NAME, f"reached p95, {count} clients", _p95(one.reached), "ms", target=SOON)
        yield Figure(NAME, f"others waiting p50, {count} clients", percentile(sorted(one.others), 50), "clients")
    ratio = _p95(seen[seats].accepted) / max(1e-9, alone)
    yield Figure(NAME, f"accepted p95, {seats} clients : nobody", ratio, "times", target=DEARER)
    yield Figure(NAME, f"turned away p95, {clients} clients", _p95(seen[clients].turned_away), "ms", target=SOON)


def _p95(seconds: Sequence[float]) -> float:
    return percentile(sorted(seconds), 95) * 1e3
