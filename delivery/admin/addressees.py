"""To whom deliveries go, for lists and pages: a subscriber, or the original URL of a callback that was replied to."""

from collections.abc import Iterable
from typing import Final

from django.utils.safestring import SafeString

from broker_project.core.admin.read_only import link_to
from delivery.models import Callback, Delivery

CALLBACK: Final = "_callback"
"""Where the delivery of a reply keeps its callback once that is known."""


def keep_callbacks(deliveries: Iterable[Delivery | None]) -> None:
    """Let those that are replies know their callbacks: one query for all of them, none where there are none."""
    replies = [one for one in deliveries if one and one.subscription_id is None]
    if not replies:
        return
    found = Callback.objects.filter(reply__in={one.message_id for one in replies}, delivery_id__isnull=False)
    by_delivery = {callback.delivery_id: callback for callback in found.select_related("event_type")}
    for delivery in replies:
        vars(delivery)[CALLBACK] = by_delivery.get(delivery.pk)


def addressee_of(delivery: Delivery | None) -> SafeString | str:
    """Return who gets it; a dash where that is gone."""
    if delivery and delivery.subscription:
        return str(delivery.subscription.subscriber)
    callback = _callback_of(delivery)
    return link_to("delivery_callback", callback.pk, callback) if callback else "-"


def events_of(delivery: Delivery) -> str:
    """Return what its subscription is for, an event type or a pattern, or the event type that a reply answers."""
    if delivery.subscription:
        return delivery.subscription.events
    callback = _callback_of(delivery)
    return str(callback.event_type) if callback and callback.event_type else "-"


def _callback_of(delivery: Delivery | None) -> Callback | None:
    if delivery is None or delivery.subscription_id is not None:
        return None
    if CALLBACK not in vars(delivery):
        keep_callbacks([delivery])
    callback: Callback | None = vars(delivery)[CALLBACK]
    return callback
