"""Into how many slices a window of a table is cut, and where each begins: about as many rows in each, none twice."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import psycopg

from analytics.pipeline import tables
from analytics.pipeline.extraction.leaves import relations_of, rows_of
from analytics.pipeline.extraction.statements import SOURCES, Stretch, selected, stretch_of, within
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table

SAMPLE_PAGES: Final = 1000
"""Tables of fewer pages (8 MB) are looked at wholly."""
LEAST_PERCENT: Final = 1.0
"""Of bigger ones: a slice of 100,000 rows still has a dozen pages in such a sample."""

SUMMARIZE: Final = """
SELECT brin_summarize_new_values(c.oid)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
 WHERE a.amname = 'brin' AND i.indrelid = ANY (%s::regclass[]) AND pg_has_role(c.relowner, 'USAGE')
"""
"""The newest pages are in no summary yet, and would be read by every slice."""

PAGES: Final = "SELECT sum(pg_relation_size(name::regclass)) / 8192 FROM unnest(%s::text[]) AS name"

MARKS: Final = """
SELECT mark::text
  FROM (SELECT r.{by} AS mark, row_number() OVER (ORDER BY r.{by}) - 1 AS number FROM {rows} r WHERE {condition}) AS s
 WHERE number > 0 AND number % {step} = 0
 GROUP BY mark ORDER BY s.mark
"""
"""Every so many-th row of a sample: wherever they are, what lies between two of them is read once."""


def slices(connection: psycopg.Connection[Any], table: Table, window: Window, slice_rows: int) -> list[str]:
    """Return the queries that together give a window's rows, about `slice_rows` each.

    Raises:
        DayGone: some of it has been dropped.

    """
    relations = relations_of(connection, table, window)
    rows, stretch = rows_of(table, window, relations), stretch_of(table, window)
    is_counted = table == tables.WAITING  # one row for what is in many slices
    marks = [] if is_counted else _marks(connection, table, window, relations, slice_rows)
    return [selected(table, window, rows, piece) for piece in pieces(stretch, marks)]


def pieces(stretch: Stretch, marks: Sequence[str]) -> list[Stretch]:
    """Return the pieces into which marks, in their order, cut a stretch; each begins with its mark."""
    start, end = stretch
    return list(pairwise([start, *(mark for mark in marks if mark != start), end]))


def summarize(connection: psycopg.Connection[Any], table: Table, window: Window) -> None:
    """Let the indexes by time know the newest pages; where that is not to be had, reading takes longer."""
    relations = relations_of(connection, table, window)
    busy_or_a_copy = psycopg.errors.LockNotAvailable, psycopg.errors.ObjectNotInPrerequisiteState
    with suppress(*busy_or_a_copy), connection.transaction():
        connection.execute(SUMMARIZE, [relations])


def _marks(
    connection: psycopg.Connection[Any], table: Table, window: Window, relations: Sequence[str], slice_rows: int
) -> list[str]:
    pages = connection.execute(PAGES, [relations]).fetchone()
    percent = percent_of(int(pages[0])) if pages else 100.0
    sampled = rows_of(table, window, relations, f" TABLESAMPLE SYSTEM ({percent}) REPEATABLE (0)")
    statement = MARKS.format(
        by=SOURCES[table].by,
        rows=sampled,
        condition=within(table, stretch_of(table, window)),
        step=max(1, round(slice_rows * percent / 100)),
    )
    return [mark for (mark,) in connection.execute(statement.encode())]


def percent_of(pages: int) -> float:
    """Return how many of a hundred pages are looked at to find where slices begin."""
    return min(100.0, max(LEAST_PERCENT, 100.0 * SAMPLE_PAGES / max(pages, 1)))
