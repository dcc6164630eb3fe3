"""Find deliveries in flight, and those that timed out and are available again (contract 9.2)."""

from collections.abc import Sequence
from typing import Final

from broker_project.core.db import rows
from delivery.due_times import RETURNED
from delivery.mailbox.available import subscriptions_with

FEW: Final = 1_000
"""Up to this many of a subscription are sorted for a page; more are found often enough by walking all hand-outs."""

LARGEST_ID: Final = 2**63 - 1

HANDED_OUT_OF_MAILBOX: Final = """
SELECT d.id FROM subscriptions_subscription s CROSS JOIN LATERAL (
  SELECT d.id, d.fetched_until FROM delivery_open d
   WHERE d.subscription_id = s.id AND d.fetched_until > (SELECT clock_timestamp())
   ORDER BY d.fetched_until, d.id LIMIT %(limit)s) d
 WHERE s.subscriber_id = %(subscriber)s
 ORDER BY d.fetched_until, d.id LIMIT %(limit)s
"""
"""Of all subscriptions: one that was switched to PUSH may still have some."""


def in_flight_of(subscriber_id: int, *, limit: int) -> list[int]:
    """Return the ids of at most `limit` deliveries that a subscriber's clients have, the next to time out first."""
    return [
        delivery_id for (delivery_id,) in rows(HANDED_OUT_OF_MAILBOX, {"subscriber": subscriber_id, "limit": limit})
    ]


PUSHED: Final = """
SELECT d.id
  FROM delivery_line l JOIN delivery_pageread p ON p.line_id = l.id CROSS JOIN LATERAL unnest(p.delivery_ids) AS r (id)
 CROSS JOIN LATERAL (SELECT * FROM delivery_open o WHERE o.id = r.id AND o.closed_on = '9999-12-31' LIMIT 1) d
 WHERE l.lease_until IS NOT NULL AND d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AND d.id {before} %(key)s
   AND (%(subscriptions)s::bigint[] IS NULL OR d.subscription_id = ANY (%(subscriptions)s::bigint[]))"""
"""A delivery being sent is in a page of a line that is running."""


def _all(which: str) -> str:
    """Return SQL of the ids that a subscription has handed out, in order of id.

    They are in its main line, due at a time that never comes. Written in the order of that index, so no other is used.
    """
    return f"""
(SELECT d.id FROM delivery_open d
  WHERE d.subscription_id = s.id AND d.line_id = (
          SELECT l.id FROM subscriptions_subscription o
            JOIN delivery_line l ON l.subscriber_id = o.subscriber_id AND l.lane = 'main' WHERE o.id = s.id)
    AND d.due_at >= {RETURNED} AND d.due_at <= {RETURNED} AND {which} AND d.id {{before}} %(key)s
  ORDER BY d.due_at {{direction}}, d.id {{direction}} LIMIT %(limit)s)"""


def _by_time(compared: str, never: str) -> str:
    """Return SQL of a subscription's hand-outs by their time: few by the index of times, many by the index of ids.

    So a page of timed-out ones is found even behind many that are not, and the other way round.

    The search by id compares COALESCE(time, `never`), with the same meaning, for the planner only: the plain comparison
    would match the index of times too, which looks as good while the queue was last seen empty, and sorts all it finds.
    """
    near = f"FROM delivery_open d WHERE d.subscription_id = s.id AND d.fetched_until {compared}"
    return f"""
(SELECT h.id FROM (SELECT count(*) > {FEW} AS are_many FROM (SELECT {near} LIMIT {FEW} + 1) f) c
  CROSS JOIN LATERAL (
   (SELECT f.id FROM (SELECT d.id {near} ORDER BY d.fetched_until, d.id LIMIT {FEW}) f
     WHERE NOT c.are_many AND f.id {{before}} %(key)s ORDER BY f.id {{direction}} LIMIT %(limit)s)
   UNION ALL{_all(f"c.are_many AND COALESCE(d.fetched_until, '{never}') {compared}")}) h)"""


HANDED_OUT: Final = _all("d.closed_on = '9999-12-31'")
TIMED_OUT: Final = _by_time("<= (SELECT clock_timestamp())", never="infinity")
IN_FLIGHT: Final = _by_time("> (SELECT clock_timestamp())", never="-infinity")

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
"""The recursion does not start if subscriptions are given."""


def in_flight(subscription_ids: Sequence[int] | None, *, key: int | None, downwards: bool, limit: int) -> list[int]:
    """Return the ids of deliveries in flight of these subscriptions, None for all, at most `limit`.

    Downwards the newest before `key`, upwards the oldest after it; without a key from the end.
    """
    order = {"before": "<", "direction": "DESC"} if downwards else {"before": ">", "direction": "ASC"}
    end = LARGEST_ID if downwards else 0
    asked = None if subscription_ids is None else [*subscription_ids]
    arguments = {"subscriptions": asked, "key": end if key is None else key, "limit": limit}
    return [delivery_id for (delivery_id,) in rows(UNDER_WAY.format(**order), arguments)]
