"""Resubmitting a message that nobody got: published again, to whoever qualifies now (behaviour 2.14, 5.8)."""

from typing import Final

from django.db import transaction

from delivery.again.resubmitting import NotResubmittable
from delivery.callbacks.terms import CallbackTerms
from delivery.messages.publishing import publish
from delivery.messages.storing import Accepted, NewMessage
from delivery.models import Delivery, Message, MessageOutcome
from subscriptions.models import EventKind

ASTRAY: Final = frozenset({MessageOutcome.UNROUTED, MessageOutcome.DISCARDED, MessageOutcome.DEAD_LETTERED})


def republish(message_id: int, *, key_hours: int, senders: int, callbacks: CallbackTerms) -> Accepted:
    """Publish a stored message once more, as its publisher did; the new one says of which it is a copy.

    A time to live, a delay and a `CallbackURL` are not repeated: the former are over, the latter is never kept.

    Raises:
        NotResubmittable: it is gone, somebody got it, or there is nobody who could.

    """
    with transaction.atomic():
        # A lock that lasts until its copy is there.
        found = Message.objects.select_for_update(of=("self",), no_key=True).select_related("event_type")
        message = found.filter(pk=message_id).first()
        if message is None or message.answers is not None:
            raise NotResubmittable("It is no message that was published, or is no longer kept.")
        if message.outcome not in ASTRAY or Delivery.objects.filter(message=message).exists():  # by a backfill
            raise NotResubmittable("Somebody got it: resubmit or replay its deliveries.")
        if message.event_type is None or message.event_type.kind == EventKind.SYNC:
            raise NotResubmittable("Its event type has been deleted, or is of kind SYNC.")
        new = NewMessage(
            event_type_id=message.event_type.pk,
            event_type=message.event_type.name,
            body=bytes(message.body),
            content_type=message.content_type,
            headers=[(name, value) for name, value in message.headers],
            filter_string=message.filter_string,
            kind=message.event_type.kind,
            destination=message.destination,
            copy_of=message.copy_of or message.pk,
        )
        (accepted,) = publish(
            [new], publisher_id=message.publisher_id, key_hours=key_hours, senders=senders, callbacks=callbacks
        )
    return accepted
