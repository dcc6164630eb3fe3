"""`sync` and `scripts`: what the broker adds to a call, and what scripts that never end cost other subscribers."""

from typing import Final

from benchmarks.bench import Bench, create_event_types, create_publisher, subscribe
from benchmarks.connection import path_of
from benchmarks.figures import Figure, Outcome, at_most, percentile
from benchmarks.measure import PERCENTS, Load, measured, percentiles
from benchmarks.processes import spawned
from benchmarks.receipts import JobLog
from benchmarks.sink import running_sink
from benchmarks.sync_client import CallPlan, CallTimes, call

SCRIPTS: Final = "scripts"
QUICK_SCRIPT: Final = "$outmessage = $inmessage"
CONNECTIONS: Final = 8

SYNC: Final = "sync"
RECORDED: Final = """
    SELECT count(*) FILTER (WHERE delivery.status = 'DELIVERED' AND attempt.status_code = 204), count(*)
    FROM delivery_delivery delivery LEFT JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
    WHERE event_type.name = %s
"""


def run_scripts(bench: Bench, *, subscribers: int = 100, hostile: int = 50, per_second: float = 100) -> Outcome:
    """Measure subscribers alone, beside hostile ones, and beside those with a quick script each.

    Deliveries to the hostile ones are held or still waiting in the end.
    """
    figures: list[Figure] = []
    wrong: list[str] = []
    p99 = []
    for what, script, beside in (
        ("alone", "", 0),
        ("beside", "", hostile),
        ("scripted, beside", QUICK_SCRIPT, hostile),
    ):
        rate = per_second / subscribers * (subscribers + beside)
        load = Load(SCRIPTS, subscribers, per_second=rate, connections=CONNECTIONS, script=script, hostile=beside)
        found = measured(bench, load)
        seconds = found.receipts.seconds()
        figures += percentiles(SCRIPTS, f"{what},", seconds, {})
        figures.append(Figure(SCRIPTS, f"{what}, delivered", len(seconds), "messages"))
        wrong += found.problems
        p99.append(percentile(seconds, 99))
    ratio = p99[1] / max(1e-9, p99[0])
    figures.append(Figure(SCRIPTS, "p99, beside / alone", ratio, "times", target=at_most(3)))
    return Outcome(figures, wrong)


def run_sync(bench: Bench, *, per_second: float = 100) -> Outcome:
    """Call the endpoint and the broker alternately by a timetable, then each as fast as it answers."""
    with running_sink(log=JobLog()) as sink:
        (event_type,) = create_event_types(bench.api, 1, kind="SYNC")
        subscribe(bench.api, sink, [event_type])
        endpoint, options = sink.endpoint(0).removesuffix(path_of(0)), bench.options
        plan = CallPlan(
            web=bench.stack.web,
            token=create_publisher(bench.api),
            event_type=event_type,
            endpoint=endpoint,
            path=path_of(0),
            per_second=per_second,
            seconds=options.seconds,
            warm_seconds=options.warm_seconds,
        )
        with spawned(call, plan) as (_, control):
            times: CallTimes = control.recv()
        faults = sink.report().faults
    ((delivered, recorded),) = bench.ask(RECORDED, event_type)
    problems = [*times.problems, *(f"{count} calls {fault}" for fault, count in faults.items())]
    if delivered != recorded:
        problems.append(f"of {recorded} calls {delivered} are recorded as answered")
    direct, through = sorted(times.direct), sorted(times.through)
    figures = []
    for percent in PERCENTS:
        bare, answered = percentile(direct, percent) * 1e3, percentile(through, percent) * 1e3
        target = at_most(5) if percent == PERCENTS[0] else None
        figures.append(Figure(SYNC, f"overhead p{percent}", answered - bare, "ms", target=target))
        figures.append(Figure(SYNC, f"answered p{percent}", answered, "ms", bare))
    figures.append(Figure(SYNC, "answered", times.through_rate, "/s", times.direct_rate))
    return Outcome(figures, problems)
