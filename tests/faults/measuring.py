"""What a fault costs those that have nothing to do with it: latency, memory, processes that end."""

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker_project.stack.supervisor import Child
from tests.faults.endpoints import Endpoint
from tests.faults.load import Load
from tests.faults.verdicts import Verdict
from tests.real_broker import Broker

MOST_GROWN_MIB = 30
"""An allocator keeps some of what it has seen; what keeps all that an endpoint sends does not stop there."""
FORGET_THE_PEAK = "5"
"""What Linux takes in `clear_refs` for this; see proc(5)."""


@dataclass(slots=True)
class Phase:
    """A stretch of a test, from now until `end`; what was published in it is measured apart."""

    began: float = field(default_factory=time.monotonic)
    ended: float = float("inf")

    def end(self) -> "Phase":
        """Begin the next."""
        self.ended = time.monotonic()
        return Phase()


def latency(load: Load, endpoints: Collection[Endpoint], phase: Phase, *, percent: int) -> float:
    """Return the milliseconds from publish call to first request that so many of those in the phase did not exceed."""
    begun = {
        event.number: event.started
        for publisher in load.publishers
        for event in publisher.published
        if phase.began <= event.started < phase.ended
    }
    first: dict[tuple[str, int], float] = {}
    for endpoint in endpoints:
        for one in endpoint.exchanges:
            if one.number in begun:
                first.setdefault((endpoint.name, one.number), one.at - begun[one.number])
    taken = sorted(first.values())
    return round(taken[min(len(taken) - 1, len(taken) * percent // 100)] * 1000, 1)


@contextlib.contextmanager
def unharmed(broker: Broker, verdict: Verdict) -> Iterator[None]:
    """Fail if meanwhile a process ended, or a worker grew, be it for a moment, or logged an exception."""
    stack = broker.stack.supervisor
    children = [stack["web"], stack["beat"], *broker.workers()]
    pids = [child.pid for child in children]
    watched = [Watched(worker) for worker in broker.workers()]
    yield
    assert [child.pid for child in children] == pids
    verdict.measured["grown_mib"] = max(worker.grown_mib() for worker in watched)
    assert verdict.measured["grown_mib"] <= MOST_GROWN_MIB
    assert not any("Traceback" in worker.logged() for worker in watched)


class Watched:
    """A process from now on."""

    def __init__(self, child: Child) -> None:
        self._log = child.log
        self._logged = child.log.stat().st_size
        self._folder = Path(f"/proc/{child.pid}")
        (self._folder / "clear_refs").write_text(FORGET_THE_PEAK)
        self._before = self._peak_mib()

    def grown_mib(self) -> float:
        """Return by how much more memory it had in use at some moment than at first."""
        return round(self._peak_mib() - self._before, 1)

    def logged(self) -> str:
        return self._log.read_bytes()[self._logged :].decode(errors="replace")

    def _peak_mib(self) -> float:
        status = (self._folder / "status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
