"""`sync`: how much later an answer comes through the broker than from the endpoint itself, and how many a second."""

from collections.abc import Iterator
from typing import Final

from benchmarks import arranging
from benchmarks.asker import Asked, Questions
from benchmarks.bench import Bench
from benchmarks.children import asking, running_sink
from benchmarks.figures import Figure, Outcome, at_most, percentile
from benchmarks.receipts import JobLog
from benchmarks.wire import path_of

NAME: Final = "sync"
TARGET: Final = at_most(5)
PERCENTS: Final = (50, 95, 99)
RECORDED: Final = """
    SELECT count(*) FILTER (WHERE delivery.status = 'DELIVERED' AND attempt.status_code = 204), count(*)
    FROM delivery_delivery delivery LEFT JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
    WHERE event_type.name = '{name}'
"""


def run(bench: Bench, *, per_second: float = 100) -> Outcome:
    """Ask endpoint and broker by turns, by the clock; then the one and the other as fast as they answer."""
    with running_sink(log=JobLog()) as sink:
        (event_type,) = arranging.event_types(bench.api, 1, kind="SYNC")
        arranging.subscribe(bench.api, sink, [event_type])
        key = arranging.publisher_key(bench.api)
        endpoint, options = sink.endpoint(0).removesuffix(path_of(0)), bench.options
        times = (per_second, options.seconds, options.warm_seconds)
        asked = asking(Questions(bench.stack.web, key, event_type, endpoint, path_of(0), *times))
        faults = sink.report().faults
    ((delivered, recorded),) = bench.ask(RECORDED.format(name=event_type))
    problems = [*asked.problems, *(f"{count} questions {fault}" for fault, count in faults.items())]
    if delivered != recorded:
        problems.append(f"of {recorded} calls {delivered} are recorded as answered")
    return Outcome([*_figures(asked)], problems)


def _figures(asked: Asked) -> Iterator[Figure]:
    direct, through = sorted(asked.direct), sorted(asked.through)
    for percent in PERCENTS:
        bare, answered = percentile(direct, percent) * 1e3, percentile(through, percent) * 1e3
        target = TARGET if percent == PERCENTS[0] else None
        yield Figure(NAME, f"overhead p{percent}", answered - bare, "ms", target=target)
        yield Figure(NAME, f"answered p{percent}", answered, "ms", bare)
    yield Figure(NAME, "answered", asked.through_rate, "/s", asked.direct_rate)
