"""Quantiles from buckets: within 1 % of those of the times themselves, however these were counted together."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.pipeline.quantiles import MAX_MS, ZERO_BUCKET, Histogram, merged, middle_of, quantile
from tests.support.stored_summaries import bucket_of

TIMES = st.integers(0, 40).map(lambda power: 2**power // 2).flatmap(lambda low: st.integers(low, 2 * low))
"""As many short ones as long ones."""
SHARES = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)
PRECISION = 0.01


def histogram_of(times: list[int]) -> Histogram:
    return Counter(map(bucket_of, times))


def disc(times: list[int], share: float) -> int:
    """SQL's percentile_disc: the first of the sorted by which at least this share of them has been seen."""
    place = math.ceil(Fraction(str(share)) * len(times))
    return sorted(times)[max(place, 1) - 1]


@pytest.mark.parametrize(
    ("ms", "bucket"),
    [(-5, ZERO_BUCKET), (0, ZERO_BUCKET), (1, 0), (2, 36), (100, 233), (1000, 349), (MAX_MS, 1331), (2**62, 1331)],
)
def test_a_time_has_a_bucket(ms: int, bucket: int) -> None:
    assert bucket_of(ms) == bucket


def test_buckets_are_exact_at_every_boundary() -> None:
    bucket, border = 0, Fraction(1)
    while (longest := math.floor(border)) < MAX_MS:
        assert bucket_of(longest) <= bucket < bucket_of(longest + 1)
        bucket, border = bucket + 1, border * Fraction(51, 50)
    assert bucket == bucket_of(MAX_MS)


@given(ms=TIMES.filter(lambda ms: 0 < ms <= MAX_MS))
def test_the_middle_of_a_bucket_is_within_one_percent(ms: int) -> None:
    assert abs(middle_of(bucket_of(ms)) - ms) < ms * PRECISION


@given(times=st.lists(TIMES, min_size=1, max_size=300), share=SHARES)
def test_a_quantile_is_that_of_the_times_within_one_percent(times: list[int], share: float) -> None:
    exact = min(disc(times, share), MAX_MS)
    assert abs(quantile(histogram_of(times), share) - exact) <= exact * PRECISION


@given(parts=st.lists(st.lists(TIMES, max_size=20), max_size=10))
def test_merged_histograms_equal_the_histogram_of_all(parts: list[list[int]]) -> None:
    assert merged(map(histogram_of, parts)) == histogram_of([ms for part in parts for ms in part])


@given(times=st.lists(TIMES, min_size=1), shares=st.lists(SHARES, min_size=2).map(sorted))
def test_quantiles_rise_with_their_share(times: list[int], shares: list[float]) -> None:
    quantiles = [quantile(histogram_of(times), share) for share in shares]
    assert quantiles == sorted(quantiles)


@pytest.mark.parametrize(("share", "ms"), [(0, 1), (0.05, 1), (0.5, 10), (0.95, 19), (0.951, 20), (1, 20)])
def test_shares_are_exact_in_thousandths(share: float, ms: int) -> None:
    assert quantile(histogram_of(list(range(1, 21))), share) == middle_of(bucket_of(ms))


def test_zero_times_have_a_quantile_of_zero() -> None:
    assert quantile({ZERO_BUCKET: 3, 0: 1}, 0.75) == 0.0


def test_an_empty_histogram_has_no_quantile() -> None:
    with pytest.raises(ValueError, match="nothing was counted"):
        quantile({}, 0.5)
