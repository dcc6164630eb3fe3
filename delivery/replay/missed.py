"""The messages published before a subscription existed that it would have received (contract 5.8)."""

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from broker_project.core.db import rows
from delivery.publish.draft import document_of
from delivery.replay.job_steps import LARGEST_ID, WALK, each_of, taken
from subscriptions.filters import Work
from subscriptions.matching import Candidate, qualified
from subscriptions.models import EventKind, EventType, Subscription
from subscriptions.names import patterns_of

OLDER: Final = """
SELECT id, published_at < %s::timestamptz FROM delivery_message WHERE id >= %s ORDER BY id LIMIT 1
"""
NEWEST: Final = "SELECT last_value FROM delivery_message_id_seq"

SPREAD: Final = dt.timedelta(minutes=10)
"""Messages are published in the order of their ids, except concurrent ones and while a clock is set."""

READ: Final = """
SELECT m.id, m.headers, m.content_type, m.filter_string, CASE WHEN %(reads)s THEN m.body END
  FROM delivery_message m WHERE m.id = ANY(%(messages)s::bigint[]) ORDER BY m.id FOR KEY SHARE
"""
"""Locked: their day is not dropped before the deliveries need it."""

EVER: Final = dt.datetime(1, 1, 2, tzinfo=dt.UTC)
FILTERED_SLICE: Final = 50
"""Messages whose bodies are read at once: each may be a megabyte."""


def newest_message_id() -> int:
    """Return the id of the newest message, or of one about to be published."""
    ((newest,),) = rows(NEWEST)
    return int(newest)


def published_before(since: dt.datetime | None) -> int:
    """Return a message id up to which all messages are older than `since`, close to it if there is one."""
    low, high = 1, newest_message_id() + 1
    while since and low < high:
        middle = (low + high) // 2
        found = rows(OLDER, [since - SPREAD, middle])
        older = [one for one, is_older in found if is_older]
        low, high = (older[0] + 1, high) if older else (low, middle)
    return low - 1


ARMS: Final = """
SELECT e.place AS arm, x.*
  FROM unnest(%(event_types)s::bigint[]) WITH ORDINALITY AS e (id, place)
 CROSS JOIN LATERAL (
   SELECT m.id, m.published_at >= %(since)s::timestamptz AND m.answers IS NULL AND m.copy_of IS NULL
                AND m.destination IS NULL AND (m.expires_at IS NULL OR m.expires_at > clock_timestamp()) AS is_wanted
     FROM delivery_message m WHERE m.event_type_id = e.id AND m.id > %(cursor)s AND m.id <= %(newest)s
    ORDER BY m.id LIMIT %(each)s) x"""
"""Not messages with a destination, nor copies made when a message was sent again.

A message published again exists itself; an edited one was for its receiver only.
"""

KEPT: Final = WALK.format(arms=ARMS)
COUNT: Final = f"{KEPT} SELECT count(*) FILTER (WHERE is_wanted), max(id), (SELECT is_end FROM horizon) FROM stretch"
NEXT: Final = f"{KEPT} SELECT id, is_wanted FROM stretch ORDER BY id LIMIT %(limit)s"


class Looked(NamedTuple):
    """A message on the way of a backfill."""

    met_id: int
    is_wanted: bool


class MissedCount(NamedTuple):
    """A count of messages on the way."""

    messages: int
    last_id: int
    """Position reached."""
    is_end: bool
    """Whether nothing is left."""


class Missed(NamedTuple):
    """A message that the subscription would have received."""

    message_id: int
    failure: str
    """Why its filter failed, which makes the delivery HELD; else empty."""


class MessageRange(NamedTuple):
    """Messages read in order of publishing."""

    missed: list[Missed]
    last_id: int | None
    """The last one read; None if nothing is left."""


def event_types_of(subscription: Subscription) -> list[int]:
    """Return the ids of the subscription's event types, by their names today."""
    if subscription.event_type_id:
        return [subscription.event_type_id]
    names = EventType.objects.filter(kind=EventKind.TOPIC).values_list("pk", "name")
    return [pk for pk, name in names if subscription.event_pattern in patterns_of(name)]


def counted(event_types: Sequence[int], *, cursor: int, since: dt.datetime | None, limit: int) -> MissedCount:
    """Count the messages to backfill among about the next `limit` after `cursor`."""
    ((messages, last_id, is_end),) = rows(COUNT, _arguments(event_types, cursor, LARGEST_ID, since, limit))
    return MissedCount(messages, last_id or cursor, is_end)


def next_of(
    subscription: Subscription,
    event_types: Sequence[int],
    *,
    cursor: int,
    newest: int,
    since: dt.datetime | None,
    limit: int,
) -> MessageRange:
    """Return which of the next messages after `cursor` the subscription would have received."""
    arguments = _arguments(event_types, cursor, newest, since, limit)
    met = [Looked(*one) for one in rows(NEXT, arguments | {"limit": limit})]
    reads = bool(subscription.filter)
    looked, last_id = taken(met, FILTERED_SLICE if reads else limit)
    found = rows(READ, {"messages": [one.met_id for one in looked], "reads": reads})
    return MessageRange(_missed(subscription, found), last_id)


def _missed(subscription: Subscription, found: Sequence[tuple[Any, ...]]) -> list[Missed]:
    wanted, work = subscription.header_filter_string, Work()
    candidate = Candidate(0, subscription.pk, subscription.subscriber_id, subscription.filter, bool(wanted))
    missed: list[Missed] = []
    for message_id, headers, content_type, filter_string, body in found:
        if wanted in {"", filter_string or ""}:
            document = document_of([(name, value) for name, value in headers], content_type, filter_string, body or b"")
            missed += [Missed(message_id, match.failure) for match in qualified([candidate], document, work)]
    return missed


def _arguments(
    event_types: Sequence[int], cursor: int, newest: int, since: dt.datetime | None, limit: int
) -> dict[str, Any]:
    return {
        "event_types": [*event_types],
        "cursor": cursor,
        "newest": newest,
        "since": since or EVER,
        "each": each_of(limit, len(event_types)),
    }
