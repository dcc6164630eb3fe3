"""How much was published; of publishers, whoever receives it."""

import datetime as dt
from typing import Final

from analytics.figures.selecting import STEP, WITHIN, Selection, selected

BY_PUBLISHER: Final = f"""
SELECT {STEP}, publisher, sum(messages)::bigint FROM analytics_volume WHERE {WITHIN} GROUP BY 1, 2
"""
TOTALS: Final = f"""
SELECT COALESCE(sum(messages), 0)::bigint, COALESCE(sum(bytes), 0)::bigint FROM analytics_volume WHERE {WITHIN}
"""


def messages_by_publisher(selection: Selection) -> dict[tuple[dt.datetime, str], int]:
    """Return how many messages each publisher published, step by step; by management keys: the empty name."""
    return {(at, publisher): number for at, publisher, number in selected(BY_PUBLISHER, selection)}


def messages_and_bytes(selection: Selection) -> tuple[int, int]:
    """Return how many messages were published, and how many bytes their bodies had."""
    [(messages, size)] = selected(TOTALS, selection)
    return messages, size
