"""What an unfinished delivery waits for now, and when it is tried next."""

from datetime import datetime
from typing import Final, NamedTuple

from django.db.models import Model

from delivery.models import Delivery, Lane
from delivery.status.line_status import LineHold, LineState, LineStatus, line_statuses
from delivery.statuses import DELIVERY_ID_PREFIX, FINAL, DeliveryStatus, WaitsFor
from subscriptions.models import DeliveryMode, PausedBy, Processing, Status, Subscription

PAUSES: Final = {
    PausedBy.HAND: "The subscription is paused. Resume it to go on.",
    PausedBy.POLICY: "The subscription is suspended by its retry policy until its endpoint answers a probe.",
    PausedBy.BACKFILL: "The subscription is paused until its backfill has added the older messages.",
}

DELAYED: Final = "It was published with a delay."


class WaitReason(NamedTuple):
    """Why a delivery is not sent now."""

    why: str
    """As a sentence."""
    next_try_at: datetime | None = None
    about: Model | None = None
    """What it waits for, if that has a page of its own; of a delivery only the id."""


def wait_of(delivery: Delivery, now: datetime) -> WaitReason | None:
    """Return what a delivery waits for; None if it has ended."""
    status, subscription = delivery.status_at(now), delivery.subscription
    if status in FINAL:
        return None
    if status == DeliveryStatus.HELD:
        return WaitReason(f"It is held: {delivery.reason}. It waits until somebody releases or cancels it.")
    if subscription is None:
        return WaitReason("The reply goes to the publisher's own address.", delivery.next_try_at)
    if status == DeliveryStatus.IN_FLIGHT:  # it ends in the mode in which it started (contract 9.8)
        if delivery.fetched_until:
            return WaitReason("It was fetched, and waits to be acknowledged.", delivery.fetched_until)
        return WaitReason("Its request is in flight.")
    return _closed(delivery, subscription) or _of_open(delivery, subscription)


def _of_open(delivery: Delivery, subscription: Subscription) -> WaitReason:
    """Return what a delivery waits for whose subscription is sent, or can fetch."""
    if delivery.waits_for == WaitsFor.START:
        return WaitReason(DELAYED, delivery.not_before)
    if subscription.delivery_mode == DeliveryMode.PULL:
        return WaitReason("It is in the mailbox, and waits to be fetched.", about=subscription.subscriber)
    if delivery.waits_for == WaitsFor.RETRY and not _is_diverted(delivery, subscription):
        return WaitReason(f"It failed: {delivery.reason}. It is tried again.", delivery.due_at, delivery.line)
    return _of_group(delivery) if delivery.group_id else _in_line(delivery, subscription)


def _is_in(delivery: Delivery, lane: Lane) -> bool:
    return delivery.line is not None and delivery.line.lane == lane


def _is_diverted(delivery: Delivery, subscription: Subscription) -> bool:
    """Return whether its line sends nothing of its subscription, because the endpoint hangs (contract 5.10)."""
    return subscription.diverted_since is not None and _is_in(delivery, Lane.MAIN)


def _closed(delivery: Delivery, subscription: Subscription) -> WaitReason | None:
    """Return what keeps all deliveries of a subscription in this one's line; only the main line probes."""
    for one in (subscription.subscriber, subscription):
        if one.status != Status.ACTIVE:
            return WaitReason(f"The {one._meta.verbose_name} is inactive. Activate it to go on.", about=one)  # noqa: SLF001 - documented by Django
    is_probed = subscription.half_open and not _is_in(delivery, Lane.RETRY)
    if subscription.paused_since is None or is_probed:
        return None
    return WaitReason(PAUSES[PausedBy(subscription.paused_by)], subscription.probe_due_at, subscription)


def _of_group(delivery: Delivery) -> WaitReason:
    group = delivery.group
    if group is None:
        return WaitReason("Its group has ended.")
    if group.waits_for == WaitsFor.START:
        return WaitReason(DELAYED, group.due_at, group)
    if group.due_at:
        return WaitReason("No endpoint of its group has taken the message. They are asked again.", group.due_at, group)
    if group.waits_for == WaitsFor.SUBSCRIPTION:
        return WaitReason("No subscription of its group is active.", about=group)
    return WaitReason("Its group waits for its turn.", about=group)


def _in_line(delivery: Delivery, subscription: Subscription) -> WaitReason:
    status = line_statuses([delivery.line_id or 0]).get(delivery.line_id or 0)
    if status is None:
        return WaitReason("It waits for its turn.")
    own = next((hold for hold in status.holds if hold.delivery_id == delivery.pk), None)
    if own:
        return WaitReason(f"It failed: {own.reason}. Nothing overtakes it.", own.next_try_at, delivery.line)
    if hold := _hold_before(delivery, subscription, status):
        why = f"It waits behind {DELIVERY_ID_PREFIX}{hold.delivery_id}, which failed: {hold.reason}."
        return WaitReason(why, hold.next_try_at, Delivery(pk=hold.delivery_id))
    if _is_diverted(delivery, subscription):
        why = "Its endpoint hangs. It waits until the endpoint has answered in the retry line."
        return WaitReason(why, about=subscription)
    why = "It waits for its turn: deliveries before it are sent first."
    if status.state == LineState.WAITING:
        why = "It waits for its turn, and its line for a worker."
    elif subscription.rate_limit:
        rate = f"{subscription.rate_limit:g} deliveries a second"
        return WaitReason(f"It waits for its turn: its subscription is sent at most {rate}.", about=subscription)
    return WaitReason(why, about=delivery.line)


def _hold_before(delivery: Delivery, subscription: Subscription, status: LineStatus) -> LineHold | None:
    """Return the oldest hold of the line that this delivery may not overtake."""
    processing = subscription.subscriber.processing
    if processing == Processing.CONCURRENT or not status.holds:
        return None
    if processing == Processing.SERIAL:
        return status.hold
    held = Delivery.objects.open().filter(pk__in=[hold.delivery_id for hold in status.holds])
    same_key = {
        pk for pk, key in held.values_list("pk", "ordering_key") if (key or "") == (delivery.ordering_key or "")
    }
    return next((hold for hold in status.holds if hold.delivery_id in same_key), None)
