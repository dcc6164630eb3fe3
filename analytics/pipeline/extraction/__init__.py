"""Reading closed windows of PostgreSQL into Spark: each task copies one slice of a table into Arrow.

`statements` (what is selected, for each table) · `connecting` · `leaves` (where a window's rows are) · `slicing` (into
how many pieces, and where they begin) · `copying` (one piece, on an executor) · `source` (all of it, as Spark asks for
it) · `counting` (what was read, and whether more has come since)
"""

from analytics.pipeline.extraction.connection import DayGone, Unreadable
from analytics.pipeline.extraction.row_counts import count, has_grown, leaf_rows
from analytics.pipeline.extraction.source import read, register

__all__ = ["DayGone", "Unreadable", "count", "has_grown", "leaf_rows", "read", "register"]
