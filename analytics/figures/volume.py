"""How much was published; of publishers, whoever receives it."""

import datetime as dt
from typing import Final

from analytics.figures.selection import STEP, WITHIN, Selection, selected

NAMED: Final = 6
BY_PUBLISHER: Final = f"""
WITH published AS (
  SELECT {STEP} AS step, publisher, sum(messages) AS messages FROM analytics_volume WHERE {WITHIN} GROUP BY 1, 2),
most AS (
  SELECT publisher FROM published
   GROUP BY publisher ORDER BY sum(messages) DESC, publisher COLLATE "C" LIMIT {NAMED})
SELECT step, most.publisher, sum(messages)::bigint
  FROM published LEFT JOIN most USING (publisher) GROUP BY 1, 2
"""
TOTALS: Final = f"""
SELECT COALESCE(sum(messages), 0)::bigint, COALESCE(sum(bytes), 0)::bigint FROM analytics_volume WHERE {WITHIN}
"""


def messages_by_publisher(selection: Selection) -> dict[tuple[dt.datetime, str | None], int]:
    """Return how many messages the six busiest publishers published, step by step, and all others: None.

    What was published by management keys has the empty name.
    """
    return {(at, publisher): number for at, publisher, number in selected(BY_PUBLISHER, selection)}


def messages_and_bytes(selection: Selection) -> tuple[int, int]:
    """Return how many messages were published, and how many bytes their bodies had."""
    [(messages, size)] = selected(TOTALS, selection)
    return messages, size
