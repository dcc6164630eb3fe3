"""Figures of volume, QUEUE balance and latency."""

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from analytics.figures.selection import OF_ALL, OF_ONE, SELECTED, STEP, WITHIN, Selection, selected
from analytics.pipeline.quantiles import Histogram, merged, quantile

NAMED: Final = 6


TOTALS: Final = f"""
SELECT COALESCE(sum(messages), 0)::bigint, COALESCE(sum(bytes), 0)::bigint FROM analytics_volume WHERE {WITHIN}
"""

SENDERS: Final = f"""
SELECT sender, sum(messages)::bigint FROM analytics_senders WHERE {WITHIN} GROUP BY sender ORDER BY sender
"""

BY_PUBLISHER: Final = f"""
WITH published AS (
  SELECT {STEP} AS step, publisher, sum(messages) AS messages FROM analytics_volume WHERE {WITHIN} GROUP BY 1, 2),
most AS (
  SELECT publisher FROM published
   GROUP BY publisher ORDER BY sum(messages) DESC, publisher COLLATE "C" LIMIT {NAMED})
SELECT step, most.publisher, sum(messages)::bigint
  FROM published LEFT JOIN most USING (publisher) GROUP BY 1, 2
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


SHARES: Final = f"""
SELECT group_of, event_type, subscription_id, subscriber, endpoint, sum(delivered)::bigint, sum(redundant)::bigint,
       sum(sum(delivered)) OVER (PARTITION BY group_of)::bigint
  FROM analytics_shares WHERE {SELECTED}
 GROUP BY group_of, event_type, subscription_id, subscriber, endpoint
 ORDER BY 8 DESC, group_of, 6 DESC LIMIT 50
"""


@dataclass(frozen=True, slots=True)
class Share:
    """What one endpoint took of its group."""

    group_of: int
    """The group's first subscription, by which it goes."""
    event_type: str
    subscription_id: int | None
    subscriber: str
    endpoint: str
    delivered: int
    redundant: int
    delivered_of_group: int


def messages_by_sender(selection: Selection) -> dict[int, int]:
    """Return how many messages each sender had taken."""
    return dict(selected(SENDERS, selection))


def balance(messages: dict[int, int]) -> float | None:
    """Return the busiest sender's messages over the senders' mean: 1.0 is even; None of nothing."""
    total = sum(messages.values())
    return max(messages.values()) * len(messages) / total if total else None


def shares(selection: Selection) -> list[Share]:
    """Return what each endpoint took, the busiest groups first."""
    return [Share(*columns) for columns in selected(SHARES, selection)]


HISTOGRAMS: Final = f"""
SELECT {STEP}, bucket::int, sum(number::bigint)::bigint
  FROM (SELECT hour, histogram FROM analytics_totals WHERE {WITHIN} AND {OF_ALL}
        UNION ALL
        SELECT hour, histogram FROM analytics_latency WHERE {WITHIN} AND {OF_ONE} AND measure = 'delivery') AS chosen,
       jsonb_each_text(histogram) AS h (bucket, number)
 GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """From published to delivered, in milliseconds, within one per cent."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, histogram: Histogram) -> Self:
        """Return the quantiles of a histogram of something."""
        return cls(*(quantile(histogram, share) for share in (0.5, 0.95, 0.99)))


def histograms(selection: Selection) -> dict[dt.datetime, dict[int, int]]:
    """Return how many deliveries there were in each bucket of how long they took, step by step."""
    found: dict[dt.datetime, dict[int, int]] = defaultdict(dict)
    for at, bucket, number in selected(HISTOGRAMS, selection):
        found[at][bucket] = number
    return found


def latencies(found: Mapping[dt.datetime, Histogram]) -> dict[dt.datetime, Quantiles]:
    """Return the quantiles of each step in which something was delivered."""
    return {at: Quantiles.of(histogram) for at, histogram in found.items()}


def latency(found: Mapping[dt.datetime, Histogram]) -> Quantiles | None:
    """Return the quantiles of all steps together; None where nothing was delivered."""
    together = merged(found.values())
    return Quantiles.of(together) if together else None
