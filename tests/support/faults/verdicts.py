"""The verdict of a case, tables of verdicts, and measurements of the machine."""

import contextlib
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pytest

from broker_project.stack.supervisor import Child
from tests.support.faults.audit import Audit
from tests.support.faults.endpoints import Endpoint
from tests.support.faults.figures import Figures
from tests.support.faults.load import Load
from tests.support.real_broker import Broker

MAX_REASON_LENGTH = 300


BEGUN = pytest.StashKey[list[int]]()
"""What the machine had done when the case began."""
AUDITS = pytest.StashKey[bool]()
"""Whether every case of this run is audited in the end."""

FAILED = pytest.StashKey[bool]()
"""Whether a case of this run has failed at the broker that runs."""

FIGURES = ("acknowledged", "delivered", "lost", "recovered", "unexpected", "duplicated", "inverted", "unflagged")
BETWEEN = "/"
"""Between the kind of work and what was broken, in the name of a case that has both."""

TOLD_PERCENT: Final = 5
"""Less says nothing."""
STEAL: Final = 7
"""Where `/proc/stat` has it, among user, nice, system, idle, iowait, irq and softirq."""

MAX_GROWN_MIB = 30
"""An allocator keeps some of what it has seen; what keeps all that an endpoint sends does not stop there."""
PEAK, IN_USE = "VmHWM", "VmRSS"
FORGET_THE_PEAK = "5"
"""What Linux takes in `clear_refs` for this; see proc(5)."""


@dataclass(slots=True)
class Verdict:
    """One case and how it went, as far as it went."""

    case: str
    figures: Figures = field(default_factory=Figures)
    measured: dict[str, float] = field(default_factory=dict)
    """What only this case measures, by name."""
    audit: Audit | None = None
    """What the broker's own audit says; None: it was not asked."""
    reason: str = ""
    """Why it did not pass."""
    seconds: float = 0.0
    """How long it took, without the audit; a share, where several cases share a fault."""

    def __str__(self) -> str:
        more = "".join(f", {name} {value:g}" for name, value in self.measured.items())
        audit = f", {self.audit}" if self.audit else ""
        passed = f"passed no: {self.reason}" if self.reason else "passed yes"
        return f"{self.case}: {self.figures}{more}{audit}, seconds {self.seconds:g}, {passed}"

    def as_object(self) -> dict[str, object]:
        """Return it as an object for JSON."""
        why = {"reason": self.reason} if self.reason else {}
        more = {"measured": self.measured} if self.measured else {}
        audit = self.audit.as_object() if self.audit else {}
        ended = {"seconds": self.seconds, "passed": not self.reason}
        return {"case": self.case, **asdict(self.figures), **audit, **more, **ended, **why}

    def take(self, audit: Audit) -> None:
        """Add what the audit says; what it cannot explain does not pass."""
        self.audit = audit
        if audit.problem:
            self.fail("audit", audit.problem)

    def fail(self, part: str, problem: str) -> None:
        """Keep the first reason, shortly."""
        self.reason = self.reason or f"{part}: {' '.join(problem.split())}"[:MAX_REASON_LENGTH]


@dataclass(frozen=True)
class Random:
    """How long things are broken at random, and what decides which."""

    seconds: float = 60.0
    seed: int = 1


VERDICT = pytest.StashKey[Verdict]()


RANDOM = pytest.StashKey[Random]()


def name_of(item: pytest.Item) -> str:
    """Return what a case is called: as its mark says with its parameters, else as its function in hyphened words."""
    mark = item.get_closest_marker("case")
    if mark and mark.args:
        return str(mark.args[0]).format(**item.callspec.params if hasattr(item, "callspec") else {})
    return item.name.removeprefix("test_").rstrip("]").replace("[", "-").replace("_", "-")


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return every case with its figures, and before that what was broken against the kinds of work."""
    crossed = {verdict.case: verdict for verdict in verdicts if BETWEEN in verdict.case}
    tables = [[*_crossed(crossed)] if crossed else [], [*_listed(verdicts)]]
    return "\n\n".join("\n".join(lines) for lines in tables if lines) + "\n"


def summary(verdicts: Sequence[Verdict], seconds: float) -> str:
    """Return the failed cases and the totals of all, which took `seconds` together."""
    failed = [f"{verdict.case}: {verdict.reason}" for verdict in verdicts if verdict.reason]
    audits = [verdict.audit for verdict in verdicts if verdict.audit]
    found = f"audited {sum(audit.audited for audit in audits)}, unexplained {sum(one.unexplained for one in audits)}"
    passed = len(verdicts) - len(failed)
    return "\n".join([*failed, f"{len(verdicts)} cases in {seconds / 60:.0f} minutes, {passed} passed; {found}"])


def _crossed(verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    """Yield the lines of a table with a row for each fault, and a column for each kind of work."""
    kinds = [*dict.fromkeys(case.partition(BETWEEN)[0] for case in verdicts)]
    faults = dict.fromkeys(case.partition(BETWEEN)[2] for case in verdicts)
    yield _row("", *kinds)
    yield _row("---", *("---:" for _ in kinds))
    for fault in faults:
        yield _row(f"`{fault}`", *(_cell(verdicts.get(f"{kind}{BETWEEN}{fault}")) for kind in kinds))


def _cell(verdict: Verdict | None) -> str:
    """Return how much was delivered, and how often it came twice; or that it has not passed."""
    if not verdict:
        return ""
    copies = f" + {verdict.figures.duplicated}" if verdict.figures.duplicated else ""
    return "**no**" if verdict.reason else f"{verdict.figures.delivered}{copies}"


def _listed(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the lines of a table with a row for each case."""
    names = (*(name for name in FIGURES), "pause", "unexplained", "seconds")
    yield _row("case", "passed", *names)
    yield _row("---", "---", *("---:" for _ in names))
    for verdict in verdicts:
        counts = [getattr(verdict.figures, name) for name in FIGURES]
        unexplained = verdict.audit.unexplained if verdict.audit else "-"
        passed = "**no**" if verdict.reason else "yes"
        measured = (verdict.figures.pause or "-", unexplained, f"{verdict.seconds:g}")
        yield _row(f"`{verdict.case}`", passed, *counts, *measured)


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def ticks() -> list[int]:
    """Return what all CPUs together have done since the start, as Linux counts it."""
    return [int(count) for count in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : STEAL + 2]]


def stolen_since(before: list[int]) -> dict[str, float]:
    """Return the share of the CPU that others had, in percent, by its name; nothing where that is next to nothing."""
    passed = [now - then for now, then in zip(ticks(), before, strict=True)]
    percent = round(100 * passed[STEAL] / max(sum(passed), 1))
    return {"stolen_percent": percent} if percent >= TOLD_PERCENT else {}


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
    """Return the percentile of the milliseconds from publish call to first request in a phase."""
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
    assert verdict.measured["grown_mib"] <= MAX_GROWN_MIB
    assert not any("Traceback" in worker.logged() for worker in watched)


class Watched:
    """A process from now on."""

    def __init__(self, child: Child) -> None:
        self._pid = child.pid
        self._log = child.log
        self._logged = child.log.stat().st_size
        Path(f"/proc/{child.pid}/clear_refs").write_text(FORGET_THE_PEAK)
        self._before = mib_of(self._pid, PEAK)

    def grown_mib(self) -> float:
        """Return by how much more memory it had in use at some moment than at first."""
        return round(mib_of(self._pid, PEAK) - self._before, 1)

    def logged(self) -> str:
        return self._log.read_bytes()[self._logged :].decode(errors="replace")


def mib_of(pid: int | None, what: str) -> float:
    """Return a size in the status of a process, 0 if it has just ended."""
    return sum(map(int, re.findall(rf"^{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M))) / 1024


def memory_of(broker: Broker) -> dict[str, int]:
    """Return the MiB of each process that runs, by name."""
    running = (child for child in broker.stack.supervisor if child.pid)
    return {child.service.name: int(mib_of(child.pid, IN_USE)) for child in running}
