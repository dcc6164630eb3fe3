"""What is said of each case: its figures, and whether all that it expects came true."""

from dataclasses import asdict, dataclass, field

import pytest

from tests.faults.auditing import Audit
from tests.faults.figures import Figures

LONGEST_REASON = 300


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
        self.reason = self.reason or f"{part}: {' '.join(problem.split())}"[:LONGEST_REASON]


@dataclass(frozen=True)
class Random:
    """How long things are broken at random, and what decides which."""

    seconds: float = 60.0
    seed: int = 1


VERDICT = pytest.StashKey[Verdict]()
BEGUN = pytest.StashKey[list[int]]()
"""What the machine had done when the case began."""
AUDITS = pytest.StashKey[bool]()
"""Whether every case of this run is audited in the end."""
RANDOM = pytest.StashKey[Random]()
FAILED = pytest.StashKey[bool]()
"""Whether a case of this run has failed at the broker that runs."""


def name_of(item: pytest.Item) -> str:
    """Return what a case is called: as its mark says with its parameters, else as its function in hyphened words."""
    mark = item.get_closest_marker("case")
    if mark and mark.args:
        return str(mark.args[0]).format(**item.callspec.params if hasattr(item, "callspec") else {})
    return item.name.removeprefix("test_").rstrip("]").replace("[", "-").replace("_", "-")
