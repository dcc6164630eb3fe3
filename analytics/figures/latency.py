"""How long things took."""

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from typing import Final, Self

from analytics.figures.selecting import SELECTED, STEP, Selection, selected
from analytics.pipeline.quantiles import Histogram, merged, quantile

HISTOGRAMS: Final = f"""
SELECT {STEP}, bucket::int, sum(number::bigint)::bigint
  FROM analytics_latency, jsonb_each_text(histogram) AS h (bucket, number)
 WHERE {SELECTED} AND measure = 'delivery' GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """From published to delivered, in milliseconds, within one per cent."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, histogram: Histogram) -> Self:
        """Return the quantiles of a histogram of something."""
        return cls(*(quantile(histogram, share) for share in (0.5, 0.95, 0.99)))


def latencies(selection: Selection) -> dict[dt.datetime, Quantiles]:
    """Return the quantiles of each step in which something was delivered."""
    return {at: Quantiles.of(histogram) for at, histogram in _histograms(selection).items()}


def latency(selection: Selection) -> Quantiles | None:
    """Return the quantiles of the whole range; None where nothing was delivered."""
    together = merged(_histograms(selection).values())
    return Quantiles.of(together) if together else None


def _histograms(selection: Selection) -> dict[dt.datetime, dict[int, int]]:
    histograms: dict[dt.datetime, dict[int, int]] = defaultdict(dict)
    for at, bucket, number in selected(HISTOGRAMS, selection):
        histograms[at][bucket] = number
    return histograms
