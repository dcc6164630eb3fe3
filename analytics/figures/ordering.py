"""Figures of the ordering audit, anomalies, backlog and coverage."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import OF_ALL, OF_ONE, SELECTED, STEP, WITHIN, Selection, selected
from analytics.ranges import Range
from broker_project.core.db import rows

FINDINGS: Final = f"""
SELECT at, subscriber, finding, delivery_id, other_id, explanation FROM analytics_findings WHERE {SELECTED}
 ORDER BY explanation <> '', at DESC, id LIMIT 50
"""

FARTHEST: Final = f"""
SELECT hour, subscriber, metric, value, median, score FROM analytics_anomalies WHERE {SELECTED}
 ORDER BY abs(score) DESC, hour DESC, id LIMIT 30
"""

TOTALS: Final = f"""
SELECT COALESCE(sum(checked), 0)::bigint, COALESCE(sum(inversions), 0)::bigint,
       COALESCE(sum(explained_inversions), 0)::bigint, COALESCE(sum(duplicates), 0)::bigint,
       COALESCE(sum(explained_duplicates), 0)::bigint
  FROM analytics_audit WHERE {SELECTED}
"""


@dataclass(frozen=True, slots=True)
class Audit:
    """The sums of a range."""

    checked: int
    inversions: int
    explained_inversions: int
    duplicates: int
    explained_duplicates: int

    @property
    def unexplained(self) -> int:
        """How many the contract has no explanation for: must be 0."""
        return self.inversions + self.duplicates - self.explained_inversions - self.explained_duplicates


@dataclass(frozen=True, slots=True)
class Finding:
    """One inversion or duplicate."""

    at: dt.datetime
    subscriber: str
    finding: str
    delivery_id: int | None
    other_id: int | None
    explanation: str


def audit(selection: Selection) -> Audit:
    """Return what was checked and found in the range."""
    [sums] = selected(TOTALS, selection)
    return Audit(*sums)


def findings(selection: Selection) -> list[Finding]:
    """Return the newest findings, those without an explanation first."""
    return [Finding(*columns) for columns in selected(FINDINGS, selection)]


@dataclass(frozen=True, slots=True)
class Unusual:
    """One measure of one subscriber in one hour."""

    hour: dt.datetime
    subscriber: str
    metric: str
    value: float
    median: float
    """Of the same hour in the four weeks before."""
    score: float


def farthest(selection: Selection) -> list[Unusual]:
    """Return what was farthest from its median."""
    return [Unusual(*columns) for columns in selected(FARTHEST, selection)]


HIGHEST: Final = f"""
SELECT {STEP}, max(backlog)::bigint
  FROM (SELECT hour, backlog FROM analytics_totals WHERE {WITHIN} AND {OF_ALL} AND backlog > 0
        UNION ALL
        SELECT at, deliveries FROM analytics_backlog WHERE at >= %(start)s AND at < %(end)s AND {OF_ONE}) AS chosen
 GROUP BY 1
"""


def highest_backlog(selection: Selection) -> dict[dt.datetime, int]:
    """Return the most deliveries that were unfinished at one moment, step by step; a step without any is not there."""
    return dict(selected(HIGHEST, selection))


COVERED: Final = """
SELECT lower(piece), upper(piece)
  FROM unnest((SELECT range_agg(tstzrange(start, "end")) FROM analytics_runwindow
                WHERE state = 'PASSED' AND start < %(end)s AND "end" > %(start)s)
              * tstzmultirange(tstzrange(%(start)s, %(end)s))) AS piece
 ORDER BY 1
"""


def covered(asked: Range) -> list[tuple[dt.datetime, dt.datetime]]:
    """Return the parts of a range that are summarized, the earliest first; none over another."""
    return [(start, end) for start, end in rows(COVERED, {"start": asked.start, "end": asked.end})]
