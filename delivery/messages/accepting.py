"""Accepting what publishers send: check it against its event type, then publish it (behaviour 2)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from delivery.callbacks.terms import CallbackTerms
from delivery.intake.drafts import Draft, check_metadata
from delivery.intake.payloads import check_content_type, check_json
from delivery.intake.refusals import (
    EventTypeNotAllowed,
    InvalidMetadata,
    PayloadTooLarge,
    Refusal,
    RefusedItems,
    SchemaViolated,
    UnknownEventType,
)
from delivery.messages.publishing import publish
from delivery.messages.storing import Accepted, NewMessage
from delivery.webhooks.forwarded_headers import kept
from subscriptions.database import rows
from subscriptions.media_types import is_json
from subscriptions.models import EventKind
from subscriptions.names import is_name, is_own
from subscriptions.validating import violations_of

STORED: Final = frozenset({EventKind.TOPIC, EventKind.QUEUE})
"""What is stored first and sent afterwards."""

PUBLISHABLE: Final = """
SELECT e.name, e.id, e.kind, e.content_type, CASE WHEN e.schema IS NOT NULL THEN e.version END,
       NOT EXISTS (SELECT FROM subscriptions_publisher_event_types p WHERE p.publisher_id = %(publisher)s)
       OR EXISTS (SELECT FROM subscriptions_publisher_event_types p
                   WHERE p.publisher_id = %(publisher)s AND p.eventtype_id = e.id)
  FROM subscriptions_eventtype e WHERE e.name = ANY(%(names)s)
"""


@dataclass(frozen=True, slots=True)
class _Publishable:
    id: int
    kind: str
    content_type: str
    schema_version: int | None
    """None: it has no schema."""
    allowed: bool


def accept(
    drafts: Sequence[Draft | Refusal],
    *,
    publisher_id: int | None,
    key_hours: int,
    most_bytes: int,
    senders: int,
    callbacks: CallbackTerms,
) -> list[Accepted]:
    """Store all the drafts, in their order, or none; return an answer for each.

    A `Refusal` in a draft's place is one that could not even be read. `senders` is the number of QUEUE senders.

    Raises:
        RefusedItems: some cannot be accepted, SYNC events among them; it says which and why.
        PublishUnderWayError, KeyReusedError: see `publishing.publish`.

    """
    messages = checked(drafts, publisher_id=publisher_id, most_bytes=most_bytes, kinds=STORED)
    return publish(messages, publisher_id=publisher_id, key_hours=key_hours, senders=senders, callbacks=callbacks)


def checked(
    drafts: Sequence[Draft | Refusal], *, publisher_id: int | None, most_bytes: int, kinds: Collection[str]
) -> list[NewMessage]:
    """Return the messages that the drafts are, in their order; stores nothing.

    Raises:
        RefusedItems: some cannot be accepted, or are of none of these kinds; it says which and why.

    """
    event_types = _event_types({draft.event_type for draft in drafts if isinstance(draft, Draft)}, publisher_id)
    messages: list[NewMessage] = []
    refusals: dict[int, Refusal] = {}
    for position, draft in enumerate(drafts):
        try:
            messages.append(_checked(draft, event_types, kinds, most_bytes))
        except Refusal as refusal:
            refusals[position] = refusal
    if refusals:
        raise RefusedItems(refusals, len(drafts))
    return messages


def _event_types(names: set[str], publisher_id: int | None) -> dict[str, _Publishable]:
    storable = sorted(name for name in names if is_name(name))
    found = rows(PUBLISHABLE, {"publisher": publisher_id, "names": storable})
    return {name: _Publishable(*columns) for name, *columns in found}


def _checked(
    draft: Draft | Refusal, event_types: dict[str, _Publishable], kinds: Collection[str], most_bytes: int
) -> NewMessage:
    if isinstance(draft, Refusal):
        raise draft
    event_type = _allowed(draft.event_type, event_types, kinds)
    if len(draft.body) > most_bytes:
        raise PayloadTooLarge(f"A message has at most {most_bytes} bytes; this one has {len(draft.body)}.")
    check_metadata(draft)
    _check_kind(draft, event_type.kind)
    content_type = draft.content_type or event_type.content_type
    check_content_type(content_type, event_type.content_type)
    if is_json(event_type.content_type):
        check_json(draft.body)
        _check_schema(draft, event_type)
    return NewMessage(
        event_type_id=event_type.id,
        event_type=draft.event_type,
        body=draft.body,
        content_type=content_type,
        headers=kept(draft.headers),
        filter_string=draft.filter_string,
        idempotency_key=draft.idempotency_key,
        kind=event_type.kind,
        callback_url=draft.callback_url,
        destination=draft.destination,
        ttl=draft.ttl,
        not_before=draft.not_before,
    )


def _check_kind(draft: Draft, kind: str) -> None:
    if draft.callback_url is not None and kind != EventKind.QUEUE:
        raise InvalidMetadata(f"{draft.event_type} is of kind {kind}; only QUEUE takes a CallbackURL.")
    if draft.destination is not None and kind == EventKind.QUEUE:
        raise InvalidMetadata(f"{draft.event_type} is of kind {kind}; only TOPIC takes a destination.")


def _check_schema(draft: Draft, event_type: _Publishable) -> None:
    if event_type.schema_version is None:
        return
    broken = violations_of(draft.body, event_type_id=event_type.id, version=event_type.schema_version)
    if broken:
        raise SchemaViolated(f"The body does not satisfy the schema of {draft.event_type}; see errors.", broken)


def _allowed(name: str, event_types: dict[str, _Publishable], kinds: Collection[str]) -> _Publishable:
    if name not in event_types:
        raise UnknownEventType(f"There is no event type {name[:255]!r}; create it before publishing.")
    event_type = event_types[name]
    if is_own(name):
        raise EventTypeNotAllowed(f"{name} is the broker's own; nobody else publishes it.")
    if not event_type.allowed:
        raise EventTypeNotAllowed(f"This publisher may not publish {name}.")
    if event_type.kind not in kinds:
        raise InvalidMetadata(f"{name} is of kind {event_type.kind}, answered by its endpoint: publish it by itself.")
    return event_type
