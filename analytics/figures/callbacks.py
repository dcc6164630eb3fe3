"""What became of callbacks."""

from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import WITHIN, Selection, selected

TOTALS: Final = f"""
SELECT COALESCE(sum(asked), 0)::bigint, COALESCE(sum(answered), 0)::bigint, COALESCE(sum(forwarded), 0)::bigint
  FROM analytics_callbacks WHERE {WITHIN}
"""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The sums of a range."""

    asked: int
    answered: int
    forwarded: int


def callbacks(selection: Selection) -> Callbacks:
    """Return how many were asked for, answered, and their replies forwarded to the original URL."""
    [sums] = selected(TOTALS, selection)
    return Callbacks(*sums)
