"""How QUEUE work is shared: over the senders, and over the endpoints of each group."""

from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import SELECTED, WITHIN, Selection, selected

SENDERS: Final = f"""
SELECT sender, sum(messages)::bigint FROM analytics_senders WHERE {WITHIN} GROUP BY sender ORDER BY sender
"""
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
