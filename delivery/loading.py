"""Loading what requests need beside the delivery: the message's content, and where it goes."""

import json
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Final
from weakref import WeakValueDictionary

import structlog
from django.core.exceptions import ValidationError

from delivery.forwarded_headers import forwarded, merged
from delivery.webhooks import Content, Destination, Headers
from subscriptions.database import rows
from subscriptions.endpoints import Endpoint, parse_endpoint
from subscriptions.signing_secrets import key_of

MESSAGES: Final = """
SELECT m.id, COALESCE(e.name, ''), m.body, m.content_type, m.headers::text,
       (extract(epoch FROM m.published_at) * 1000)::bigint
  FROM unnest(%s::bigint[]) AS i (id)
 CROSS JOIN LATERAL (SELECT * FROM delivery_message m WHERE m.id = i.id LIMIT 1) m
  LEFT JOIN subscriptions_eventtype e ON e.id = m.event_type_id
"""

DESTINATIONS: Final = """
SELECT s.id, s.version + u.version, s.endpoint, u.headers::text, s.headers::text, s.signing_secret, s.script
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
 WHERE s.id = ANY(%s)
"""

UNUSABLE: Final = Endpoint("POST", "unusable:endpoint-or-secret")
"""Stands for what got past validation: no request can be sent there, so its line is held and no other line stops."""

RECENT_BYTES: Final = 4 * 1024 * 1024
"""Contents kept although no line has them in hand."""

log = structlog.get_logger(__name__)


class _Contents:
    """The contents that some line has in hand, and some that were read lately: a message never changes.

    A line reads its next page while it still has some of the last, and anew in each turn; one message goes to many.
    """

    def __init__(self) -> None:
        self._alive: WeakValueDictionary[int, Content] = WeakValueDictionary()
        self._recent: deque[Content] = deque()
        self._recent_bytes = 0

    def among(self, message_ids: Collection[int]) -> dict[int, Content]:
        return {message_id: content for message_id in message_ids if (content := self._alive.get(message_id))}

    def keep(self, content: Content) -> None:
        self._alive[content.message_id] = content
        self._recent.append(content)
        self._recent_bytes += content.size
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= self._recent.popleft().size


_contents = _Contents()


def contents_of(message_ids: Collection[int]) -> dict[int, Content]:
    """Return what is delivered of each message, by its id; one that is gone is missing. For the driver's thread."""
    known = _contents.among(message_ids)
    if unknown := sorted(set(message_ids) - known.keys()):
        for message_id, event_type, body, content_type, headers, published_ms in rows(MESSAGES, [unknown]):
            going_on = _forwarded(content_type, headers)
            known[message_id] = Content(message_id, event_type, body, going_on, content_type, headers, published_ms)
            _contents.keep(known[message_id])
    return known


@lru_cache(maxsize=256)
def _forwarded(content_type: str, headers: str) -> Headers:
    pairs = [(name, value) for name, value in json.loads(headers)]
    return tuple(merged(dict(forwarded(pairs)), {"Content-Type": content_type}).items())


def destinations_of(subscription_ids: Collection[int]) -> dict[int, Destination]:
    """Return where each subscription's deliveries go now, by its id; one that is gone is missing."""
    if not subscription_ids:
        return {}
    found = {}
    for *columns, script in rows(DESTINATIONS, [sorted(subscription_ids)]):
        plain = _destination(*columns)
        found[plain.subscription_id] = _scripted(plain, script) if script else plain
    return found


@lru_cache(maxsize=256)
def _scripted(destination: Destination, script: str) -> Destination:
    """Return the destination with its script; scripts are large, so that few are kept."""
    return replace(destination, script=script)


@lru_cache(maxsize=8192)
def _destination(
    subscription_id: int, stamp: int, endpoint: str, subscriber_headers: str, own_headers: str, secret: str
) -> Destination:
    try:
        parsed, key = parse_endpoint(endpoint), key_of(secret)
    except ValidationError as refused:
        log.error("subscription.unusable", subscription_id=subscription_id, reason=str(refused))  # noqa: TRY400
        parsed, key = UNUSABLE, b""
    headers = merged(json.loads(subscriber_headers), json.loads(own_headers))
    return Destination(subscription_id, stamp, parsed.method, parsed.url, headers, key)
