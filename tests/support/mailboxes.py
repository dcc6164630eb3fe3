"""Mailboxes: subscriptions in PULL mode, hand-outs that are made or time out, and their admin pages."""

from datetime import timedelta
from typing import Any, LiteralString, TypeVar

from django.db.models import F
from django.db.models.functions import Now

from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.receipts import FetchedMessage, MailboxRef, Receipt
from delivery.models import Delivery, Lane, Line
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.support.broker import publish_numbered
from tests.support.database import execute
from tests.support.factories import subscription

NEWEST_FIRST: LiteralString = """
UPDATE delivery_open SET fetched_until = now() + %s::int * interval '1 hour' - id %% 1000000 * interval '1 ms',
                         expires_at = now() - id %% 1000000 * interval '1 ms'"""
"""Orders by time-out and by expiry are the reverse of the order of ids."""

T = TypeVar("T")


def hand_out_newest_first(pulled: Subscription, number: int, *, hours: int) -> list[Receipt]:
    """Hand out `number` messages that time out in `hours`, or did so; return their receipts, newest first."""
    publish_numbered(pulled.event_type, number)
    receipts = [one.receipt for one in fetch_all(pulled, number)]
    execute(NEWEST_FIRST, [hours])
    return receipts[::-1]


def pulled_subscription(
    subscriber: Subscriber | None = None, event_type: EventType | None = None, **fields: Any
) -> Subscription:
    """Store a PULL subscription without an endpoint."""
    return subscription(subscriber, event_type, endpoint="", delivery_mode=DeliveryMode.PULL, **fields)


def switch_delivery_mode(wanted: Subscription, mode: DeliveryMode) -> None:
    """Switch the delivery mode in one statement, as a change over the API does."""
    Subscription.objects.filter(pk=wanted.pk).update(delivery_mode=mode)


def hand_out(*deliveries: Delivery) -> None:
    """Hand the deliveries out for 30 seconds, as a fetch does, without checking their state."""
    for one in deliveries:
        assert one.subscription, "what is handed out has a subscription"
        Delivery.objects.filter(pk=one.pk).update(
            status=DeliveryStatus.IN_FLIGHT,
            fetches=F("fetches") + 1,
            waits_for="RETURN",
            due_at=None,
            fetched_until=Now() + timedelta(seconds=30),
            line=Line.objects.get(subscriber=one.subscription.subscriber_id, lane=Lane.MAIN),
        )


def time_out_hand_outs() -> None:
    """Let all messages in flight time out."""
    Delivery.objects.filter(fetched_until__isnull=False).update(fetched_until=Now() - timedelta(milliseconds=1))


def mailbox_of(subscriber: Subscriber) -> MailboxRef:
    """Return the mailbox of a subscriber with its current order setting."""
    return MailboxRef(subscriber.pk, Subscriber.objects.get(pk=subscriber.pk).mailbox_ordered)


def fetch_all(wanted: Subscription, most: int = 100) -> list[FetchedMessage]:
    """Fetch from the mailbox of the subscriber."""
    return fetch(mailbox_of(wanted.subscriber), max_messages=most)


def bodies_of(messages: list[FetchedMessage]) -> list[bytes]:
    return [one.content.body for one in messages]


def fetch_bodies(wanted: Subscription, max_messages: int = 100) -> list[bytes]:
    return bodies_of(fetch_all(wanted, max_messages))


def let_days_pass(*, days: int) -> None:
    """Move the creation of all deliveries into the past."""
    Delivery.objects.update(created_at=F("created_at") - timedelta(days=days))
