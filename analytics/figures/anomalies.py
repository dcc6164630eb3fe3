"""Which hours were unlike the same hour of other days."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import SELECTED, Selection, selected

FARTHEST: Final = f"""
SELECT hour, subscriber, metric, value, median, score FROM analytics_anomalies WHERE {SELECTED}
 ORDER BY abs(score) DESC, hour DESC, id LIMIT 30
"""


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
