"""`mailbox.throughput`: four consumers fetch ten messages a call, and acknowledge them, from a box that has more."""

from collections.abc import Iterator
from typing import Final

from benchmarks import arranging
from benchmarks.bench import Bench
from benchmarks.children import fetching, publishing
from benchmarks.errands import Errand, Taken
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.moments import cpu_figures, watched
from benchmarks.publisher import Plan
from benchmarks.receipts import problems
from benchmarks.scenarios.taking import calls, faults, wanted_from
from benchmarks.throughput import awaiting, publishing_problems

NAME: Final = "mailbox.throughput"
TARGET: Final = at_least(3_000)
MOST: Final = 10
CONSUMERS: Final = 4
CONNECTIONS: Final = 4
"""Of the publishers."""
WAIT_SECONDS: Final = 0.0
"""Nobody waits, so that what a fetch takes is no waiting."""


def run(bench: Bench, *, per_call: int = 100, window: int = 3_000) -> Outcome:
    """Publish batches so that up to `window` messages wait or are in flight, as fast as they are acknowledged."""
    (event_type,) = arranging.event_types(bench.api, 1)
    mailbox, key = arranging.mailbox(bench.api, event_type)
    publisher_key = arranging.publisher_key(bench.api)
    plan = Plan(bench.stack.web, publisher_key, [event_type], CONNECTIONS, per_call, window=window)
    with fetching(Errand(bench.stack.web, key, mailbox, CONSUMERS, MOST, WAIT_SECONDS)) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, end = watched(bench, consumers, publisher)
            measured = consumers.report()
            published = publisher.stop()
        wanted = wanted_from(published)
        wrong = bench.unfinished(consumers, sum(wanted.values()))
        taken = consumers.report()
    rate = (end.delivered - begin.delivered) / (end.at - begin.at)
    speed = Figure(NAME, "acknowledged", rate, "/s", target=TARGET)
    busy = Figure(NAME, "publishers awaiting answers", awaiting(published, begin, end), "% of time")
    wrong += [*publishing_problems(published), *faults(taken), *problems(taken.receipts, wanted)]
    return Outcome([speed, *_fetched(measured), busy, *cpu_figures(NAME, begin, end)], wrong)


def _fetched(measured: Taken) -> Iterator[Figure]:
    yield Figure(NAME, "messages a fetch", measured.messages / max(1, len(measured.fetched)), f"of {MOST}")
    asked = len(measured.fetched) + len(measured.in_vain)
    yield Figure(NAME, "fetches in vain", 100 * len(measured.in_vain) / max(1, asked), "% of all")
    yield from calls(NAME, measured)
