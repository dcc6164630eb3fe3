"""Resubmitting a message that nobody got: published again, to whoever qualifies now (behaviour 2.14, 5.8)."""

from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.callbacks.terms import CallbackTerms
from delivery.models import Delivery, Message, MessageOutcome, Replay, ReplayKind
from delivery.publish.accept import STORED
from delivery.publish.publish import publish
from delivery.publish.publishable import allowed, publishable
from delivery.publish.store import Accepted, NewMessage
from delivery.replay.resubmit import LOCK, NotResubmittable
from subscriptions.models import EventKind, EventType, Subscription

ASTRAY: Final = frozenset({MessageOutcome.UNROUTED, MessageOutcome.DISCARDED, MessageOutcome.DEAD_LETTERED})


def republish(message_id: int, *, key_hours: int, senders: int, callbacks: CallbackTerms) -> Accepted:
    """Publish a stored message once more, as its publisher did; the new one says of which it is a copy.

    A time to live, a delay and a `CallbackURL` are not repeated: the former are over, the latter is never kept.

    Raises:
        NotResubmittable: it is gone, somebody got it or is about to, or there is nobody who could.
        Refusal: its publisher may not publish it any more, or nobody.

    """
    with transaction.atomic():
        rows(LOCK)  # whoever else was at it has made the copy by then
        message = _found(message_id)
        event_type = _event_type_of(message)
        _leave_to_backfills(message, event_type)
        (accepted,) = publish(
            [_copied(message, event_type)],
            publisher_id=message.publisher_id,
            key_hours=key_hours,
            senders=senders,
            callbacks=callbacks,
        )
        _leave_to_backfills(message, event_type)  # one that has begun since has not ended: it waits for this
    return accepted


def nobody_got(message: Message) -> bool:
    """Tell whether what was published went to nobody: neither then, nor in a backfill, nor as a copy."""
    return message.answers is None and message.outcome in ASTRAY and not _was_given(message)


def _was_given(message: Message) -> bool:
    original = message.copy_of or message.pk
    copies = Message.objects.filter(copy_of=original, outcome=MessageOutcome.ROUTED)
    return copies.exists() or Delivery.objects.filter(message_id__in={message.pk, original}).exists()


def _found(message_id: int) -> Message:
    message = Message.objects.select_related("event_type").filter(pk=message_id).first()
    if message is None or message.answers is not None:
        raise NotResubmittable("It is no message that was published, or is no longer kept.")
    if not nobody_got(message):
        raise NotResubmittable("Somebody got it, or a copy of it: resubmit or replay the deliveries.")
    return message


def _event_type_of(message: Message) -> EventType:
    event_type = message.event_type
    if event_type is None or event_type.kind == EventKind.SYNC:
        raise NotResubmittable("Its event type has been deleted, or is of kind SYNC.")
    allowed(event_type.name, publishable({event_type.name}, message.publisher_id), STORED)
    return event_type


def _leave_to_backfills(message: Message, event_type: EventType) -> None:
    """Refuse what a backfill has lined up, or may: its subscription would get the copy too."""
    reached = Subscription.objects.reached_by(event_type)
    under_way = Replay.objects.filter(subscription__in=reached, kind=ReplayKind.BACKFILL, finished_at=None)
    if message.destination is None and (under_way.exists() or Delivery.objects.filter(message=message).exists()):
        raise NotResubmittable("A backfill may be about to send it: try again when that is done.")


def _copied(message: Message, event_type: EventType) -> NewMessage:
    return NewMessage(
        event_type_id=event_type.pk,
        event_type=event_type.name,
        body=bytes(message.body),
        content_type=message.content_type,
        headers=[(name, value) for name, value in message.headers],
        filter_string=message.filter_string,
        kind=event_type.kind,
        destination=message.destination,
        copy_of=message.copy_of or message.pk,
    )
