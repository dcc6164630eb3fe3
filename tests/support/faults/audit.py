"""What the broker says of itself: its ordering audit, and the states of deliveries."""

import datetime as dt
import os
import subprocess
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from broker_project.stack.application import python
from broker_project.stack.folders import ROOT
from tests.support.real_broker import Broker, Subscribed

MAX_AUDIT_SECONDS = 1800.0
"""Spark takes ten of them for a case, on a machine with nothing else to do; it is the nicest of all processes."""
MAX_NAMED = 3
"""Findings in the reason why a case has not passed."""

NOW = "SELECT clock_timestamp(), (SELECT coalesce(max(id), 0) FROM subscriptions_subscriber)"


EXPLANATIONS = """
    SELECT DISTINCT explanation FROM analytics_findings
     WHERE subscriber_id > %(before)s AND subscriber_id <= %(last)s AND explanation <> '' ORDER BY explanation
"""
UNEXPLAINED = """
    SELECT finding, delivery_id, other_id FROM analytics_findings
     WHERE subscriber_id > %(before)s AND subscriber_id <= %(last)s AND explanation = ''
     ORDER BY delivery_id LIMIT %(most)s
"""

RECORDED = """
    SELECT e.sequence FROM delivery_lineevent e JOIN delivery_line l ON l.id = e.line_id
      JOIN subscriptions_subscriber u ON u.id = l.subscriber_id
     WHERE u.name = %(name)s AND e.sequence IS NOT NULL
"""

COUNTED = """
    SELECT (SELECT coalesce(sum(deliveries), 0) FROM analytics_reliability
             WHERE subscriber_id > %(before)s AND subscriber_id <= %(last)s)::int,
           coalesce(sum(checked), 0)::int,
           coalesce(sum(explained_inversions + explained_duplicates), 0)::int,
           coalesce(sum(inversions + duplicates - explained_inversions - explained_duplicates), 0)::int
      FROM analytics_audit WHERE subscriber_id > %(before)s AND subscriber_id <= %(last)s
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
        """Summarize what has happened until now."""
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
        found = self._broker.ask(UNEXPLAINED, **theirs, most=MAX_NAMED)
        return Audit(audited, numbered, explained, unexplained, explanations, tuple(named(*one) for one in found))


def summarize(broker: Broker, since: dt.datetime) -> None:
    """Run Spark in its own process, which needs only PostgreSQL, because workers may be down."""
    try:
        ended = subprocess.run(
            python("tests.support.faults.summarize", since.isoformat()),
            cwd=ROOT,
            env={**os.environ, **broker.stack.environment},
            capture_output=True,
            text=True,
            timeout=MAX_AUDIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise NotSummarized(str(late)) from late
    if ended.returncode:
        raise NotSummarized(ended.stderr)


def named(finding: str, delivery: int, other: int | None) -> str:
    """Return a finding in words."""
    return f"{finding} (delivery {delivery} after {other})" if other else f"{finding} (delivery {delivery})"


ENDED = """
    SELECT (convert_from(m.body, 'UTF8')::jsonb ->> 'number')::int, d.status, d.times_deferred > 0
      FROM delivery_delivery d JOIN delivery_message m ON m.id = d.message_id
      JOIN subscriptions_subscription s ON s.id = d.subscription_id
      JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
     WHERE u.name = %(name)s
"""
DROPPED = """
    SELECT (convert_from(message.body, 'UTF8')::jsonb ->> 'number')::int
    FROM delivery_delivery delivery JOIN delivery_message message ON message.id = delivery.message_id
    JOIN subscriptions_eventtype event_type ON event_type.id = message.event_type_id
    WHERE event_type.name = %(event_type)s AND delivery.status IN ('EXPIRED', 'CANCELLED')
"""


def by_status(broker: Broker, subscribed: Subscribed) -> dict[str, set[int]]:
    """Return the events by the status of their deliveries."""
    found: dict[str, set[int]] = defaultdict(set)
    for number, status, _ in broker.ask(ENDED, name=subscribed.name):
        found[status].add(number)
    return dict(found)


def set_aside(broker: Broker, subscribed: Subscribed) -> set[int]:
    """Return the events that were set aside at some time."""
    return {number for number, _, is_aside in broker.ask(ENDED, name=subscribed.name) if is_aside}


def unrecorded_gaps(broker: Broker, subscribed: Subscribed, arrived: Collection[int]) -> set[int]:
    """Return the sequence numbers that neither arrived nor are recorded in the line's history."""
    recorded = {sequence for (sequence,) in broker.ask(RECORDED, name=subscribed.name)}
    return {*range(1, max(arrived, default=0))}.difference(arrived, recorded)
