"""Resubmit a delivery, or republish a message that was not received (contract 2.14, 5.8)."""

from dataclasses import dataclass
from typing import Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.callbacks.reply import send_again
from delivery.models import Delivery, Message, MessageOutcome, Replay, ReplayKind
from delivery.publish.check import STORED, Submission, allowed, check
from delivery.publish.cloud_events import with_id_suffix
from delivery.publish.draft import Draft
from delivery.publish.errors import RefusedItems
from delivery.publish.publish import PublishTerms, publish
from delivery.publish.routing import ordering_key_of
from delivery.publish.store import Accepted, NewMessage
from delivery.replay.eligibility import Sent, resubmit_refusal
from delivery.replay.resend import FAMILY, ONE_AT_A_TIME, SentDelivery, create_deliveries
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventKind, EventType, Subscription
from subscriptions.publishable import publishable

LOCK: Final = f"SELECT pg_advisory_xact_lock({ONE_AT_A_TIME})"

ASTRAY: Final = frozenset({MessageOutcome.UNROUTED, MessageOutcome.DISCARDED, MessageOutcome.DEAD_LETTERED})

FACTS: Final = f"""
SELECT d.id, d.message_id, d.subscription_id, COALESCE(family.asked_group, d.group_id), d.ordering_key, d.status,
       CASE WHEN s.id IS NOT NULL THEN COALESCE(e.kind, 'TOPIC') END, d.subscription_id IS NULL,
       EXISTS (SELECT FROM delivery_callback c WHERE c.reply_id = d.message_id AND c.delivery_id = d.id),
       s.status = 'ACTIVE' AND u.status = 'ACTIVE', family.is_open, family.is_taken
  FROM delivery_delivery d
  LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
  LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_eventtype e ON e.id = s.event_type_id
{FAMILY.format(other="false")}
 WHERE d.id = %s
"""


class NotResubmittable(Exception):
    """It cannot be sent again; the text says why, and what to do instead."""


class NoLongerKept(Exception):
    """The payload is deleted."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A body that replaces the message's own."""

    body: bytes
    content_type: str | None = None
    """None for the message's own."""


def resubmit(delivery_id: int, terms: PublishTerms, *, edit: Edit | None, max_bytes: int, once: bool = False) -> int:
    """Create a new delivery behind those that wait, and return its id; the old one does not change.

    An edited body is validated like a publish and stored as a message. A reply to a callback is sent as it was posted.

    Raises:
        NotResubmittable: it does not exist, cannot be resubmitted, or was resubmitted already and this is for `once`.
        NoLongerKept: its message is deleted.
        Refusal: the edited body is not accepted.
    """
    with transaction.atomic():
        rows(LOCK)
        old = _resubmittable(delivery_id, edit)
        if once and Delivery.objects.filter(resubmit_of=delivery_id).exists():
            raise NotResubmittable("It was resubmitted already.")
        if not rows("SELECT id FROM delivery_message WHERE id = %s FOR KEY SHARE", [old.message_id]):
            raise NoLongerKept("The payload is past its time and no longer kept; publish it again.")
        if old.subscription_id is None:
            made = send_again(old.id, old.message_id, days=terms.callbacks.days)
        elif edit:
            message_id, message = _copied(old.message_id, edit, max_bytes)
            path = Subscription.objects.values_list("subscriber__ordering_key", flat=True).get(pk=old.subscription_id)
            old = old._replace(message_id=message_id, ordering_key=ordering_key_of(path, message.document))
            made = create_deliveries([old], senders=terms.senders)
        else:
            made = create_deliveries([old], senders=terms.senders)
        if not made:  # its subscription was inactivated or deleted just now, or its callback deleted
            raise NotResubmittable("Its subscription is not ACTIVE any more, or its callback is no longer kept.")
        return made[0]


def _resubmittable(delivery_id: int, edit: Edit | None) -> SentDelivery:
    found = rows(FACTS, [delivery_id])
    if not found:
        raise NotResubmittable("There is no such delivery any more.")
    ((*facts, status, kind, is_reply, is_last, is_active, is_group_open, is_taken),) = found
    sent = Sent(DeliveryStatus(status), kind, is_reply, is_last, bool(is_active), is_group_open, is_taken)
    if refused := resubmit_refusal(sent):
        raise NotResubmittable(refused)
    if is_reply and edit:
        raise NotResubmittable("A reply to a callback is sent as its endpoint posted it: leave the body out.")
    return SentDelivery(*facts)


def _copied(message_id: int, edit: Edit, max_bytes: int) -> tuple[int, NewMessage]:
    """Store the message with another body, and return its id and its content."""
    message = Message.objects.select_related("event_type").get(pk=message_id)
    if message.event_type is None:
        raise NotResubmittable("Its event type has been deleted: nothing says what another body has to be like.")
    headers: list[tuple[str, str]] = [(name, value) for name, value in message.headers]
    if edit.content_type is not None:
        headers = [pair for pair in headers if pair[0].lower() != "content-type"]
        headers.append(("Content-Type", edit.content_type))
    draft = Draft(
        event_type=message.event_type.name,
        body=edit.body,
        content_type=edit.content_type or message.content_type,
        headers=headers,
        filter_string=message.filter_string,
    )
    try:
        (new,) = check(Submission([draft], publisher_id=None), max_bytes=max_bytes)
    except RefusedItems as refused:
        raise refused.refusals[0] from None
    ((copy_id,),) = rows("SELECT nextval('delivery_message_id_seq')")
    copy = Message.objects.create(
        pk=copy_id,
        event_type_id=new.event_type_id,
        body=new.body,
        size=len(new.body),
        content_type=new.content_type,
        headers=with_id_suffix(new.headers, f"~{copy_id}"),
        filter_string=new.filter_string,
        copy_of=message.copy_of or message.pk,
        outcome=MessageOutcome.ROUTED,
        deliveries_count=1,
    )
    return copy.pk, new


def republish(message_id: int, terms: PublishTerms) -> Accepted:
    """Publish a stored message again as its publisher did, as a copy.

    Time to live, delay and `CallbackURL` are not repeated: the first two are over, the last is not stored.

    Raises:
        NotResubmittable: it is deleted, was received or may be by a backfill, or its event type takes no copies.
        Refusal: its publisher may not publish it any more.
        TooManyDeliveries: by now it would become more than a publish may.
    """
    with transaction.atomic():
        rows(LOCK)  # a concurrent republish has stored its copy by then
        message, event_type = _republishable(message_id)
        _leave_to_backfills(message, event_type)
        copy = NewMessage(
            event_type_id=event_type.pk,
            event_type=event_type.name,
            body=bytes(message.body),
            content_type=message.content_type,
            headers=[(name, value) for name, value in message.headers],
            filter_string=message.filter_string,
            kind=event_type.kind,
            publisher_id=message.publisher_id,
            destination=message.destination,
            copy_of=message.copy_of or message.pk,
        )
        (accepted,) = publish([copy], terms)
        _leave_to_backfills(message, event_type)  # one that has begun since has not ended: it waits for this
    return accepted


def was_not_received(message: Message) -> bool:
    """Return whether no subscription received the message: not when published, nor by a backfill, nor as a copy."""
    if message.answers is not None or message.outcome not in ASTRAY:
        return False
    original = message.copy_of or message.pk
    copies = Message.objects.filter(copy_of=original, outcome=MessageOutcome.ROUTED)
    return not (copies.exists() or Delivery.objects.filter(message_id__in={message.pk, original}).exists())


def _republishable(message_id: int) -> tuple[Message, EventType]:
    """Return the message and its event type, which its publisher may still publish."""
    message = Message.objects.select_related("event_type").filter(pk=message_id).first()
    if message is None or message.answers is not None:
        raise NotResubmittable("It is no message that was published, or is no longer kept.")
    if not was_not_received(message):
        raise NotResubmittable("It, or a copy of it, was received: resubmit or replay its deliveries.")
    event_type = message.event_type
    if event_type is None or event_type.kind == EventKind.SYNC:
        raise NotResubmittable("Its event type has been deleted, or is of kind SYNC.")
    asked = message.publisher_id, event_type.name
    allowed(asked, publishable([asked]), STORED)
    return message, event_type


def _leave_to_backfills(message: Message, event_type: EventType) -> None:
    """Raise if a backfill has created a delivery of it or may: its subscription would get the copy too."""
    reached = Subscription.objects.reached_by(event_type)
    under_way = Replay.objects.filter(subscription__in=reached, kind=ReplayKind.BACKFILL, finished_at=None)
    if message.destination is None and (under_way.exists() or Delivery.objects.filter(message=message).exists()):
        raise NotResubmittable("A backfill may be about to send it: try again when that is done.")
