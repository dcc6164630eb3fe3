"""Storing messages with a delivery for every subscription that qualifies: one statement for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import orjson
from django.db import transaction

from delivery import wakeups
from delivery.documents import document_of
from delivery.idempotency import fingerprint_of
from delivery.models import MessageOutcome
from delivery.store_statements import store_statement
from subscriptions.database import rows
from subscriptions.filters import Document
from subscriptions.matching import Match, matching_subscriptions
from subscriptions.models import EventKind


@dataclass(frozen=True)
class NewMessage:
    """What a publisher wants published."""

    event_type_id: int
    event_type: str
    body: bytes
    content_type: str
    headers: Sequence[tuple[str, str]] = ()
    """Without those that are never kept (behaviour 2.11)."""
    filter_string: str | None = None
    idempotency_key: str | None = None
    kind: str = EventKind.TOPIC
    """The event type's."""
    callback_url: str | None = None
    """Where the result of a QUEUE message is to be posted (behaviour 6.7)."""

    @cached_property
    def document(self) -> Document:
        """What filters see of it."""
        return document_of(self.headers, self.content_type, self.filter_string, self.body)

    @cached_property
    def fingerprint(self) -> bytes:
        """What makes two publishes the same: event type, body, filter string and callback (behaviour 2.6)."""
        return fingerprint_of([self.event_type, self.body, self.filter_string, self.callback_url])


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is answered to a publish."""

    id: int
    outcome: str
    deliveries: int
    replayed: bool = False
    """Whether an earlier publish with the same idempotency key was answered so."""


def store(messages: Sequence[NewMessage], publisher_id: int | None, senders: int) -> list[Accepted]:
    """Store the messages in their order and, after the commit, wake the lines that got something."""
    if not messages:
        return []
    matches = matching_subscriptions(messages)
    placed = [(place, *match) for place, qualified in enumerate(matches, 1) for match in qualified]
    places, subscription_ids, subscriber_ids, failures = zip(*placed, strict=True) if placed else ((), (), (), ())
    holds = any(failures)
    found = rows(
        store_statement(holds=holds),
        {
            "body": [message.body for message in messages],
            "messages": _columns(messages, matches, publisher_id),
            "d_position": [*places],
            "d_subscription_id": [*subscription_ids],
            "d_subscriber_id": [*subscriber_ids],
            **({"d_failure": [*failures]} if holds else {}),
        },
    )
    if woken := sorted(line_id for place, line_id in found if not place):
        transaction.on_commit(partial(wakeups.wake, wakeups.TOPIC, woken), robust=True)
    ids = [message_id for place, message_id in sorted(found) if place]
    return [
        Accepted(message_id, _outcome(qualified), len(qualified))
        for message_id, qualified in zip(ids, matches, strict=True)
    ]


def _outcome(qualified: Sequence[Match]) -> MessageOutcome:
    return MessageOutcome.ROUTED if qualified else MessageOutcome.UNROUTED


def _columns(messages: Sequence[NewMessage], matches: Sequence[Sequence[Match]], publisher_id: int | None) -> str:
    return orjson.dumps(
        [
            {
                "position": place,
                "event_type_id": message.event_type_id,
                "publisher_id": publisher_id,
                "content_type": message.content_type,
                "headers": message.headers,
                "filter_string": message.filter_string,
                "outcome": _outcome(qualified),
                "deliveries_count": len(qualified),
            }
            for place, (message, qualified) in enumerate(zip(messages, matches, strict=True), 1)
        ]
    ).decode()
