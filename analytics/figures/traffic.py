"""How long things took."""

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from analytics.figures.selection import OF_ALL, OF_ONE, STEP, WITHIN, Selection, selected
from analytics.pipeline.quantiles import Histogram, merged, quantile

HISTOGRAMS: Final = f"""
SELECT {STEP}, bucket::int, sum(number::bigint)::bigint
  FROM (SELECT hour, histogram FROM analytics_totals WHERE {WITHIN} AND {OF_ALL}
        UNION ALL
        SELECT hour, histogram FROM analytics_latency WHERE {WITHIN} AND {OF_ONE} AND measure = 'delivery') AS chosen,
       jsonb_each_text(histogram) AS h (bucket, number)
 GROUP BY 1, 2
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


def histograms(selection: Selection) -> dict[dt.datetime, dict[int, int]]:
    """Return how many deliveries there were in each bucket of how long they took, step by step."""
    found: dict[dt.datetime, dict[int, int]] = defaultdict(dict)
    for at, bucket, number in selected(HISTOGRAMS, selection):
        found[at][bucket] = number
    return found


def latencies(found: Mapping[dt.datetime, Histogram]) -> dict[dt.datetime, Quantiles]:
    """Return the quantiles of each step in which something was delivered."""
    return {at: Quantiles.of(histogram) for at, histogram in found.items()}


def latency(found: Mapping[dt.datetime, Histogram]) -> Quantiles | None:
    """Return the quantiles of all steps together; None where nothing was delivered."""
    together = merged(found.values())
    return Quantiles.of(together) if together else None
