"""What clients have fetched from a mailbox and not answered yet, however much lies there (behaviour 9.2)."""

from typing import Final

from broker_project.core.db import rows

IN_FLIGHT: Final = """
SELECT d.id FROM subscriptions_subscription s CROSS JOIN LATERAL (
  SELECT d.id, d.fetched_until FROM delivery_open d
   WHERE d.subscription_id = s.id AND d.fetched_until > (SELECT clock_timestamp())
   ORDER BY d.fetched_until, d.id LIMIT %(limit)s) d
 WHERE s.subscriber_id = %(subscriber)s
 ORDER BY d.fetched_until, d.id LIMIT %(limit)s
"""
"""Of whatever subscription: one that was switched to push meanwhile may still have some."""


def in_flight_of(subscriber_id: int, *, limit: int) -> list[int]:
    """Return the ids of the deliveries that a subscriber's clients have, at most `limit`, next to time out first."""
    return [delivery_id for (delivery_id,) in rows(IN_FLIGHT, {"subscriber": subscriber_id, "limit": limit})]
