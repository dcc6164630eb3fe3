"""How much waited."""

import datetime as dt
from typing import Final

from analytics.figures.selection import OF_ALL, OF_ONE, STEP, WITHIN, Selection, selected

HIGHEST: Final = f"""
SELECT {STEP}, max(backlog)::bigint
  FROM (SELECT hour, backlog FROM analytics_totals WHERE {WITHIN} AND {OF_ALL} AND backlog > 0
        UNION ALL
        SELECT at, deliveries FROM analytics_backlog WHERE at >= %(start)s AND at < %(end)s AND {OF_ONE}) AS chosen
 GROUP BY 1
"""


def highest_backlog(selection: Selection) -> dict[dt.datetime, int]:
    """Return the most deliveries that were unfinished at one moment, step by step; a step without any is not there."""
    return dict(selected(HIGHEST, selection))
