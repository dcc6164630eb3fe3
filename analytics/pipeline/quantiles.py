"""Quantiles of how long things took, from counts in buckets that grow by 2 %: within 1 %, and merged by adding.

The buckets are those of DDSketch (Masson, Rim, Lee 2019). What is in which does not depend on the order or the grouping
of what is counted, nor on who counts: Spark, Python or SQL. A bucket is a number: `ceil(ln(ms) / ln(1.02))`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

GROWTH: Final = 1.02
"""How much longer the longest of a bucket is than the longest of the one before."""
NO_TIME: Final = -1
"""The bucket of 0 ms, and of less; those of 1 ms and more begin with 0."""
LONGEST: Final = 2**38
"""Whatever took longer, nine years, counts as this: for such numbers logarithms are not exact enough to agree on."""
FINEST: Final = 1000
"""Shares are taken as thousandths: as floats, 0.95 of 20 would be more than 19."""

Histogram = Mapping[int, int]
"""How many there are in each bucket; none is not in it."""


def bucket_of(ms: int) -> int:
    """Return the bucket of a time in milliseconds."""
    return math.ceil(math.log(min(ms, LONGEST)) / math.log(GROWTH)) if ms > 0 else NO_TIME


def middle_of(bucket: int) -> float:
    """Return the time in milliseconds from which all in a bucket are less than 1 % away."""
    return 2 * GROWTH**bucket / (1 + GROWTH) if bucket > NO_TIME else 0.0


def merged(histograms: Iterable[Histogram]) -> dict[int, int]:
    """Return the histogram of everything that is in any of them."""
    together = Counter[int]()
    for histogram in histograms:
        together.update(histogram)
    return dict(together)


def quantile(histogram: Histogram, share: float) -> float:
    """Return the time in milliseconds that a share of all took at most: SQL's `percentile_disc`, within 1 %.

    Raises:
        ValueError: there is nothing in it.

    """
    wanted = Fraction(share).limit_denominator(FINEST) * sum(histogram.values())
    seen = 0
    for bucket, count in sorted(histogram.items()):
        seen += count
        if seen >= wanted:
            return middle_of(bucket)
    raise ValueError("nothing was counted")
