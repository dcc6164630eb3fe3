"""How deliveries ended."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import OF_ALL, OF_ONE, STEP, WITHIN, Selection, selected

COUNTS: Final = "hour, deliveries, eligible, delivered, first_attempt, by_status"
CHOSEN: Final = f"""
(SELECT {COUNTS} FROM analytics_totals WHERE {WITHIN} AND {OF_ALL}
 UNION ALL
 SELECT {COUNTS} FROM analytics_reliability WHERE {WITHIN} AND {OF_ONE}) AS chosen
"""
OUTCOMES: Final = f"""
SELECT {STEP}, status, sum(number::bigint)::bigint
  FROM {CHOSEN}, jsonb_each_text(by_status) AS s (status, number)
 GROUP BY 1, 2
"""
TOTALS: Final = f"""
SELECT COALESCE(sum(deliveries), 0)::bigint, COALESCE(sum(eligible), 0)::bigint,
       COALESCE(sum(delivered), 0)::bigint, COALESCE(sum(first_attempt), 0)::bigint
  FROM {CHOSEN}
"""


@dataclass(frozen=True, slots=True)
class Totals:
    """Deliveries that ended, and how many of them well."""

    deliveries: int
    eligible: int
    """Without those that somebody else took or somebody cancelled."""
    delivered: int
    first_attempt: int

    @property
    def success_rate(self) -> float | None:
        """The share of the eligible that were delivered; None of nothing."""
        return self.delivered / self.eligible if self.eligible else None

    @property
    def first_attempt_rate(self) -> float | None:
        """The share of the eligible that were delivered by their first attempt; None of nothing."""
        return self.first_attempt / self.eligible if self.eligible else None


def outcomes(selection: Selection) -> dict[tuple[dt.datetime, str], int]:
    """Return how many deliveries ended in each status, step by step."""
    return {(at, status): number for at, status, number in selected(OUTCOMES, selection)}


def totals(selection: Selection) -> Totals:
    """Return the sums over the whole range."""
    [sums] = selected(TOTALS, selection)
    return Totals(*sums)
