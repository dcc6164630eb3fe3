"""What a fault costs those that have nothing to do with it: latency, memory, processes that end."""

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker_project.stack.children import Child
from tests.faults.endpoints import Endpoint
from tests.faults.load import Load
from tests.faults.verdicts import Verdict
from tests.real_broker import Broker

MIB = 1024 * 1024
MOST_GROWTH_MIB = 30
"""By which a worker may grow: an allocator keeps some of what it has seen, a leak does not stop there."""


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
    """Fail if meanwhile a process ended, or a worker grew or logged an exception."""
    stack = broker.stack.supervisor
    workers = broker.workers()
    children = [stack["web"], stack["beat"], *workers]
    pids = [child.pid for child in children]
    before = [(resident_bytes(worker), worker.log.stat().st_size) for worker in workers]
    yield
    assert [child.pid for child in children] == pids
    grown = max(resident_bytes(worker) - resident for worker, (resident, _) in zip(workers, before, strict=True))
    verdict.measured["grown_mib"] = round(grown / MIB, 1)
    assert grown <= MOST_GROWTH_MIB * MIB
    assert not any("Traceback" in _logged_since(worker, log) for worker, (_, log) in zip(workers, before, strict=True))


def resident_bytes(child: Child) -> int:
    """Return how much memory a process has in use."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def _logged_since(child: Child, position: int) -> str:
    return child.log.read_bytes()[position:].decode(errors="replace")
