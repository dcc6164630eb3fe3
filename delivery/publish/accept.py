"""Accepting what publishers send: check it against its event type, then publish it (behaviour 2)."""

from collections.abc import Collection, Sequence
from typing import Final

from broker_project.core.media_types import is_json
from delivery.callbacks.terms import CallbackTerms
from delivery.publish.draft import Draft, check_metadata
from delivery.publish.errors import InvalidMetadata, PayloadTooLarge, Refusal, RefusedItems, SchemaViolated
from delivery.publish.payloads import check_content_type, check_json
from delivery.publish.publish import publish
from delivery.publish.publishable import Publishable, allowed, publishable
from delivery.publish.store import Accepted, NewMessage
from delivery.publish.validating import violations_of
from delivery.webhook.headers_policy import kept
from subscriptions.models import EventKind

STORED: Final = frozenset({EventKind.TOPIC, EventKind.QUEUE})
"""What is stored first and sent afterwards."""


def accept(
    drafts: Sequence[Draft | Refusal],
    *,
    publisher_id: int | None,
    key_hours: int,
    most_bytes: int,
    senders: int,
    callbacks: CallbackTerms,
    most_open: int | None = None,
) -> list[Accepted]:
    """Store all the drafts, in their order, or none; return an answer for each.

    A `Refusal` in a draft's place is one that could not even be read. `senders` is the number of QUEUE senders.

    Raises:
        RefusedItems: some cannot be accepted, SYNC events among them; it says which and why.
        PublishUnderWayError, KeyReusedError, TooManyOpenMessages: see `publishing.publish`.

    """
    messages = checked(drafts, publisher_id=publisher_id, most_bytes=most_bytes, kinds=STORED)
    return publish(
        messages,
        publisher_id=publisher_id,
        key_hours=key_hours,
        senders=senders,
        callbacks=callbacks,
        most_open=most_open,
    )


def checked(
    drafts: Sequence[Draft | Refusal], *, publisher_id: int | None, most_bytes: int, kinds: Collection[str]
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
            messages.append(_checked(draft, event_types, kinds, most_bytes))
        except Refusal as refusal:
            refusals[position] = refusal
    if refusals:
        raise RefusedItems(refusals, len(drafts))
    return messages


def _checked(
    draft: Draft | Refusal, event_types: dict[str, Publishable], kinds: Collection[str], most_bytes: int
) -> NewMessage:
    if isinstance(draft, Refusal):
        raise draft
    event_type = allowed(draft.event_type, event_types, kinds)
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


def _check_schema(draft: Draft, event_type: Publishable) -> None:
    if event_type.schema_version is None:
        return
    broken = violations_of(draft.body, event_type_id=event_type.id, version=event_type.schema_version)
    if broken:
        raise SchemaViolated(f"The body does not satisfy the schema of {draft.event_type}; see errors.", broken)
