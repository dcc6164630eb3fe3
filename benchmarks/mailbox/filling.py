"""Filling a mailbox as if nobody had fetched for days."""

from typing import Final

import psycopg

from benchmarks.filling import SLICE
from benchmarks.wire import NUMBER, body_of

MESSAGES: Final = """
WITH message AS (
  INSERT INTO delivery_message (id, event_type_id, body, size, content_type, headers, outcome, deliveries_count)
  SELECT nextval('delivery_message_id_seq'), %(event_type)s,
         convert_to(overlay(%(body)s PLACING lpad(n::text, %(digits)s, '0') FROM %(place)s), 'UTF8'),
         octet_length(%(body)s), 'application/json', '[]', 'ROUTED', 1
    FROM generate_series(%(first)s::int, %(last)s::int) n
  RETURNING id, size)
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
SELECT message.id, line.id, %(subscription)s, 'PENDING', message.size
  FROM message JOIN delivery_line line ON line.lane = 'main' AND line.subscriber_id = %(subscriber)s
 ORDER BY message.id
"""
"""Messages of today, numbered from 1."""


def fill_mailbox(url: str, subscriber_id: int, subscription_id: int, event_type_id: int, *, count: int) -> None:
    """Let `count` messages, with bodies as publishers send them, lie in a subscriber's mailbox."""
    arguments = {
        "subscriber": subscriber_id,
        "subscription": subscription_id,
        "event_type": event_type_id,
        "body": body_of(0, 0, 0).decode(),
        "place": NUMBER.start + 1,
        "digits": NUMBER.stop - NUMBER.start,
    }
    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as connection:
        for first in range(1, count + 1, SLICE):
            bounds = {"first": first, "last": min(first + SLICE - 1, count)}
            connection.execute(MESSAGES.encode(), {**arguments, **bounds})
