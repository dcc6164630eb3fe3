"""Quantiles of durations from histograms whose buckets grow by 2 %: exact within 1 %, merged by adding.

The buckets are those of DDSketch (Masson, Rim, Lee 2019): `ceil(ln(ms) / ln(1.02))`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

GROWTH: Final = 1.02
"""The ratio of the upper bounds of two neighbouring buckets."""
ZERO_BUCKET: Final = -1
"""The bucket of 0 ms and less; those of 1 ms and more begin with 0."""
MAX_MS: Final = 2**38
"""Longer times, over nine years, count as this: logarithms of larger numbers differ between Spark and SQL."""
PARTS: Final = 1000
"""Shares are counted in thousandths: as floats, 0.95 of 20 would be more than 19."""

Histogram = Mapping[int, int]
"""The count of each bucket that has any."""


def middle_of(bucket: int) -> float:
    """Return the time in milliseconds that is within 1 % of all in a bucket."""
    return 2 * GROWTH**bucket / (1 + GROWTH) if bucket > ZERO_BUCKET else 0.0


def merged(histograms: Iterable[Histogram]) -> dict[int, int]:
    """Return the sum of histograms."""
    together = Counter[int]()
    for histogram in histograms:
        together.update(histogram)
    return dict(together)


def quantile(histogram: Histogram, share: float) -> float:
    """Return a quantile in milliseconds: SQL's `percentile_disc`, within 1 %, as the middle of its bucket.

    Raises:
        ValueError: the histogram is empty.
    """
    wanted, seen = round(share * PARTS) * sum(histogram.values()), 0
    for bucket, count in sorted(histogram.items()):
        seen += count * PARTS
        if seen >= wanted:
            return middle_of(bucket)
    raise ValueError("nothing was counted")
