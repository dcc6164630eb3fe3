"""Resubmitting: a delivery that came to nothing, again as a new one, with its body or another (behaviour 5.8)."""

from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction

from broker_project.core.db import rows
from delivery.models import Message, MessageOutcome
from delivery.publish.accept import STORED, checked
from delivery.publish.attributes import made_another
from delivery.publish.draft import Draft
from delivery.publish.errors import RefusedItems
from delivery.replay.eligibility import Sent, why_not
from delivery.replay.families import FAMILY, ONE_AT_A_TIME
from delivery.replay.resend import Old, line_up
from delivery.statuses import DeliveryStatus

FACTS: Final = f"""
SELECT d.id, d.message_id, d.subscription_id, COALESCE(family.asked_group, d.group_id), d.status,
       CASE WHEN s.id IS NOT NULL THEN COALESCE(e.kind, 'TOPIC') END, d.subscription_id IS NULL,
       s.status = 'ACTIVE' AND u.status = 'ACTIVE', family.is_open, family.is_taken
  FROM delivery_delivery d
  LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
  LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_eventtype e ON e.id = s.event_type_id
{FAMILY.format(other="false")}
 WHERE d.id = %s
"""
LOCK: Final = f"SELECT pg_advisory_xact_lock({ONE_AT_A_TIME})"
KEPT: Final = "SELECT id FROM delivery_message WHERE id = %s FOR KEY SHARE"

COPY: Final = "SELECT nextval('delivery_message_id_seq')"


class NotResubmittable(Exception):
    """This delivery is not sent again; the text says why, and what can be done."""


class NoLongerKept(Exception):
    """The payload is past its time and gone."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What is sent in place of a message's own body."""

    body: bytes
    content_type: str | None = None
    """None: the message's own."""


def resubmit(delivery_id: int, *, edit: Edit | None, most_bytes: int, senders: int) -> int:
    """Line up a delivery anew, behind what waits; return the id of the new one. The old one stays as it is.

    An edited body is judged as if it were published, and stored as a message of its own. `senders` is the number of
    QUEUE senders.

    Raises:
        NotResubmittable: there is no such delivery, or it is none that can be resubmitted.
        NoLongerKept: its message is gone.
        Refusal: the edited body cannot be accepted.

    """
    with transaction.atomic():
        rows(LOCK)
        old = _old(delivery_id)
        if not rows(KEPT, [old.message_id]):
            raise NoLongerKept("The payload is past its time and no longer kept; publish it again.")
        message_id = _copied(old.message_id, edit, most_bytes) if edit else old.message_id
        made = line_up([old._replace(message_id=message_id)], senders=senders)
        if not made:  # its subscription was inactivated or deleted just now
            raise NotResubmittable("Its subscription is not ACTIVE any more.")
        return made[0].id


def _old(delivery_id: int) -> Old:
    found = rows(FACTS, [delivery_id])
    if not found:
        raise NotResubmittable("There is no such delivery any more.")
    ((*old, status, kind, is_reply, is_active, is_group_open, is_taken),) = found
    sent = Sent(DeliveryStatus(status), kind, is_reply, bool(is_active), is_group_open, is_taken)
    if refused := why_not(sent):
        raise NotResubmittable(refused)
    return Old(*old)


def _copied(message_id: int, edit: Edit, most_bytes: int) -> int:
    """Store the message with another body as one of its own, which nobody has published; return its id."""
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
        (new,) = checked([draft], publisher_id=None, most_bytes=most_bytes, kinds=STORED)
    except RefusedItems as refused:
        raise refused.refusals[0] from None
    ((copy_id,),) = rows(COPY)
    columns: dict[str, Any] = {"content_type": new.content_type, "headers": made_another(new.headers, f"~{copy_id}")}
    copy = Message.objects.create(
        pk=copy_id,
        event_type_id=new.event_type_id,
        body=new.body,
        size=len(new.body),
        filter_string=new.filter_string,
        copy_of=message.copy_of or message.pk,
        outcome=MessageOutcome.ROUTED,
        deliveries_count=1,
        **columns,
    )
    return copy.pk
