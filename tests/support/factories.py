"""Make one valid thing each, with sensible defaults: stored rows, and deliveries in a worker's buffer."""

import base64
import hmac
import itertools
from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from delivery.publish.store import NewMessage
from delivery.webhook.content import Content
from delivery.webhook.destination import Destination
from delivery.webhook.request import Outgoing
from subscriptions.credentials.keys import Owner, issue, kind_of
from subscriptions.credentials.scopes import OPENED, Issuer
from subscriptions.models import ApiKey, EventKind, EventType, Publisher, RetryPolicy, Subscriber, Subscription

_numbers = itertools.count(1)

CONTENT = Content(1, "Test.Event", b"{}", ())
DESTINATION = Destination(1, 2, "POST", "http://host/", {}, b"")


def event_type(name: str | None = None, kind: EventKind = EventKind.TOPIC, **fields: Any) -> EventType:
    return EventType.objects.create(name=name or f"Test.Event{next(_numbers)}", kind=kind, **fields)


def publisher(name: str | None = None, event_types: Sequence[EventType] = (), **fields: Any) -> Publisher:
    made = Publisher.objects.create(name=name or f"publisher-{next(_numbers)}", **fields)
    made.event_types.set(event_types)
    return made


def subscriber(name: str | None = None, **fields: Any) -> Subscriber:
    return Subscriber.objects.create(name=name or f"subscriber-{next(_numbers)}", **fields)


def message(event_type: EventType, body: bytes = b"{}", **fields: Any) -> NewMessage:
    """Return a checked message that is not stored."""
    known = {"event_type_id": event_type.pk, "event_type": event_type.name, "content_type": event_type.content_type}
    return NewMessage(body=body, **{**known, "kind": event_type.kind, **fields})


def retry_policy(name: str | None = None, **terms: Any) -> RetryPolicy:
    """Store a policy that says these terms, and otherwise what TeamForge says."""
    return RetryPolicy.objects.create(name=name or f"policy-{next(_numbers)}", **terms)


new_event_type, new_subscriber = event_type, subscriber
"""The same functions, where a parameter has taken their names."""


def subscription(
    subscriber: Subscriber | None = None,
    event_type: EventType | None = None,
    endpoint: str = "http://127.0.0.1:9/hook",
    **fields: Any,
) -> Subscription:
    return Subscription.objects.create(
        subscriber=subscriber or new_subscriber(),
        event_type=None if fields.get("event_pattern") else event_type or new_event_type(),
        endpoint=endpoint,
        **fields,
    )


def api_key(owner: Owner = None, **fields: Any) -> tuple[ApiKey, str]:
    """Issue a key of a publisher, a subscriber or, without owner, for management; return it and its token.

    It opens all that its kind may, unless `scopes` are given.
    """
    given = {"now": timezone.now(), "scopes": OPENED[kind_of(owner)], **fields}
    return issue(owner, issuer=Issuer("tests"), **given)


def signature(key: bytes, *, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature as Standard Webhooks defines it."""
    signed = b"%s.%d.%s" % (webhook_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def outgoing(number: int, *, is_deferred: bool = False, size: int = 2) -> Outgoing:
    return Outgoing(
        number, CONTENT, DESTINATION, 0, None, uncertain=False, size=size, is_deferred=is_deferred, times_deferred=0
    )


def fresh_deliveries(*numbers: int) -> list[Outgoing]:
    return [outgoing(number) for number in numbers]


def deferred_deliveries(*numbers: int) -> list[Outgoing]:
    return [outgoing(number, is_deferred=True) for number in numbers]
