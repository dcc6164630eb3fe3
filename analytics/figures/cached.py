"""Figures that a page needs more than once, computed once."""

import datetime as dt
from functools import cached_property

from analytics.figures.ordering import Audit, audit
from analytics.figures.selection import Selection
from analytics.figures.success import outcomes
from analytics.figures.traffic import histograms


class Looked:
    """The figures of a selection, for one request."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection

    @cached_property
    def outcomes(self) -> dict[tuple[dt.datetime, str], int]:
        """How many deliveries ended in each status, step by step."""
        return outcomes(self.selection)

    @cached_property
    def histograms(self) -> dict[dt.datetime, dict[int, int]]:
        """How long deliveries took, step by step."""
        return histograms(self.selection)

    @cached_property
    def audit(self) -> Audit:
        """What the ordering audit found."""
        return audit(self.selection)
