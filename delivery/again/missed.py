"""What was published before a subscription, and which of it the subscription would have got (behaviour 5.8)."""

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from delivery.messages.documents import document_of
from subscriptions.candidates import Candidate
from subscriptions.database import rows
from subscriptions.filters import Work
from subscriptions.matching import qualified
from subscriptions.models import EventKind, EventType, Subscription
from subscriptions.patterns import patterns_of

KEPT: Final = """
(SELECT m.id FROM delivery_message m
  WHERE m.event_type_id = e.id AND m.id > %(cursor)s AND m.id <= %(newest)s AND m.published_at >= %(since)s::timestamptz
    AND m.answers IS NULL AND m.destination IS NULL AND (m.expires_at IS NULL OR m.expires_at > clock_timestamp())
  ORDER BY m.id LIMIT %(limit)s)"""

NUMBER: Final = f"""
SELECT count(*) FROM unnest(%(event_types)s::bigint[]) AS e (id) CROSS JOIN LATERAL {KEPT} m
"""
NEXT: Final = f"""
SELECT m.id, m.headers, m.content_type, m.filter_string, CASE WHEN %(reads)s THEN m.body END
  FROM delivery_message m
 WHERE m.id = ANY (ARRAY(
   SELECT x.id FROM unnest(%(event_types)s::bigint[]) AS e (id) CROSS JOIN LATERAL {KEPT} x
    ORDER BY x.id LIMIT %(limit)s))
 ORDER BY m.id FOR KEY SHARE
"""
"""Locked: the day that they are of is not dropped before their deliveries are there to need them."""

LARGEST_ID: Final = 2**63 - 1
EVER: Final = dt.datetime(1, 1, 2, tzinfo=dt.UTC)


class Missed(NamedTuple):
    """A message that the subscription would have got."""

    message_id: int
    failure: str
    """Why its filter could not be evaluated: it is HELD."""


class Stretch(NamedTuple):
    """Some messages, looked at in the order of publishing."""

    missed: list[Missed]
    last_id: int | None
    """The last one looked at; None: there are no more."""


def event_types_of(subscription: Subscription) -> list[int]:
    """Return the event types that a subscription is for, by today's names."""
    if subscription.event_type_id:
        return [subscription.event_type_id]
    names = EventType.objects.filter(kind=EventKind.TOPIC).values_list("pk", "name")
    return [pk for pk, name in names if subscription.event_pattern in patterns_of(name)]


def number_of(subscription: Subscription, *, newest: int, since: dt.datetime | None) -> int:
    """Count the messages of its event types up to `newest`, whatever its filters say."""
    arguments = _arguments(subscription, 0, newest, since) | {"limit": LARGEST_ID}
    ((count,),) = rows(NUMBER, arguments)
    return int(count)


def next_of(subscription: Subscription, *, cursor: int, newest: int, since: dt.datetime | None, limit: int) -> Stretch:
    """Return which of the next messages after `cursor` the subscription would have got."""
    reads = bool(subscription.filter)
    arguments = _arguments(subscription, cursor, newest, since) | {"limit": limit, "reads": reads}
    found = rows(NEXT, arguments)
    return Stretch(_missed(subscription, found), found[-1][0] if found else None)


def _missed(subscription: Subscription, found: Sequence[tuple[Any, ...]]) -> list[Missed]:
    wanted, work = subscription.header_filter_string, Work()
    candidate = Candidate(0, subscription.pk, subscription.subscriber_id, subscription.filter, bool(wanted))
    missed: list[Missed] = []
    for message_id, headers, content_type, filter_string, body in found:
        if wanted in {"", filter_string or ""}:
            document = document_of([(name, value) for name, value in headers], content_type, filter_string, body or b"")
            missed += [Missed(message_id, match.failure) for match in qualified([candidate], document, work)]
    return missed


def _arguments(subscription: Subscription, cursor: int, newest: int, since: dt.datetime | None) -> dict[str, Any]:
    event_types = event_types_of(subscription)
    return {"event_types": event_types, "cursor": cursor, "newest": newest, "since": since or EVER}
