"""SYNC callers in one process: each alternates between the endpoint itself and the broker, with the same request."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Control
from typing import Final

from benchmarks.connection import Connection, Refused, body_of

ANSWERED: Final = 204
CONNECTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Where to call, and how often."""

    web: str
    token: str
    event_type: str
    endpoint: str
    """The endpoint's address without its path."""
    path: str
    per_second: float
    seconds: float
    warm_seconds: float
    """Not counted."""


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

    def __init__(self, number: int, plan: CallPlan) -> None:
        self._number = number
        self._plan = plan
        self._count = 0
        self._endpoint = Connection(plan.endpoint, plan.token), plan.path.encode()
        self._broker = Connection(plan.web, plan.token), f"/api/v1/events/{plan.event_type}".encode()

    def call(self, *, through_broker: bool) -> float:
        """Call the broker or the endpoint itself; return the seconds to the answer."""
        self._count += 1
        connection, path = self._broker if through_broker else self._endpoint
        body = body_of(self._number, self._count, time.monotonic_ns())
        began = time.monotonic()
        connection.post(path, body, expected=ANSWERED)
        return time.monotonic() - began

    def call_by_timetable(self, times: CallTimes) -> None:
        """Call both whenever they are due, until the time is up."""
        step = CONNECTIONS / self._plan.per_second
        due = time.monotonic() + self._number * step / CONNECTIONS
        counts_from = due + self._plan.warm_seconds
        while due < counts_from + self._plan.seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            direct, through = self.call(through_broker=False), self.call(through_broker=True)
            if due >= counts_from:
                times.direct.append(direct)
                times.through.append(through)
            due += step

    def count_calls(self, seconds: float, *, through_broker: bool) -> int:
        """Call for some seconds, each time as soon as there is an answer; return the number of answers."""
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            self.call(through_broker=through_broker)
            count += 1
        return count


def call(control: Control, plan: CallPlan) -> None:
    """Run the callers' process; send the `CallTimes` once all calls have been made."""
    callers = [SyncCaller(number, plan) for number in range(CONNECTIONS)]
    times = CallTimes()

    def side_by_side(act: Callable[[SyncCaller], object]) -> None:
        def run(caller: SyncCaller) -> None:
            try:
                act(caller)
            except (Refused, OSError) as problem:
                times.problems.append(str(problem))

        threads = [threading.Thread(target=run, args=[caller]) for caller in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def rate(seconds: float, *, through_broker: bool) -> float:
        counts: list[int] = []
        side_by_side(lambda caller: counts.append(caller.count_calls(seconds, through_broker=through_broker)))
        return sum(counts) / seconds

    side_by_side(lambda caller: caller.call_by_timetable(times))
    times.through_rate = rate(plan.seconds, through_broker=True)
    times.direct_rate = rate(plan.seconds / 4, through_broker=False)
    control.send(times)
