"""Which leaves a window is read from, how it is cut into slices, and how PostgreSQL's CSV becomes Arrow."""

import datetime as dt
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.pipeline.extraction import statements
from analytics.pipeline.extraction.source import BLOCK_BYTES, SAMPLE_PAGES, arrow, pieces, sample_percent
from analytics.pipeline.extraction.statements import ATTEMPTS, IDS_PER_DAY, leaf_of
from analytics.pipeline.tables import Table
from delivery.maintenance import partitions

NOTES = Table("bronze/notes", "id long, number int, note string, done boolean, at timestamp")


def test_partitions_and_ids_are_named_as_in_the_broker() -> None:
    day = dt.date(2026, 2, 28)
    assert leaf_of(ATTEMPTS, day) == partitions.leaf_of(partitions.ATTEMPTS, day)
    assert {partitions.MESSAGES, partitions.DELIVERIES, partitions.ATTEMPTS} == statements.PARTITIONED
    assert IDS_PER_DAY == partitions.IDS_PER_DAY


@given(st.lists(st.integers(100, 998), unique=True).map(sorted), st.integers(100, 998), st.integers(100, 998))
def test_slices_cover_everything_between_start_and_end_once(marks: list[int], one: int, other: int) -> None:
    start, end = min(one, other), max(one, other) + 1
    inside = [str(mark) for mark in marks if start <= mark < end]
    cut = pieces((str(start), str(end)), inside)
    assert all(low is not None and high is not None and low < high for low, high in cut)
    assert [low for low, _ in cut[1:]] == [high for _, high in cut[:-1]]
    assert (cut[0][0], cut[-1][1]) == (str(start), str(end))


@given(st.lists(st.integers(10, 99).map(str), unique=True).map(sorted))
def test_unbounded_slices_leave_nothing_out(marks: list[str]) -> None:
    assert pieces((None, None), marks) == list(pairwise([None, *marks, None]))


@pytest.mark.parametrize(
    ("pages", "percent"),
    [(0, 100), (1, 100), (SAMPLE_PAGES, 100), (4 * SAMPLE_PAGES, 25), (100 * SAMPLE_PAGES, 1), (10**9, 1)],
)
def test_small_tables_are_sampled_completely_and_large_ones_in_part(pages: int, percent: float) -> None:
    assert sample_percent(pages) == percent


def test_null_and_empty_values_stay_distinct() -> None:
    block = b'1,,,t,2026-11-20 23:59:59.999999+00\n,2,"",f,\n3,3,\\N,,9999-12-31 00:00:00+00\n'
    assert [tuple(row.values()) for batch in arrow(block, NOTES) for row in batch.to_pylist()] == [
        (1, None, None, True, dt.datetime(2026, 11, 20, 23, 59, 59, 999999, dt.UTC)),
        (None, 2, "", False, None),
        (3, 3, "\\N", None, dt.datetime(9999, 12, 31, tzinfo=dt.UTC)),
    ]


@given(st.lists(st.text().filter(lambda text: "\0" not in text), min_size=1))
def test_any_text_survives_csv(texts: list[str]) -> None:
    quoted = (text.replace('"', '""') for text in texts)
    block = "".join(f'{number},1,"{text}",t,\n' for number, text in enumerate(quoted))
    notes = [row["note"] for batch in arrow(block.encode(), NOTES) for row in batch.to_pylist()]
    assert notes == texts


def test_rows_that_span_blocks_stay_whole() -> None:
    notes = ["a line\n" * (BLOCK_BYTES // 20)] * 4
    block = "".join(f'{number},1,"{note}",t,\n' for number, note in enumerate(notes)).encode()
    assert [row["note"] for batch in arrow(block, NOTES) for row in batch.to_pylist()] == notes
