"""What the ordering audit found."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import SELECTED, Selection, selected

TOTALS: Final = f"""
SELECT COALESCE(sum(checked), 0)::bigint, COALESCE(sum(inversions), 0)::bigint,
       COALESCE(sum(explained_inversions), 0)::bigint, COALESCE(sum(duplicates), 0)::bigint,
       COALESCE(sum(explained_duplicates), 0)::bigint
  FROM analytics_audit WHERE {SELECTED}
"""
FINDINGS: Final = f"""
SELECT at, subscriber, finding, delivery_id, other_id, explanation FROM analytics_findings WHERE {SELECTED}
 ORDER BY explanation <> '', at DESC, id LIMIT 50
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
