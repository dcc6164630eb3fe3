"""What the broker's own ordering audit says of a case: the application that summarizes, over the case's database."""

import datetime as dt
import os
import subprocess
from dataclasses import dataclass, field

from broker_project.stack.application import python
from broker_project.stack.folders import ROOT
from tests.real_broker import Broker

MOST_SECONDS = 600.0
"""Spark takes ten of them, on a machine with nothing else to do."""
MOST_NAMED = 3
"""Findings in the reason why a case has not passed."""

NOW = "SELECT clock_timestamp(), (SELECT coalesce(max(id), 0) FROM subscriptions_subscriber)"
COUNTED = """
    SELECT (SELECT coalesce(sum(deliveries), 0) FROM analytics_reliability WHERE subscriber_id > %(before)s)::int,
           coalesce(sum(checked), 0)::int,
           coalesce(sum(explained_inversions + explained_duplicates), 0)::int,
           coalesce(sum(inversions + duplicates - explained_inversions - explained_duplicates), 0)::int
      FROM analytics_audit WHERE subscriber_id > %(before)s
"""
EXPLANATIONS = """
    SELECT DISTINCT explanation FROM analytics_findings WHERE subscriber_id > %(before)s AND explanation <> ''
     ORDER BY explanation
"""
UNEXPLAINED = """
    SELECT finding, delivery_id, other_id FROM analytics_findings
     WHERE subscriber_id > %(before)s AND explanation = '' ORDER BY delivery_id LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found of the deliveries that had ended."""

    audited: int
    """Deliveries looked at: whether they were sent, or taken, twice."""
    numbered: int
    """Those of them with a `webhook-sequence`: whether they were sent in order, too."""
    explained: int
    """Inversions and duplicates that the contract allows."""
    unexplained: int
    explanations: tuple[str, ...] = ()
    named: tuple[str, ...] = field(default=(), repr=False)
    """Some of the unexplained."""

    def __str__(self) -> str:
        why = f" ({'; '.join(self.explanations)})" if self.explanations else ""
        return (
            f"audited {self.audited}, numbered {self.numbered}, explained {self.explained}{why},"
            f" unexplained {self.unexplained}"
        )

    @property
    def problem(self) -> str:
        """Why a case with this audit has not passed; empty: it has."""
        if not self.audited:
            return "nothing was audited"
        return f"unexplained {self.unexplained}: {', '.join(self.named)}" if self.unexplained else ""

    def as_object(self) -> dict[str, object]:
        """Return it as an object for JSON."""
        counts = {name: getattr(self, name) for name in ("audited", "numbered", "explained", "unexplained")}
        return {**counts, "explanations": [*self.explanations]}


class Since:
    """The history of a broker from now on, of subscribers yet to be made."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._at, self._before = broker.ask(NOW)[0]

    def audit(self) -> Audit:
        """Summarize what has happened until now, and return what the audit found; what has not ended is left out."""
        summarize(self._broker, self._at)
        ((audited, numbered, explained, unexplained),) = self._broker.ask(COUNTED, before=self._before)
        explanations = tuple(text for (text,) in self._broker.ask(EXPLANATIONS, before=self._before))
        found = self._broker.ask(UNEXPLAINED, before=self._before, most=MOST_NAMED)
        return Audit(audited, numbered, explained, unexplained, explanations, tuple(named(*one) for one in found))


def summarize(broker: Broker, since: dt.datetime) -> None:
    """Run the application as a program of its own, whatever is left of the broker's workers; PostgreSQL is enough."""
    ended = subprocess.run(
        python("tests.faults.summarizing", since.isoformat()),
        cwd=ROOT,
        env={**os.environ, **broker.stack.environment},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"no audit: {ended.stderr}"


def named(finding: str, delivery: int, other: int | None) -> str:
    """Return a finding in words."""
    return f"{finding} (delivery {delivery} after {other})" if other else f"{finding} (delivery {delivery})"
