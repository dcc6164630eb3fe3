"""How much may still fail."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import THEIRS, Selection, selected

LATEST: Final = f"""
SELECT day, subscriber, eligible_28, bad_28, objective, spent
  FROM (SELECT DISTINCT ON (subscriber_id) * FROM analytics_budgets
         WHERE day >= %(start)s AND day < %(end)s AND {THEIRS} ORDER BY subscriber_id, day DESC) AS latest
 ORDER BY spent DESC, subscriber LIMIT 20
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """One subscriber's error budget of the 28 days up to a day."""

    day: dt.date
    subscriber: str
    eligible: int
    bad: int
    objective: float
    spent: float
    """The share of what may fail that has failed: 1.0 when all is spent."""


def budgets(selection: Selection) -> list[Budget]:
    """Return each subscriber's latest in the range, the most spent first."""
    return [Budget(*columns) for columns in selected(LATEST, selection)]
