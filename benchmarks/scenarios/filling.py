"""Filling a mailbox as if nobody had fetched for days, or as if all had died who did."""

from collections.abc import Mapping
from typing import Final

import psycopg

from benchmarks.filling import SLICE
from benchmarks.wire import NUMBER, body_of
from delivery.due_times_ import UNTIL_RETURNED

STREAM: Final = 99
"""No publisher's."""
FRESH: Final = {"status": "PENDING", "due_at": None, "fetches": 0, "fetched_until": None}
TIMED_OUT: Final = {"status": "IN_FLIGHT", "due_at": UNTIL_RETURNED, "fetches": 1, "fetched_until": "now"}
"""Each was handed out once, and its time was over as soon as it was there."""

MESSAGES: Final = """
WITH message AS (
  INSERT INTO delivery_message (id, event_type_id, body, size, content_type, headers, outcome, deliveries_count)
  SELECT nextval('delivery_message_id_seq'), %(event_type)s,
         convert_to(overlay(%(body)s PLACING lpad(n::text, %(digits)s, '0') FROM %(place)s), 'UTF8'),
         octet_length(%(body)s), 'application/json', '[]', 'ROUTED', 1
    FROM generate_series(%(first)s::int, %(last)s::int) n
  RETURNING id, size)
INSERT INTO delivery_open (message_id, line_id, subscription_id, size, status, due_at, fetches, fetched_until)
SELECT message.id, line.id, %(subscription)s, message.size, %(status)s, %(due_at)s::timestamptz, %(fetches)s,
       %(fetched_until)s::timestamptz
  FROM message JOIN delivery_line line ON line.lane = 'main' AND line.subscriber_id = %(subscriber)s
 ORDER BY message.id
"""
"""Messages of today, numbered from 1."""


def fill_mailbox(
    url: str,
    subscriber_id: int,
    subscription_id: int,
    event_type_id: int,
    *,
    count: int,
    state: Mapping[str, object] = FRESH,
) -> None:
    """Let `count` messages in this state, with bodies as publishers send them, lie in a subscriber's mailbox."""
    arguments = {
        "subscriber": subscriber_id,
        "subscription": subscription_id,
        "event_type": event_type_id,
        "body": body_of(STREAM, 0, 0).decode(),
        "place": NUMBER.start + 1,
        "digits": NUMBER.stop - NUMBER.start,
        **state,
    }
    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as connection:
        for first in range(1, count + 1, SLICE):
            bounds = {"first": first, "last": min(first + SLICE - 1, count)}
            connection.execute(MESSAGES.encode(), {**arguments, **bounds})
