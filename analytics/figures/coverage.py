"""How much of a range is summarized: what is not looks as if nothing had happened."""

import datetime as dt
from typing import Final

from analytics.ranges import Range
from broker_project.core.db import rows

COVERED: Final = """
SELECT lower(piece), upper(piece)
  FROM unnest((SELECT range_agg(tstzrange(start, "end")) FROM analytics_runwindow
                WHERE state = 'PASSED' AND start < %(end)s AND "end" > %(start)s)
              * tstzmultirange(tstzrange(%(start)s, %(end)s))) AS piece
 ORDER BY 1
"""


def covered(asked: Range) -> list[tuple[dt.datetime, dt.datetime]]:
    """Return the parts of a range that are summarized, the earliest first; none over another."""
    return [(start, end) for start, end in rows(COVERED, {"start": asked.start, "end": asked.end})]
