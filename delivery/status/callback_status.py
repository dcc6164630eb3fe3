"""The status of callbacks: whether a reply is expected, and what happened to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.enums import TextChoices

from delivery.models import Callback, Delivery, Hold
from delivery.statuses import DeliveryStatus


class CallbackState(TextChoices):
    """Where a callback is between its publishing and the end of its reply."""

    WAITING = "WAITING", "No reply yet"
    """Its endpoint has not replied."""

    REPLIED = "REPLIED", "Reply on its way"
    """The reply is on its way to the original URL."""

    PASSED_ON = "PASSED_ON", "Reply passed on"
    """The reply went to the callback that this one was created for (contract 6.9)."""

    DELIVERED = "DELIVERED", "Reply delivered"
    """The original URL has taken the reply."""

    REFUSED = "REFUSED", "Reply refused"
    """The original URL answered 3xx or 4xx; the reply is not sent again unless someone resubmits it."""

    FAILED = "FAILED", "Reply failed"
    """The reply is a poison message (contract 4.19); it is not sent again unless someone resubmits it."""

    EXPIRED = "EXPIRED"
    """There was no reply in time, or the reply was not taken in time."""

    CANCELLED = "CANCELLED", "Reply cancelled"
    """Somebody cancelled the delivery of the reply; it is not sent unless someone resubmits it."""

    ENDED = "ENDED"
    """The delivery of the reply has ended and is deleted."""


OF_DELIVERY: Final = {
    DeliveryStatus.DELIVERED: CallbackState.DELIVERED,
    DeliveryStatus.REJECTED: CallbackState.REFUSED,
    DeliveryStatus.NOT_SUPPORTED: CallbackState.REFUSED,
    DeliveryStatus.FAILED: CallbackState.FAILED,
    DeliveryStatus.EXPIRED: CallbackState.EXPIRED,
    DeliveryStatus.CANCELLED: CallbackState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class CallbackStatus:
    """A callback, its state, and the last delivery of its reply."""

    callback: Callback
    state: CallbackState
    delivery: Delivery | None
    """None without a reply, if it was passed on inside, or once it is deleted."""


def callbacks_now(callbacks: Sequence[Callback], *, now: datetime) -> list[CallbackStatus]:
    """Return the state of each callback, in their order, with one query."""
    wanted = [one.delivery_id for one in callbacks if one.delivery_id]
    deliveries = Delivery.objects.select_related("hold").in_bulk(wanted) if wanted else {}
    found = [(one, deliveries.get(one.delivery_id or 0)) for one in callbacks]
    return [CallbackStatus(one, _state(one, delivery, now), delivery) for one, delivery in found]


def in_state(callbacks: QuerySet[Callback], state: CallbackState, *, now: datetime) -> QuerySet[Callback]:
    """Filter callbacks by state."""
    match state:
        case CallbackState.WAITING:
            return callbacks.filter(Q(expires_at=None) | Q(expires_at__gt=now), reply=None)
        case CallbackState.PASSED_ON:
            return callbacks.filter(reply__isnull=False, delivery_id=None)
        case CallbackState.REPLIED:
            unfinished = Exists(Delivery.objects.open().filter(pk=OuterRef("delivery_id")))
            held = Hold.objects.filter(line__callback__isnull=False)  # few are, so they are found first
            return callbacks.filter(unfinished, pk__in=held.values("line__callback"))
        case CallbackState.ENDED:
            gone = ~Exists(Delivery.objects.filter(pk=OuterRef("delivery_id")))
            return callbacks.filter(gone, delivery_id__isnull=False)
    unanswered = Q(reply=None, expires_at__lte=now) if state == CallbackState.EXPIRED else Q(pk__in=[])
    return callbacks.filter(_ended_as(state) | unanswered)


def _ended_as(state: CallbackState) -> Q:
    statuses = [status for status, its in OF_DELIVERY.items() if its == state]
    if state == CallbackState.DELIVERED:
        return Q(Exists(Delivery.objects.filter(pk=OuterRef("delivery_id"), status__in=statuses)))
    # Few end otherwise: those are found along the index of what was not delivered, and their callbacks by the reply.
    ended = Delivery.objects.final().filter(subscription=None, status__in=statuses)
    return Q(reply__in=ended.values("message"), delivery_id__in=ended.values("pk"))


def _state(callback: Callback, delivery: Delivery | None, now: datetime) -> CallbackState:
    if callback.reply_id is None:
        is_expired = callback.expires_at is not None and callback.expires_at <= now
        return CallbackState.EXPIRED if is_expired else CallbackState.WAITING
    if callback.delivery_id is None:
        return CallbackState.PASSED_ON
    if delivery is None:
        return CallbackState.ENDED
    return OF_DELIVERY.get(DeliveryStatus(delivery.status), CallbackState.REPLIED)


def origin_of(url: str) -> str:
    """Return the scheme, host and port of an address, without credentials: the rest of it is the publisher's secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
