"""`scripts`: what scripts that never end do to the others, those without a script and those with a quick one."""

from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks import bench as benchmarks_bench
from benchmarks.asker import Asked, Questions
from benchmarks.bench import Bench
from benchmarks.children import asking, publishing, running_sink
from benchmarks.connection import path_of
from benchmarks.figures import Figure, Outcome, at_most, percentile
from benchmarks.publisher import Plan
from benchmarks.receipts import JobLog, problems
from benchmarks.throughput import publishing_problems, wanted_from, watched

SCRIPTS: Final = "scripts"
ENDLESS: Final = "while (1);"
QUICK: Final = "$outmessage = $inmessage"
SCRIPTS_TARGET: Final = at_most(3)
CONNECTIONS: Final = 8

SYNC: Final = "sync"
TARGET: Final = at_most(5)
PERCENTS: Final = (50, 95, 99)


def run_scripts(bench: Bench, *, subscribers: int = 100, hostile: int = 50, per_second: float = 100) -> Outcome:
    """Measure those that have no script alone, then beside hostile ones, then with a quick script beside those."""
    figures: list[Figure] = []
    wrong: list[str] = []
    for what, script, beside in (("alone", "", 0), ("beside", "", hostile), ("scripted, beside", QUICK, hostile)):
        seconds, problem = _measure(bench, subscribers, script, beside, per_second / subscribers)
        figures += [
            Figure(SCRIPTS, f"{what}, p{percent}", percentile(seconds, percent) * 1e3, "ms") for percent in (50, 95, 99)
        ]
        figures.append(Figure(SCRIPTS, f"{what}, delivered", len(seconds), "messages"))
        wrong += problem
    alone, beside_them = (figure.value for figure in figures if figure.figure in {"alone, p99", "beside, p99"})
    figures.append(
        Figure(SCRIPTS, "p99, beside / alone", beside_them / max(1e-9, alone), "times", target=SCRIPTS_TARGET)
    )
    return Outcome(figures, wrong)


def _measure(
    bench: Bench, subscribers: int, script: str, hostile: int, each_per_second: float
) -> tuple[list[float], Sequence[str]]:
    """Publish singly and evenly over all; return how long each took to those that are not hostile, and what is wrong.

    The deliveries of the hostile ones are held or still waiting in the end.
    """
    with running_sink() as sink:
        event_types = benchmarks_bench.event_types(bench.api, subscribers + hostile)
        benchmarks_bench.subscribe(bench.api, sink, event_types[:subscribers], script=script)
        benchmarks_bench.subscribe(bench.api, sink, event_types[subscribers:], called="hostile", script=ENDLESS)
        rate = each_per_second * len(event_types)
        plan = Plan(
            bench.stack.web,
            benchmarks_bench.publisher_key(bench.api),
            event_types,
            CONNECTIONS,
            per_call=1,
            per_second=rate,
        )
        with publishing(plan, sink) as publisher:
            watched(bench, sink, publisher)
            published = publisher.stop()
            wanted = {key: count for key, count in wanted_from(published).items() if key[0] < subscribers}
            wrong = bench.unfinished(sink, sum(wanted.values()))
        receipts = sink.report()
    return receipts.seconds(), [*wrong, *publishing_problems(published), *problems(receipts, wanted)]


RECORDED: Final = """
    SELECT count(*) FILTER (WHERE delivery.status = 'DELIVERED' AND attempt.status_code = 204), count(*)
    FROM delivery_delivery delivery LEFT JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
    WHERE event_type.name = '{name}'
"""


def run_sync(bench: Bench, *, per_second: float = 100) -> Outcome:
    """Ask endpoint and broker by turns, by the clock; then the one and the other as fast as they answer."""
    with running_sink(log=JobLog()) as sink:
        (event_type,) = benchmarks_bench.event_types(bench.api, 1, kind="SYNC")
        benchmarks_bench.subscribe(bench.api, sink, [event_type])
        key = benchmarks_bench.publisher_key(bench.api)
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
        yield Figure(SYNC, f"overhead p{percent}", answered - bare, "ms", target=target)
        yield Figure(SYNC, f"answered p{percent}", answered, "ms", bare)
    yield Figure(SYNC, "answered", asked.through_rate, "/s", asked.direct_rate)
