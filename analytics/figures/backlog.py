"""How much waited."""

import datetime as dt
from typing import Final

from analytics.figures.selecting import THEIRS, Selection, selected

HIGHEST: Final = f"""
SELECT date_trunc(%(step)s, at), max(deliveries)::bigint
  FROM (SELECT at, sum(deliveries) AS deliveries FROM analytics_backlog
         WHERE at >= %(start)s AND at < %(end)s AND {THEIRS} GROUP BY at) AS moments
 GROUP BY 1
"""


def highest_backlog(selection: Selection) -> dict[dt.datetime, int]:
    """Return the most deliveries that were unfinished at one moment, step by step; a step without any is not there."""
    return dict(selected(HIGHEST, selection))
