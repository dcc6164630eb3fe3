"""The deliveries that a replay is of: counted, and met one after the other (behaviour 5.8)."""

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, LiteralString, NamedTuple

from broker_project.core.db import rows
from delivery.replay.families import FAMILY
from delivery.replay.resend import Old
from delivery.replay.selection import Selection
from delivery.replay.walking import WALK, each_of

IN_TIME: Final = """
       {row}.status = ANY(%(statuses)s::text[]) AND {row}.finished_at <= %(until)s::timestamptz
       AND {row}.created_at >= %(begin)s::timestamptz AND {row}.created_at < %(end)s::timestamptz
       AND NOT EXISTS (SELECT FROM delivery_delivery n WHERE n.resubmit_of = {row}.id)"""
"""What has been made again is not, but what it was made into: else each replay that fails would double the next."""

WANTED: Final = f"""({IN_TIME.format(row="d")}
       AND (%(event_type)s::bigint IS NULL
            OR EXISTS (SELECT FROM subscriptions_subscription o
                        WHERE o.id = d.subscription_id AND o.event_type_id = %(event_type)s)
            OR EXISTS (SELECT FROM delivery_message m
                        WHERE m.id = d.message_id AND m.event_type_id = %(event_type)s)))"""
"""Of a subscription to a pattern, the message says of which event type it is."""

COLUMNS: Final = """d.id, d.message_id, d.subscription_id, d.group_id, d.status, d.resubmit_of, d.created_at,
       d.finished_at"""

BY_STATUS: Final = f"""
SELECT s.place * 100 + t.place AS arm, x.*
  FROM unnest(%(subscriptions)s::bigint[]) WITH ORDINALITY AS s (id, place)
 CROSS JOIN unnest(%(statuses)s::text[]) WITH ORDINALITY AS t (status, place)
 CROSS JOIN LATERAL (
   SELECT {COLUMNS} FROM delivery_delivery d
    WHERE d.subscription_id >= s.id AND d.subscription_id <= s.id AND d.status = t.status AND d.status <> 'DELIVERED'
      AND d.closed_on >= %(first_day)s::date AND d.closed_on < '9999-12-31' AND d.id > %(cursor)s
    ORDER BY d.subscription_id, d.status, d.id LIMIT %(each)s) x"""

OF_ALL: Final = f"""
SELECT s.place AS arm, x.*
  FROM unnest(%(subscriptions)s::bigint[]) WITH ORDINALITY AS s (id, place)
 CROSS JOIN LATERAL (
   SELECT {COLUMNS} FROM delivery_delivery d
    WHERE d.subscription_id >= s.id AND d.subscription_id <= s.id
      AND d.closed_on >= %(first_day)s::date AND d.closed_on < '9999-12-31' AND d.id > %(cursor)s
    ORDER BY d.subscription_id, d.id LIMIT %(each)s) x"""
"""No index is of DELIVERED ones alone: so all of them are met, and none is looked for."""

NEXT: Final = (
    f"""{WALK}
SELECT d.id, d.message_id, d.subscription_id, COALESCE(family.asked_group, d.group_id), {WANTED},
       family.is_open OR d.status <> 'DELIVERED' AND (family.is_taken OR family.is_anothers)
  FROM (SELECT * FROM stretch ORDER BY id LIMIT %(limit)s) d
"""
    + FAMILY.format(
        other=f"""f.id < d.id AND {IN_TIME.format(row="f")}
           AND EXISTS (SELECT FROM subscriptions_subscription s
                         JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
                        WHERE s.id = f.subscription_id AND s.id = ANY(%(subscriptions)s::bigint[])
                          AND s.status = 'ACTIVE' AND u.status = 'ACTIVE')"""
    )
    + " ORDER BY d.id"
)

COUNT: Final = f"""{WALK}
SELECT d.status, count(*) FILTER (WHERE {WANTED}), max(d.id), (SELECT is_end FROM horizon)
  FROM stretch d GROUP BY d.status
"""


class Met(NamedTuple):
    """One delivery on the way of a replay."""

    old: Old
    is_wanted: bool
    is_anothers: bool
    """Whether its QUEUE job is still under way, has been taken, or is given to another endpoint in its place."""

    @property
    def met_id(self) -> int:
        """Return its id."""
        return self.old.id


class Stretch(NamedTuple):
    """Some of what a replay is of, counted."""

    by_status: Mapping[str, int]
    """How many there are to be made again; of a status without any, nothing."""
    last_id: int
    """Up to where."""
    is_end: bool
    """Whether there is nothing beyond."""


def counted(selection: Selection, until: dt.datetime, *, cursor: int, limit: int) -> Stretch:
    """Count, of about the next `limit` deliveries after `cursor`, those that had ended by then and are wanted."""
    found = rows(_along(COUNT, selection), _arguments(selection, until, cursor, limit))
    wanted = Counter({status: count for status, count, *_ in found if count})
    last_id = max((last_id for _, _, last_id, _ in found), default=cursor)
    return Stretch(wanted, last_id, all(is_end for *_, is_end in found))


def next_of(selection: Selection, until: dt.datetime, *, cursor: int, limit: int) -> list[Met]:
    """Return the next deliveries after `cursor`, by id, wanted or not; none: there are no more."""
    found = rows(_along(NEXT, selection), _arguments(selection, until, cursor, limit) | {"limit": limit})
    return [Met(Old(*old), is_wanted, is_anothers) for *old, is_wanted, is_anothers in found]


def _along(statement: LiteralString, selection: Selection) -> LiteralString:
    return statement.format(arms=OF_ALL if selection.has_delivered else BY_STATUS)


def _arguments(selection: Selection, until: dt.datetime, cursor: int, limit: int) -> dict[str, Any]:
    arms = len(selection.subscription_ids) * (1 if selection.has_delivered else len(selection.statuses))
    return {**selection.arguments(until), "cursor": cursor, "each": each_of(limit, arms)}
