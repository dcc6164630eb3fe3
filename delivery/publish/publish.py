"""Check what publishers send against its event type, and publish it in one transaction (contract 1.1, 1.2, 2)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from broker_project.core.json import is_json, media_type_of
from delivery.callbacks.address import CallbackTerms
from delivery.callbacks.create import CallbackRequest, create_callbacks, targets_of
from delivery.publish.draft import Draft, check_json, check_metadata
from delivery.publish.errors import (
    EventTypeNotAllowed,
    InvalidMetadata,
    PayloadTooLarge,
    Refusal,
    RefusedItems,
    SchemaViolated,
    UnknownEventType,
    UnsuitableContentType,
)
from delivery.publish.idempotency import KeyUse, claim_keys, remember
from delivery.publish.open_messages import room_for
from delivery.publish.store import Accepted, NewMessage, store
from delivery.webhook.content import kept
from subscriptions.models import EventKind
from subscriptions.names import is_name, is_own
from subscriptions.schemas import BrokenSchema, Schema, Violation, compiled
from subscriptions.schemas.violations import KEPT

STORED: Final = frozenset({EventKind.TOPIC, EventKind.QUEUE})
"""The kinds that are stored first and sent afterwards."""

MAX_BATCH_DELIVERIES: Final = 100_000
"""More would take seconds in one transaction, and hundreds of megabytes here. One message may have any number."""

SCHEMA: Final = "SELECT schema FROM subscriptions_eventtype WHERE id = %s"

PUBLISHABLE: Final = """
SELECT e.name, e.id, e.kind, e.content_type, CASE WHEN e.schema IS NOT NULL THEN e.version END,
       NOT EXISTS (SELECT FROM subscriptions_publisher_event_types p WHERE p.publisher_id = %(publisher)s)
       OR EXISTS (SELECT FROM subscriptions_publisher_event_types p
                   WHERE p.publisher_id = %(publisher)s AND p.eventtype_id = e.id)
  FROM subscriptions_eventtype e WHERE e.name = ANY(%(names)s)
"""


class KeyReusedError(Exception):
    """The idempotency key of the message at `position` was used for a different publish."""

    def __init__(self, position: int) -> None:
        super().__init__(f"item {position}")
        self.position = position


@dataclass(frozen=True, slots=True)
class Publishable:
    """What a publish is checked against: an event type, for one publisher."""

    id: int
    kind: str
    content_type: str
    schema_version: int | None
    """None: it has no schema."""
    is_allowed: bool
    """Whether this publisher may publish it."""


def publishable(names: Collection[str], publisher_id: int | None) -> dict[str, Publishable]:
    """Return the event types of these names that exist; without a publisher (management), all are allowed."""
    storable = sorted(name for name in names if is_name(name))
    found = rows(PUBLISHABLE, {"publisher": publisher_id, "names": storable})
    return {name: Publishable(*columns) for name, *columns in found}


def allowed(name: str, event_types: Mapping[str, Publishable], kinds: Collection[str]) -> Publishable:
    """Return the event type of this name.

    Raises:
        UnknownEventType: it does not exist.
        EventTypeNotAllowed: this publisher may not publish it, or only the broker does.
        InvalidMetadata: it is of none of these kinds.
    """
    if name not in event_types:
        raise UnknownEventType(f"There is no event type {name[:255]!r}; create it before publishing.")
    event_type = event_types[name]
    if is_own(name):
        raise EventTypeNotAllowed(f"{name} is the broker's own, and only the broker publishes it.")
    if not event_type.is_allowed:
        raise EventTypeNotAllowed(f"This publisher may not publish {name}.")
    if event_type.kind not in kinds:
        raise InvalidMetadata(f"{name} is of kind {event_type.kind}, answered by its endpoint: publish it by itself.")
    return event_type


def check_drafts(
    drafts: Sequence[Draft | Refusal], *, publisher_id: int | None, max_bytes: int, kinds: Collection[str]
) -> list[NewMessage]:
    """Return the messages to publish, in the order of the drafts; nothing is stored.

    A `Refusal` in a draft's place stands for an item that could not be read.

    Raises:
        RefusedItems: some cannot be accepted, or are of none of these kinds; it says which and why.
    """
    event_types = publishable({draft.event_type for draft in drafts if isinstance(draft, Draft)}, publisher_id)
    messages: list[NewMessage] = []
    refusals: dict[int, Refusal] = {}
    for position, draft in enumerate(drafts):
        try:
            if isinstance(draft, Refusal):
                raise draft
            messages.append(_checked(draft, allowed(draft.event_type, event_types, kinds), max_bytes))
        except Refusal as refusal:
            refusals[position] = refusal
    if refusals:
        raise RefusedItems(refusals, len(drafts))
    return messages


def _checked(draft: Draft, event_type: Publishable, max_bytes: int) -> NewMessage:
    if len(draft.body) > max_bytes:
        raise PayloadTooLarge(f"A message has at most {max_bytes} bytes; this one has {len(draft.body)}.")
    check_metadata(draft)
    if draft.callback_url is not None and event_type.kind != EventKind.QUEUE:
        raise InvalidMetadata(f"{draft.event_type} is of kind {event_type.kind}; only QUEUE takes a CallbackURL.")
    if draft.destination is not None and event_type.kind == EventKind.QUEUE:
        raise InvalidMetadata(f"{draft.event_type} is of kind {event_type.kind}; only TOPIC takes a destination.")
    given, declared = draft.content_type or event_type.content_type, event_type.content_type
    if media_type_of(given) != media_type_of(declared) and not (is_json(given) and is_json(declared)):
        raise UnsuitableContentType(f"This event type takes {declared}; send it with that Content-Type.")
    if is_json(declared):
        check_json(draft.body)
        if violations := _violations(draft, event_type):
            raise SchemaViolated(f"The body does not satisfy the schema of {draft.event_type}; see errors.", violations)
    return NewMessage(
        event_type_id=event_type.id,
        event_type=draft.event_type,
        body=draft.body,
        content_type=given,
        headers=kept(draft.headers),
        filter_string=draft.filter_string,
        idempotency_key=draft.idempotency_key,
        kind=event_type.kind,
        callback_url=draft.callback_url,
        destination=draft.destination,
        ttl=draft.ttl,
        not_before=draft.not_before,
    )


def _violations(draft: Draft, event_type: Publishable) -> Sequence[Violation]:
    if event_type.schema_version is None:
        return ()
    try:
        schema = _schema(event_type.id, event_type.schema_version)
    except BrokenSchema as broken:  # it was stored directly, or before the limit existed
        return [Violation("", f"The schema itself cannot be used. {broken}")]
    return schema.violations(draft.body) if schema else ()


@lru_cache(maxsize=KEPT)
def _schema(event_type_id: int, version: int) -> Schema | None:  # noqa: ARG001 - the cache is valid for one version
    """Return the event type's schema: that version, or a newer one stored since it was read; None: it has none now."""
    found = rows(SCHEMA, [event_type_id])
    return compiled(found[0][0]) if found and found[0][0] is not None else None


def publish(
    messages: Sequence[NewMessage],
    *,
    publisher_id: int | None,
    key_hours: int,
    senders: int,
    callbacks: CallbackTerms,
    max_open: int | None = None,
) -> list[Accepted]:
    """Store the messages in their order, all or none, and wake the lines that got something.

    Returns an answer for each message, in order, once everything is durable. `senders` is the number of QUEUE senders,
    `max_open` how many messages of the publisher may have unfinished deliveries.

    Raises:
        PublishInProgress: a publish with one of the idempotency keys is still running.
        KeyReusedError: a key was used for a different publish.
        RefusedItems: some have a callback URL that no reply can be sent to.
        TooManyDeliveries: they would become more than a batch may.
        TooManyOpenMessages: with the new ones there would be more open than `max_open`.
    """
    with transaction.atomic():
        known = _known(messages, publisher_id)
        new = {position: message for position, message in enumerate(messages) if position not in known}
        urls = {position: one.callback_url for position, one in new.items() if one.callback_url is not None}
        targets = targets_of(urls, callbacks, total=len(messages)) if urls else {}
        with room_for(len(new), publisher_id=publisher_id, limit=max_open) as opened:
            accepted = store([*new.values()], publisher_id, senders, max_deliveries=MAX_BATCH_DELIVERIES)
            opened.update(one.id for one in accepted if one.deliveries)
        stored = dict(zip(new, accepted, strict=True))
        wanted = {stored[n].id: CallbackRequest(new[n].event_type_id, target) for n, target in targets.items()}
        create_callbacks(wanted, publisher_id, callbacks)
        uses = {
            one.idempotency_key: KeyUse(one.fingerprint, answer.id, answer.outcome, answer.deliveries)
            for one, answer in zip(new.values(), accepted, strict=True)
            if one.idempotency_key
        }
        remember(publisher_id, uses, hours=key_hours)
    answers: list[Accepted] = []
    for position in range(len(messages)):
        answer = stored.get(position) or known[position]
        answers.append(replace(stored[answer], replayed=True) if isinstance(answer, int) else answer)
    return answers


def _known(messages: Sequence[NewMessage], publisher_id: int | None) -> dict[int, Accepted | int]:
    """Return the earlier answers, by position; a number is the position of the first item with the same key."""
    claimed = claim_keys(publisher_id, {message.idempotency_key for message in messages if message.idempotency_key})
    known: dict[int, Accepted | int] = {}
    first: dict[str, int] = {}
    for position, message in enumerate(messages):
        if not message.idempotency_key:
            continue
        sibling = first.setdefault(message.idempotency_key, position)
        use = claimed.get(message.idempotency_key)
        if message.fingerprint != (use or messages[sibling]).fingerprint:
            raise KeyReusedError(position)
        if use:
            known[position] = Accepted(use.message_id, use.outcome, use.deliveries, replayed=True)
        elif sibling != position:
            known[position] = sibling
    return known
