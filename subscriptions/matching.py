"""Which subscriptions a message qualifies for (behaviour 2.2)."""

from typing import Final, NamedTuple

from subscriptions.database import rows

QUALIFYING: Final = """
SELECT s.id, s.subscriber_id
  FROM subscriptions_subscription s
  JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
 WHERE s.event_type_id = %s AND s.status = 'ACTIVE' AND s.header_filter_string IN ('', %s)
 ORDER BY s.subscriber_id, s.position, s.id
   FOR KEY SHARE OF s
"""
"""Asked anew for every publish: a change counts from the next one on (behaviour 3.7).

Locked against deletion, as the deliveries' foreign key would do anyway: whoever deletes a subscription waits for the
publish and is then refused, instead of making the publish fail.
"""


class Match(NamedTuple):
    """A subscription that qualifies."""

    subscription_id: int
    subscriber_id: int


def matching_subscriptions(event_type_id: int, filter_string: str | None) -> list[Match]:
    """Return the subscriptions that get a message of this type with this `FILTER_STRING`.

    Both they and their subscribers are active; a header filter is compared literally. In position order within each
    subscriber.
    """
    return [Match(*row) for row in rows(QUALIFYING, [event_type_id, filter_string or ""])]
