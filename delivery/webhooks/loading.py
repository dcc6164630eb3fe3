"""Loading what requests need beside the delivery: the message's content, and where it goes."""

import json
import sys
from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Final
from weakref import WeakValueDictionary

import structlog
from django.core.exceptions import ValidationError

from delivery.webhooks.forwarded_headers import forwarded, merged
from delivery.webhooks.requests import Content, Destination, Headers
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
SELECT s.id, s.version + u.version, s.endpoint, u.headers::text, s.headers::text, s.signing_secret, s.script <> ''
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
 WHERE s.id = ANY(%s) AND s.status = 'ACTIVE' AND u.status = 'ACTIVE'
"""

SCRIPTS: Final = "SELECT id, script FROM subscriptions_subscription WHERE id = ANY(%s)"

UNUSABLE: Final = Endpoint("POST", "unusable:endpoint-or-secret")
"""Stands for what got past validation: no request can be sent there, so its line is held and no other line stops."""

RECENT_BYTES: Final = 4 * 1024 * 1024
"""Contents kept although no line has them in hand."""
SCRIPT_CHARACTERS: Final = 8 * 1024 * 1024
"""Scripts kept although no line has them in hand."""

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
    """Return where each subscription's deliveries go now, by its id; one that is gone or not active is missing."""
    if not subscription_ids:
        return {}
    found, scripted = {}, []
    for *columns, has_script in rows(DESTINATIONS, [sorted(subscription_ids)]):
        plain = destination_of(*columns)
        if has_script:
            scripted.append(plain)
        else:
            found[plain.subscription_id] = plain
    return found | _scripts.added_to(scripted) if scripted else found


class _Scripts:
    """The destinations with their scripts, those used lately: scripts are large, so that each is read but once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Destination, Destination] = OrderedDict()
        """By what each is without its script."""
        self._characters = 0

    def added_to(self, plain: Collection[Destination]) -> dict[int, Destination]:
        """Return the destinations with their scripts, by id; one that is gone is missing.

        A script that was changed just now comes with a stamp that is not in force any more: nothing is sent after it.
        """
        unknown = {one.subscription_id: one for one in plain if one not in self._kept}
        known = {one.subscription_id: self._used(one) for one in plain if one in self._kept}
        for subscription_id, script in rows(SCRIPTS, [sorted(unknown)]) if unknown else ():
            known[subscription_id] = self._keep(unknown[subscription_id], sys.intern(script))
        return known

    def _used(self, plain: Destination) -> Destination:
        self._kept.move_to_end(plain)
        return self._kept[plain]

    def _keep(self, plain: Destination, script: str) -> Destination:
        scripted = self._kept[plain] = replace(plain, script=script)
        self._characters += len(script)
        while self._characters > SCRIPT_CHARACTERS:
            _, dropped = self._kept.popitem(last=False)
            self._characters -= len(dropped.script)
        return scripted


_scripts = _Scripts()


@lru_cache(maxsize=8192)
def destination_of(
    subscription_id: int, stamp: int, endpoint: str, subscriber_headers: str, own_headers: str, secret: str
) -> Destination:
    """Return where a subscription's requests go, as it is configured at `stamp`: the same value each time."""
    try:
        parsed, key = parse_endpoint(endpoint), key_of(secret)
    except ValidationError as refused:
        log.error("subscription.unusable", subscription_id=subscription_id, reason=str(refused))  # noqa: TRY400
        parsed, key = UNUSABLE, b""
    headers = merged(json.loads(subscriber_headers), json.loads(own_headers))
    return Destination(subscription_id, stamp, parsed.method, parsed.url, headers, key)
