"""`sync` and `scripts`: what the broker adds to a call, and what scripts that never end cost other subscribers."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Control
from typing import Final
from urllib.parse import urlsplit

from benchmarks.bench import Bench, Options
from benchmarks.connection import Connection, Refused, body_of, timetable
from benchmarks.figures import PERCENTS, Figure, Outcome, at_most, percentile, percentiles, ratio
from benchmarks.measure import Load, measured
from benchmarks.processes import spawned
from benchmarks.publisher import Pace
from benchmarks.receipts import JobLog
from benchmarks.sink import running_sink

QUICK_SCRIPT: Final = "$outmessage = $inmessage"
CONNECTIONS: Final = 8

RECORDED: Final = """
    SELECT count(*) FILTER (WHERE delivery.status = 'DELIVERED' AND attempt.status_code = 204), count(*)
    FROM delivery_delivery delivery LEFT JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_eventtype event_type ON event_type.id = subscription.event_type_id
    WHERE event_type.name = %s
"""


def run_scripts(bench: Bench, *, subscribers: int = 100, hostile: int = 50, per_second: float = 100) -> Outcome:
    """Publish 100 single messages a second over 100 subscribers, alone and beside 50 with endless scripts.

    Then all of the 100 have a quick script. Deliveries to the others are held or still waiting in the end.
    """
    figures: list[Figure] = []
    wrong: list[str] = []
    p99 = []
    variants = (("alone", "", 0), ("beside", "", hostile), ("scripted, beside", QUICK_SCRIPT, hostile))
    for what, script, beside in variants:
        pace = Pace(per_second=per_second / subscribers * (subscribers + beside), connections=CONNECTIONS)
        found = measured(bench, Load(subscribers, pace, script=script, hostile=beside))
        seconds = found.receipts.seconds()
        figures += [*percentiles(f"{what},", seconds), Figure(f"{what}, delivered", len(seconds), "messages")]
        wrong += found.problems
        p99.append(percentile(sorted(seconds), 99))
    figures.append(Figure("p99, beside / alone", ratio(p99[1], p99[0]), "times", target=at_most(3)))
    return Outcome(figures, wrong)


@dataclass(slots=True)
class CallTimes:
    """How long answers took, in seconds, and the answers a second when each follows the one before at once."""

    direct: list[float] = field(default_factory=list)
    through: list[float] = field(default_factory=list)
    direct_rate: float = 0.0
    through_rate: float = 0.0
    problems: list[str] = field(default_factory=list)


class SyncCaller:
    """One connection to the endpoint and one to the broker, used one call after the other."""

    def __init__(self, number: int, web: str, token: str, event_type: str, endpoint: str) -> None:
        self._number = number
        self._count = 0
        self._endpoint = Connection(endpoint, token), urlsplit(endpoint).path.encode()
        self._broker = Connection(web, token), f"/api/v1/events/{event_type}".encode()

    def call(self, *, through_broker: bool) -> float:
        """Call the broker or the endpoint itself; return the seconds to the answer."""
        self._count += 1
        connection, path = self._broker if through_broker else self._endpoint
        body = body_of(self._number, self._count, time.monotonic_ns())
        began = time.monotonic()
        connection.post(path, body, expected=204)
        return time.monotonic() - began

    def call_by_timetable(self, per_second: float, options: Options) -> Iterator[tuple[float, float]]:
        """Call both whenever they are due, until the time is up; yield the seconds to their answers."""
        step = CONNECTIONS / per_second
        first = time.monotonic() + self._number * step / CONNECTIONS
        counts_from = first + options.warm_seconds
        for due in timetable(first, step):
            if due >= counts_from + options.seconds:
                return
            direct, through = self.call(through_broker=False), self.call(through_broker=True)
            if due >= counts_from:
                yield direct, through

    def count_calls(self, seconds: float, *, through_broker: bool) -> int:
        """Call for some seconds, each time as soon as there is an answer; return the number of answers."""
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            self.call(through_broker=through_broker)
            count += 1
        return count


def call(
    control: Control, web: str, token: str, event_type: str, endpoint: str, per_second: float, options: Options
) -> None:
    """Run the callers' process; send the `CallTimes` once all calls have been made."""
    times, callers = CallTimes(), [SyncCaller(n, web, token, event_type, endpoint) for n in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as threads:

        def rate(seconds: float, *, through_broker: bool) -> float:
            counts = threads.map(lambda caller: caller.count_calls(seconds, through_broker=through_broker), callers)
            return float(sum(counts)) / seconds

        try:
            for pairs in threads.map(lambda caller: [*caller.call_by_timetable(per_second, options)], callers):
                times.direct += [direct for direct, _ in pairs]
                times.through += [through for _, through in pairs]
            times.through_rate = rate(options.seconds, through_broker=True)
            times.direct_rate = rate(options.seconds / 4, through_broker=False)
        except (Refused, OSError) as problem:
            times.problems.append(str(problem))
    control.send(times)


def run_sync(bench: Bench, *, per_second: float = 100) -> Outcome:
    """Make 100 SYNC calls a second, alternately to the endpoint and the broker; then as fast as each answers."""
    with running_sink(log=JobLog()) as sink:
        (event_type,) = bench.create_event_types(1, kind="SYNC")
        bench.subscribe(sink, [event_type])
        whom = bench.stack.web, bench.publisher_key(), event_type, sink.endpoint(0)
        with spawned(call, *whom, per_second, bench.options) as (_, control):
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
        figures.append(Figure(f"overhead p{percent}", answered - bare, "ms", target=target))
        figures.append(Figure(f"answered p{percent}", answered, "ms", bare))
    figures.append(Figure("answered", times.through_rate, "/s", times.direct_rate))
    return Outcome(figures, problems)
