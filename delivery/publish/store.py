"""Storing messages with a delivery for every subscription that qualifies: one statement for all of them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Final

import orjson
from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.mailbox import long_poll
from delivery.publish.document import document_of
from delivery.publish.idempotency import fingerprint_of
from delivery.publish.placing import placed, sender_lines
from delivery.publish.routing_ import ASTRAY, Route, log_astray, routes_of
from delivery.publish.store_statements import store_statement
from subscriptions.filters import Document
from subscriptions.models import EventKind

DELIVERY_COLUMNS: Final = ("d_position", "d_subscription_id", "d_subscriber_id", "d_failure", "d_group")

RARE: Final = ("destination", "ttl", "not_before", "copy_of")
"""Columns that are left out where they say nothing."""


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
    destination: str | None = None
    """The subscriber that it is for, or `default`: one for each; None: whoever qualifies (behaviour 2.8)."""
    ttl: float | None = None
    """Seconds after which it is not sent any more (behaviour 2.10)."""
    not_before: datetime | None = None
    """Before when it is not sent (behaviour 2.13)."""
    copy_of: int | None = None
    """The message that somebody resubmits as this one (behaviour 5.8)."""

    @property
    def is_timed(self) -> bool:
        """Whether the time in which it is sent is limited."""
        return self.ttl is not None or self.not_before is not None

    @cached_property
    def document(self) -> Document:
        """What filters see of it."""
        return document_of(self.headers, self.content_type, self.filter_string, self.body)

    @cached_property
    def fingerprint(self) -> bytes:
        """What makes two publishes the same: event type, body, filter string, callback and destination (2.6)."""
        return fingerprint_of([self.event_type, self.body, self.filter_string, self.callback_url, self.destination])


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
    routes = routes_of(messages)
    queues = sender_lines(senders) if any(message.kind == EventKind.QUEUE for message in messages) else {}
    pulled = _pulled(routes)
    arguments = {
        "body": [message.body for message in messages],
        "messages": _columns(messages, routes, publisher_id),
        **_delivery_columns(messages, routes),
        "pulled": sorted(pulled),
    }
    waits = any(arguments["d_failure"]) or any(message.is_timed for message in messages)
    found = rows(store_statement(waits=waits, groups=bool(queues)), arguments | {"senders": [*queues]})
    _wake_after_commit({line_id: queues.get(line_id, notify.TOPIC) for place, line_id in found if not place})
    transaction.on_commit(partial(long_poll.hint, {*pulled.values()}), robust=True)
    ids = [message_id for place, message_id in sorted(found) if place]
    if any(route.outcome in ASTRAY for route in routes):
        transaction.on_commit(partial(log_astray, ids, messages, routes), robust=True)
    return [
        Accepted(message_id, route.outcome, len(route.matches)) for message_id, route in zip(ids, routes, strict=True)
    ]


def _pulled(routes: Sequence[Route]) -> dict[int, int]:
    """Return the subscriptions that have something to be fetched now, each with its subscriber."""
    matches = itertools.chain.from_iterable(route.matches for route in routes)
    return {match.subscription_id: match.subscriber_id for match in matches if match.is_pulled}


def _wake_after_commit(queues: Mapping[int, str]) -> None:
    """Wake the lines, of which each has its Celery queue, once what they are to send is there."""
    for queue in sorted({*queues.values()}):
        lines = sorted(line_id for line_id, its in queues.items() if its == queue)
        transaction.on_commit(partial(notify.wake, queue, lines), robust=True)


def _delivery_columns(messages: Sequence[NewMessage], routes: Sequence[Route]) -> dict[str, list[Any]]:
    matches = [route.matches for route in routes]
    columns = [*zip(*placed(messages, matches), strict=True)] or [()] * len(DELIVERY_COLUMNS)
    return {name: [*column] for name, column in zip(DELIVERY_COLUMNS, columns, strict=True)}


def _columns(messages: Sequence[NewMessage], routes: Sequence[Route], publisher_id: int | None) -> str:
    return orjson.dumps(
        [
            {
                "position": place,
                "event_type_id": message.event_type_id,
                "publisher_id": publisher_id,
                "content_type": message.content_type,
                "headers": message.headers,
                "filter_string": message.filter_string,
                "outcome": route.outcome,
                "deliveries_count": len(route.matches),
                **_rare_columns(message),
            }
            for place, (message, route) in enumerate(zip(messages, routes, strict=True), 1)
        ]
    ).decode()


def _rare_columns(message: NewMessage) -> dict[str, object]:
    columns = {name: getattr(message, name) for name in RARE}
    return {name: value for name, value in columns.items() if value is not None}
