"""What the broker's own ordering audit says of a case: the application that summarizes, over the case's database."""

import datetime as dt
import os
import subprocess
from dataclasses import dataclass, field

from broker_project.stack.folders import ROOT
from broker_project.stack.services import python
from tests.real_broker import Broker

MOST_SECONDS = 1800.0
"""Spark takes ten of them for a case, on a machine with nothing else to do; it is the nicest of all processes."""
MOST_NAMED = 3
"""Findings in the reason why a case has not passed."""

NOW = "SELECT clock_timestamp(), (SELECT coalesce(max(id), 0) FROM subscriptions_subscriber)"
COUNTED = """
    SELECT (SELECT coalesce(sum(deliveries), 0) FROM analytics_reliability
             WHERE subscriber_id > %(before)s AND subscriber_id <= %(last)s)::int,
           coalesce(sum(checked), 0)::int,
           coalesce(sum(explained_inversions + explained_duplicates), 0)::int,
           coalesce(sum(inversions + duplicates - explained_inversions - explained_duplicates), 0)::int
      FROM analytics_audit WHERE subscriber_id > %(before)s AND subscriber_id <= %(last)s
"""
EXPLANATIONS = """
    SELECT DISTINCT explanation FROM analytics_findings
     WHERE subscriber_id > %(before)s AND subscriber_id <= %(last)s AND explanation <> '' ORDER BY explanation
"""
UNEXPLAINED = """
    SELECT finding, delivery_id, other_id FROM analytics_findings
     WHERE subscriber_id > %(before)s AND subscriber_id <= %(last)s AND explanation = ''
     ORDER BY delivery_id LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found of the deliveries that had ended."""

    audited: int = 0
    """Deliveries looked at: whether they were sent, or taken, twice."""
    numbered: int = 0
    """Those of them with a `webhook-sequence`: whether they were sent in order, too."""
    explained: int = 0
    """Inversions and duplicates that the contract allows."""
    unexplained: int = 0
    explanations: tuple[str, ...] = ()
    named: tuple[str, ...] = field(default=(), repr=False)
    """Some of the unexplained."""
    failure: str = ""
    """Why there was none."""

    def __str__(self) -> str:
        why = f" ({'; '.join(self.explanations)})" if self.explanations else ""
        return (
            f"audited {self.audited}, numbered {self.numbered}, explained {self.explained}{why},"
            f" unexplained {self.unexplained}"
        )

    @property
    def problem(self) -> str:
        """Why a case with this audit has not passed; empty: it has."""
        if self.failure or not self.audited:
            return self.failure or "nothing was audited"
        return f"unexplained {self.unexplained}: {', '.join(self.named)}" if self.unexplained else ""

    def as_object(self) -> dict[str, object]:
        """Return it as an object for JSON."""
        counts = {name: getattr(self, name) for name in ("audited", "numbered", "explained", "unexplained")}
        return {**counts, "explanations": [*self.explanations]}


@dataclass(frozen=True, slots=True)
class Made:
    """The subscribers that were made for a case: those with ids above `before`, up to `last`."""

    before: int
    last: int


class NotSummarized(Exception):
    """The application that audits could not run; the message has what it said."""


class Since:
    """The history of a broker from now on, of subscribers yet to be made."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._at, self.before = broker.ask(NOW)[0]

    def audit(self) -> Audit:
        """Summarize what has happened until now, and return what the audit found; what has not ended is left out."""
        self.summarize()
        return self.found(Made(self.before, self.newest()))

    def summarize(self) -> None:
        """Summarize what has happened until now, for all who ask then."""
        summarize(self._broker, self._at)

    def newest(self) -> int:
        """Return the id of the subscriber made last."""
        ((_, newest),) = self._broker.ask(NOW)
        return int(newest)

    def found(self, made: Made) -> Audit:
        """Return what the last audit found of these subscribers."""
        theirs = {"before": made.before, "last": made.last}
        ((audited, numbered, explained, unexplained),) = self._broker.ask(COUNTED, **theirs)
        explanations = tuple(text for (text,) in self._broker.ask(EXPLANATIONS, **theirs))
        found = self._broker.ask(UNEXPLAINED, **theirs, most=MOST_NAMED)
        return Audit(audited, numbered, explained, unexplained, explanations, tuple(named(*one) for one in found))


def summarize(broker: Broker, since: dt.datetime) -> None:
    """Run the application as a program of its own, whatever is left of the broker's workers; PostgreSQL is enough."""
    try:
        ended = subprocess.run(
            python("tests.faults.summarizing", since.isoformat()),
            cwd=ROOT,
            env={**os.environ, **broker.stack.environment},
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise NotSummarized(str(late)) from late
    if ended.returncode:
        raise NotSummarized(ended.stderr)


def named(finding: str, delivery: int, other: int | None) -> str:
    """Return a finding in words."""
    return f"{finding} (delivery {delivery} after {other})" if other else f"{finding} (delivery {delivery})"
