"""Check what publishers send against its event type, then publish it (contract 1.1, 1.2, 2)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from broker_project.core.db import rows
from broker_project.core.media_types import is_json
from delivery.callbacks.address import CallbackTerms
from delivery.publish.draft import Draft, check_content_type, check_json, check_metadata
from delivery.publish.errors import (
    EventTypeNotAllowed,
    InvalidMetadata,
    PayloadTooLarge,
    Refusal,
    RefusedItems,
    SchemaViolated,
    UnknownEventType,
)
from delivery.publish.publish import publish
from delivery.publish.store import Accepted, NewMessage
from delivery.webhook.headers_policy import kept
from subscriptions.models import EventKind
from subscriptions.names import is_name, is_own
from subscriptions.schemas import BrokenSchema, Schema, Violation, compiled
from subscriptions.schemas.schema import KEPT

STORED: Final = frozenset({EventKind.TOPIC, EventKind.QUEUE})
"""What is stored first and sent afterwards."""

SCHEMA: Final = "SELECT schema FROM subscriptions_eventtype WHERE id = %s"

PUBLISHABLE: Final = """
SELECT e.name, e.id, e.kind, e.content_type, CASE WHEN e.schema IS NOT NULL THEN e.version END,
       NOT EXISTS (SELECT FROM subscriptions_publisher_event_types p WHERE p.publisher_id = %(publisher)s)
       OR EXISTS (SELECT FROM subscriptions_publisher_event_types p
                   WHERE p.publisher_id = %(publisher)s AND p.eventtype_id = e.id)
  FROM subscriptions_eventtype e WHERE e.name = ANY(%(names)s)
"""


@dataclass(frozen=True, slots=True)
class Publishable:
    """What is checked of an event type."""

    id: int
    kind: str
    content_type: str
    schema_version: int | None
    """None: it has no schema."""
    allowed: bool


def publishable(names: Collection[str], publisher_id: int | None) -> dict[str, Publishable]:
    """Return the event types of these names that exist; None publishes as management does, all of them."""
    storable = sorted(name for name in names if is_name(name))
    found = rows(PUBLISHABLE, {"publisher": publisher_id, "names": storable})
    return {name: Publishable(*columns) for name, *columns in found}


def allowed(name: str, event_types: Mapping[str, Publishable], kinds: Collection[str]) -> Publishable:
    """Return the event type of this name.

    Raises:
        UnknownEventType: there is none.
        EventTypeNotAllowed: this publisher may not publish it, or nobody.
        InvalidMetadata: it is of none of these kinds.

    """
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


def accept(
    drafts: Sequence[Draft | Refusal],
    *,
    publisher_id: int | None,
    key_hours: int,
    max_bytes: int,
    senders: int,
    callbacks: CallbackTerms,
    max_open: int | None = None,
) -> list[Accepted]:
    """Store all the drafts, in their order, or none; return an answer for each.

    A `Refusal` in a draft's place is one that could not even be read. `senders` is the number of QUEUE senders.

    Raises:
        RefusedItems: some cannot be accepted, SYNC events among them; it says which and why.
        PublishUnderWayError, KeyReusedError, TooManyOpenMessages: see `publishing.publish`.

    """
    messages = checked(drafts, publisher_id=publisher_id, max_bytes=max_bytes, kinds=STORED)
    return publish(
        messages,
        publisher_id=publisher_id,
        key_hours=key_hours,
        senders=senders,
        callbacks=callbacks,
        max_open=max_open,
    )


def checked(
    drafts: Sequence[Draft | Refusal], *, publisher_id: int | None, max_bytes: int, kinds: Collection[str]
) -> list[NewMessage]:
    """Return the messages that the drafts are, in their order; stores nothing.

    Raises:
        RefusedItems: some cannot be accepted, or are of none of these kinds; it says which and why.

    """
    event_types = publishable({draft.event_type for draft in drafts if isinstance(draft, Draft)}, publisher_id)
    messages: list[NewMessage] = []
    refusals: dict[int, Refusal] = {}
    for position, draft in enumerate(drafts):
        try:
            messages.append(_checked(draft, event_types, kinds, max_bytes))
        except Refusal as refusal:
            refusals[position] = refusal
    if refusals:
        raise RefusedItems(refusals, len(drafts))
    return messages


def _checked(
    draft: Draft | Refusal, event_types: dict[str, Publishable], kinds: Collection[str], max_bytes: int
) -> NewMessage:
    if isinstance(draft, Refusal):
        raise draft
    event_type = allowed(draft.event_type, event_types, kinds)
    if len(draft.body) > max_bytes:
        raise PayloadTooLarge(f"A message has at most {max_bytes} bytes; this one has {len(draft.body)}.")
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


def _check_schema(draft: Draft, event_type: Publishable) -> None:
    if event_type.schema_version is None:
        return
    broken = violations_of(draft.body, event_type_id=event_type.id, version=event_type.schema_version)
    if broken:
        raise SchemaViolated(f"The body does not satisfy the schema of {draft.event_type}; see errors.", broken)


def violations_of(payload: bytes, *, event_type_id: int, version: int) -> list[Violation]:
    """Return what in a JSON payload breaks the schema of the event type, which the caller has just read at `version`.

    Nothing if there is nothing wrong, or no schema any more.
    """
    try:
        schema = _in_force(event_type_id, version)
    except BrokenSchema as broken:  # stored by other hands, or before a limit that is new
        return [Violation("", f"The schema itself cannot be used. {broken}")]
    return schema.violations(payload) if schema else []


@lru_cache(maxsize=KEPT)
def _in_force(event_type_id: int, version: int) -> Schema | None:  # noqa: ARG001 - what is cached is so until it rises
    """Return the event type's schema: of that version, or of a newer one that has come since it was read."""
    found = rows(SCHEMA, [event_type_id])
    return compiled(found[0][0]) if found and found[0][0] is not None else None
