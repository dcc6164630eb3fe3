"""Into how many slices a window of a table is cut, and where each begins: about as many rows in each, none twice."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import psycopg

from analytics.pipeline.extraction.leaves import messages_of, reach_of, relations_of, rows_of
from analytics.pipeline.extraction.statements import (
    HAPPENED_TO_THEM,
    SOURCES,
    UNENDED,
    Stretch,
    selected,
    stretch_of,
    within,
)
from analytics.pipeline.job import Window
from analytics.pipeline.tables import Table

SAMPLE_PAGES: Final = 1000
"""Tables of fewer pages (8 MB) are looked at wholly."""
LEAST_PERCENT: Final = 1.0
"""Of bigger ones: a slice of 100,000 rows still has a dozen pages in such a sample."""

MANY_ROWS: Final = 10_000
"""Fewer new ones are read by every slice sooner than an index is told of them."""
LOCK_WAIT: Final = "200ms"
"""Less than `deadlock_timeout`, after which whoever waits for an autovacuum ends it."""
UNSUMMARIZED: Final = """
SELECT i.indexrelid::regclass::text
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
 WHERE a.amname = 'brin' AND i.indrelid = ANY (%s::regclass[]) AND pg_has_role(c.relowner, 'USAGE')
   AND pg_stat_get_ins_since_vacuum(i.indrelid) >= %s
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
    summarize(connection, relations)
    rows, (start, end) = rows_of(table, window, relations), stretch_of(table, window)
    messages = messages_of(connection, relations) if SOURCES[table].joined else ()
    if table in HAPPENED_TO_THEM:
        start = reach_of(connection, window).isoformat()
    marks = _marks(connection, table, window, relations, slice_rows)
    return [selected(table, window, rows, piece, messages) for piece in pieces((start, end), marks)]


def pieces(stretch: Stretch, marks: Sequence[str]) -> list[Stretch]:
    """Return the pieces into which marks, in their order, cut a stretch; each begins with its mark."""
    start, end = stretch
    return list(pairwise([start, *(mark for mark in marks if mark != start), end]))


def summarize(connection: psycopg.Connection[Any], relations: Sequence[str]) -> None:
    """Let the indexes by time know many new pages; where that is not to be had at once, reading takes longer."""
    busy_or_a_copy = psycopg.errors.LockNotAvailable, psycopg.errors.ObjectNotInPrerequisiteState
    for index in unsummarized(connection, relations):
        with suppress(*busy_or_a_copy), connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'".encode())
            connection.execute("SELECT brin_summarize_new_values(%s::regclass)", [index])


def unsummarized(connection: psycopg.Connection[Any], relations: Sequence[str]) -> list[str]:
    """Return the indexes by time of relations that got many rows since they were vacuumed."""
    return [index for (index,) in connection.execute(UNSUMMARIZED, [list(relations), MANY_ROWS])]


def _marks(
    connection: psycopg.Connection[Any], table: Table, window: Window, relations: Sequence[str], slice_rows: int
) -> list[str]:
    pages = connection.execute(PAGES, [relations]).fetchone()
    percent = percent_of(int(pages[0])) if pages else 100.0
    sampled = rows_of(table, window, relations, f" TABLESAMPLE SYSTEM ({percent}) REPEATABLE (0)")
    statement = MARKS.format(
        by=SOURCES[table].by,
        rows=sampled,
        condition="true" if table in UNENDED else within(table, stretch_of(table, window)),  # all are looked at
        step=max(1, round(slice_rows * percent / 100)),
    )
    return [mark for (mark,) in connection.execute(statement.encode())]


def percent_of(pages: int) -> float:
    """Return how many of a hundred pages are looked at to find where slices begin."""
    return min(100.0, max(LEAST_PERCENT, 100.0 * SAMPLE_PAGES / max(pages, 1)))
