"""The part of a round in which deliveries end that the broker tells of by events of its own (behaviour 5.7)."""

from typing import Final

from subscriptions.names import OWN_EVENTS
from subscriptions.patterns import patterns_of

REJECTED: Final = f"{OWN_EVENTS}Delivery.Rejected"
FAILED: Final = f"{OWN_EVENTS}Delivery.Failed"


def _is_wanted(kind: str) -> str:
    """Return the condition that some subscription which is active is reached by events of this kind."""
    names = ", ".join(f"(0, '{pattern}')" for pattern in patterns_of(kind))
    return f"""EXISTS (
           SELECT FROM (VALUES {names}, ((SELECT id FROM subscriptions_eventtype WHERE name = '{kind}'), ''))
                    AS k (event_type_id, event_pattern)
             JOIN subscriptions_subscription w ON COALESCE(w.event_type_id, 0) = k.event_type_id
                  AND w.event_pattern = k.event_pattern AND w.status = 'ACTIVE'
             JOIN subscriptions_subscriber u ON u.id = w.subscriber_id AND u.status = 'ACTIVE')"""


ENDS_ANNOUNCED: Final = f"""
announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, delivery_id, details)
  SELECT CASE status WHEN 'FAILED' THEN '{FAILED}' ELSE '{REJECTED}' END, line_id, subscription_id, id,
         jsonb_build_object('status', status, 'reason', reason, 'attempts', attempts, 'fetches', NULLIF(fetches, 0))
    FROM gone
   WHERE CASE status WHEN 'REJECTED' THEN {_is_wanted(REJECTED)} WHEN 'FAILED' THEN {_is_wanted(FAILED)} END"""
"""Of those that end so, as long as somebody wants to hear of it: an endpoint that refuses much pays for nobody."""

OF_GROUPS: Final = ")"
OF_LINES: Final = """
     AND (further->>'announces')::bool)"""
"""There what tells of the broker itself is among them, and is not told of."""
OF_MAILBOXES: Final = f"""
     AND NOT COALESCE((SELECT starts_with(e.name, '{OWN_EVENTS}')
                         FROM delivery_message m JOIN subscriptions_eventtype e ON e.id = m.event_type_id
                        WHERE m.id = gone.message_id LIMIT 1), false))"""
"""There too, said by the message's event type."""
