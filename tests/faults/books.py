"""What the broker itself says became of the deliveries to a subscriber."""

from collections import defaultdict
from collections.abc import Collection

from tests.real_broker import Broker, Subscribed

ENDED = """
    SELECT (convert_from(m.body, 'UTF8')::jsonb ->> 'number')::int, d.status, d.attempts
      FROM delivery_delivery d JOIN delivery_message m ON m.id = d.message_id
      JOIN subscriptions_subscription s ON s.id = d.subscription_id
      JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
     WHERE u.name = %(name)s
"""
TOLD = """
    SELECT e.sequence FROM delivery_lineevent e JOIN delivery_line l ON l.id = e.line_id
      JOIN subscriptions_subscriber u ON u.id = l.subscriber_id
     WHERE u.name = %(name)s AND e.sequence IS NOT NULL
"""
SET_ASIDE = """
    SELECT (convert_from(m.body, 'UTF8')::jsonb ->> 'number')::int
      FROM delivery_delivery d JOIN delivery_message m ON m.id = d.message_id
      JOIN subscriptions_subscription s ON s.id = d.subscription_id
      JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
     WHERE u.name = %(name)s AND d.times_set_aside > 0
"""
DROPPED = """
    SELECT (convert_from(message.body, 'UTF8')::jsonb ->> 'number')::int
    FROM delivery_delivery delivery JOIN delivery_message message ON message.id = delivery.message_id
    JOIN subscriptions_eventtype event_type ON event_type.id = message.event_type_id
    WHERE event_type.name = %(event_type)s AND delivery.status IN ('EXPIRED', 'CANCELLED')
"""


def by_status(broker: Broker, subscribed: Subscribed) -> dict[str, dict[int, int]]:
    """Return the tries recorded of each event, by the status of its delivery."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for number, status, attempts in broker.ask(ENDED, name=subscribed.name):
        found[status][number] = attempts
    return dict(found)


def set_aside(broker: Broker, subscribed: Subscribed) -> set[int]:
    """Return the events that were set aside at some time."""
    return {number for (number,) in broker.ask(SET_ASIDE, name=subscribed.name)}


def untold_gaps(broker: Broker, subscribed: Subscribed, arrived: Collection[int]) -> set[int]:
    """Return the numbers that nobody has received and of which the line's history says nothing."""
    told = {sequence for (sequence,) in broker.ask(TOLD, name=subscribed.name)}
    return {*range(1, max(arrived, default=0))}.difference(arrived, told)
