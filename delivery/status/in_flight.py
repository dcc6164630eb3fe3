"""What is in flight, or was and is available again (contract 9.2)."""

from collections.abc import Sequence
from typing import Final

from broker_project.core.db import rows
from delivery.due_times import RETURNED
from delivery.mailbox.available import subscriptions_with

FEW: Final = 1_000
"""So many of a subscription are sorted for a page; more are met often enough by whoever walks along all hand-outs."""

LARGEST_ID: Final = 2**63 - 1

HANDED_OUT_OF_MAILBOX: Final = """
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
    return [
        delivery_id for (delivery_id,) in rows(HANDED_OUT_OF_MAILBOX, {"subscriber": subscriber_id, "limit": limit})
    ]


PUSHED: Final = """
SELECT d.id
  FROM delivery_line l JOIN delivery_pageread p ON p.line_id = l.id CROSS JOIN LATERAL unnest(p.delivery_ids) AS r (id)
 CROSS JOIN LATERAL (SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
 WHERE l.lease_until IS NOT NULL AND d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AND d.id {before} %(key)s
   AND (%(subscriptions)s::bigint[] IS NULL OR d.subscription_id = ANY (%(subscriptions)s::bigint[]))"""
"""What is sent is in the hand of a line that somebody drives."""


def _all(which: str) -> str:
    """Return SQL of what a subscription has handed out, by id: it is in its main line, due at a time that never comes.

    In the order of that index, and said so that no other will do.
    """
    return f"""
(SELECT d.id FROM delivery_open d
  WHERE d.subscription_id = s.id AND d.line_id = (
          SELECT l.id FROM subscriptions_subscription o
            JOIN delivery_line l ON l.subscriber_id = o.subscriber_id AND l.lane = 'main' WHERE o.id = s.id)
    AND d.due_at >= {RETURNED} AND d.due_at <= {RETURNED} AND {which} AND d.id {{before}} %(key)s
  ORDER BY d.due_at {{direction}}, d.id {{direction}} LIMIT %(limit)s)"""


def _that_are(compared: str, never: str) -> str:
    """Return SQL of a subscription's hand-outs that are so by their time: where they are few by that, else all by id.

    So a page of those that have timed out is found though there are many that have not, and the other way round.

    What goes by id compares COALESCE(time, `never`) with the same meaning, for the planner alone: the index of times
    would serve the plain comparison too, and looks as good as any while the shelf was last seen empty; all that it
    finds would then be sorted.
    """
    near = f"FROM delivery_open d WHERE d.subscription_id = s.id AND d.fetched_until {compared}"
    return f"""
(SELECT h.id FROM (SELECT count(*) > {FEW} AS are_many FROM (SELECT {near} LIMIT {FEW} + 1) f) c
  CROSS JOIN LATERAL (
   (SELECT f.id FROM (SELECT d.id {near} ORDER BY d.fetched_until, d.id LIMIT {FEW}) f
     WHERE NOT c.are_many AND f.id {{before}} %(key)s ORDER BY f.id {{direction}} LIMIT %(limit)s)
   UNION ALL{_all(f"c.are_many AND COALESCE(d.fetched_until, '{never}') {compared}")}) h)"""


HANDED_OUT: Final = _all("d.closed_on = '9999-12-31'")
TIMED_OUT: Final = _that_are("<= (SELECT clock_timestamp())", never="infinity")
IN_FLIGHT: Final = _that_are("> (SELECT clock_timestamp())", never="-infinity")

UNDER_WAY: Final = f"""
WITH RECURSIVE {subscriptions_with("boxes", "fetched_until IS NOT NULL")},
asked AS MATERIALIZED (
  SELECT unnest AS id FROM unnest(%(subscriptions)s::bigint[])
   UNION ALL
  SELECT id FROM boxes WHERE %(subscriptions)s::bigint[] IS NULL AND id IS NOT NULL)
SELECT id FROM (
  SELECT d.id FROM asked s CROSS JOIN LATERAL {IN_FLIGHT} d
  UNION ALL{PUSHED}) d
 ORDER BY id {{direction}} LIMIT %(limit)s
"""
"""The recursion is not begun where the subscriptions are given."""


def in_flight(subscription_ids: Sequence[int] | None, *, key: int | None, downwards: bool, limit: int) -> list[int]:
    """Return the ids of what is under way of these subscriptions, None: of all.

    As many as `limit`, the newest before `key` first; or, upwards, the oldest after it. None: from the end.
    """
    order = {"before": "<", "direction": "DESC"} if downwards else {"before": ">", "direction": "ASC"}
    end = LARGEST_ID if downwards else 0
    asked = None if subscription_ids is None else [*subscription_ids]
    arguments = {"subscriptions": asked, "key": end if key is None else key, "limit": limit}
    return [delivery_id for (delivery_id,) in rows(UNDER_WAY.format(**order), arguments)]
