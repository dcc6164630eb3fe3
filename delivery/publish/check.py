"""Check what publishers send against its event type (contract 1.1, 1.2, 2)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from broker_project.core.db import rows
from broker_project.core.json import is_json, media_type_of
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
from delivery.publish.idempotency import earlier_uses
from delivery.publish.store import NewMessage
from delivery.webhook.content import kept
from subscriptions.filters import Work
from subscriptions.models import EventKind
from subscriptions.names import is_own
from subscriptions.publishable import Named, Publishable, publishable
from subscriptions.schemas import BrokenSchema, Schema, Violation, compiled
from subscriptions.schemas.violations import KEPT

STORED: Final = frozenset({EventKind.TOPIC, EventKind.QUEUE})
"""The kinds that are stored first and sent afterwards."""
ANY_KIND: Final = frozenset(EventKind)

SCHEMA: Final = "SELECT schema FROM subscriptions_eventtype WHERE id = %s"


def allowed(asked: Named, event_types: Mapping[Named, Publishable], kinds: Collection[str]) -> Publishable:
    """Return the event type that a publisher asks for.

    Raises:
        UnknownEventType: it does not exist.
        EventTypeNotAllowed: this publisher may not publish it, or only the broker does.
        InvalidMetadata: it is of none of these kinds.
    """
    _, name = asked
    if asked not in event_types:
        raise UnknownEventType(f"There is no event type {name[:255]!r}; create it before publishing.")
    event_type = event_types[asked]
    if is_own(name):
        raise EventTypeNotAllowed(f"{name} is the broker's own, and only the broker publishes it.")
    if not event_type.is_allowed:
        raise EventTypeNotAllowed(f"This publisher may not publish {name}.")
    if event_type.kind not in kinds:
        raise InvalidMetadata(f"{name} is of kind {event_type.kind}, answered by its endpoint: publish it by itself.")
    return event_type


@dataclass(frozen=True, slots=True)
class Submission:
    """What one request asks to publish: one event, or a batch."""

    drafts: Sequence[Draft | Refusal]
    """A `Refusal` stands for an item that could not be read."""
    publisher_id: int | None
    kinds: Collection[str] = STORED
    """The kinds of event type that it may be of."""
    event_types: Mapping[Named, Publishable] = field(default_factory=dict)
    """Those that have been read together with its key."""
    is_volatile: bool = False
    """Whether it is never stored, so that it repeats nothing."""


@dataclass(slots=True, eq=False)
class _Checked:
    """What came of the drafts of one submission, by position."""

    submission: Submission
    messages: dict[int, NewMessage] = field(default_factory=dict)
    """Also refused ones, if it is their event type that does not take them."""
    refusals: dict[int, Refusal] = field(default_factory=dict)


def check_together(submissions: Sequence[Submission], *, max_bytes: int) -> list[list[NewMessage] | RefusedItems]:
    """Return the messages of each submission, in the order of its drafts, or which are refused; nothing is stored.

    A message that repeats an earlier publish is not refused for what its event type does not take any more.
    """
    missing = {
        named
        for one in submissions
        for draft in one.drafts
        if isinstance(draft, Draft) and (named := (one.publisher_id, draft.event_type)) not in one.event_types
    }
    event_types = publishable(missing) if missing else {}
    # Another key's may have been read earlier, and be one that no statement confirms.
    checked = [_checked(one, {**event_types, **one.event_types}, max_bytes) for one in submissions]
    if refused := [one for one in checked if one.refusals]:
        _accept_repeats(refused)
    return [
        RefusedItems(one.refusals, len(one.submission.drafts)) if one.refusals else [*one.messages.values()]
        for one in checked
    ]


def check(submission: Submission, *, max_bytes: int) -> list[NewMessage]:
    """Return the messages to publish, in the order of the drafts.

    Raises:
        RefusedItems: some cannot be accepted; it says which and why.
    """
    (checked,) = check_together([submission], max_bytes=max_bytes)
    if isinstance(checked, RefusedItems):
        raise checked
    return checked


def _accept_repeats(refused: Sequence[_Checked]) -> None:
    """Mark what repeats an earlier publish, and was refused for its event type."""
    keys = {
        (one, position): message.key
        for one in refused
        for position in one.refusals
        if (message := one.messages.get(position)) and message.kind in STORED and not one.submission.is_volatile
    }
    uses = earlier_uses([*{key for key in keys.values() if key}])
    for (one, position), key in keys.items():
        message = one.messages[position]
        if key in uses and uses[key].fingerprint == message.fingerprint:
            one.messages[position] = replace(message, repeats=uses[key])
            del one.refusals[position]


def _checked(submission: Submission, event_types: Mapping[Named, Publishable], max_bytes: int) -> _Checked:
    checked = _Checked(submission)
    publisher_id, work = submission.publisher_id, Work()
    for position, draft in enumerate(submission.drafts):
        try:
            if isinstance(draft, Refusal):
                raise draft
            event_type = allowed((publisher_id, draft.event_type), event_types, submission.kinds)
            check_metadata(draft)
            checked.messages[position] = _message(draft, event_type, publisher_id, work)
            _check_draft(draft, event_type, max_bytes)
        except Refusal as refusal:
            checked.refusals[position] = refusal
    return checked


def _check_draft(draft: Draft, event_type: Publishable, max_bytes: int) -> None:
    """Raise a `Refusal` unless the event type takes it."""
    if len(draft.body) > max_bytes:
        raise PayloadTooLarge(f"A message has at most {max_bytes} bytes; this one has {len(draft.body)}.")
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


def _message(draft: Draft, event_type: Publishable, publisher_id: int | None, work: Work) -> NewMessage:
    return NewMessage(
        event_type_id=event_type.id,
        event_type=draft.event_type,
        body=draft.body,
        content_type=draft.content_type or event_type.content_type,
        headers=kept(draft.headers),
        filter_string=draft.filter_string,
        idempotency_key=draft.idempotency_key,
        kind=event_type.kind,
        callback_url=draft.callback_url,
        destination=draft.destination,
        ttl=draft.ttl,
        not_before=draft.not_before,
        publisher_id=publisher_id,
        work=work,
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
