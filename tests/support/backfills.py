"""Backfills in tests: asked for, and done to the end."""

from datetime import datetime
from typing import Any

from delivery.models import Delivery, Replay, ReplayState
from delivery.replay.backfill_job import begin, go_on
from subscriptions.models import EventType, Status, Subscription
from tests.support import factories
from tests.support.receiver import Receiver


def new(kind: EventType, receiver: Receiver, **fields: Any) -> Subscription:
    return factories.subscription(
        event_type=kind, endpoint=receiver.url("/new"), **{"status": Status.INACTIVE, **fields}
    )


def start_backfill(subscription: Subscription, since: datetime | None = None) -> Replay:
    """Ask for it, and let it be counted: from then on the subscription gets what is published."""
    backfill = begin(subscription.pk, since=since, created_by="test")
    while state_of(backfill) == ReplayState.COUNTING:
        go_on()
    return backfill


def run_backfill(backfill: Replay) -> None:
    while Replay.objects.filter(pk=backfill.pk, finished_at=None).exists():
        go_on()


def bodies_of(subscription: Subscription) -> list[bytes]:
    """Return the bodies lined up, in the order in which they will be sent."""
    lined_up = Delivery.objects.open().filter(subscription=subscription).order_by("id").select_related("message")
    return [bytes(one.message.body) for one in lined_up if one.message]


def state_of(backfill: Replay) -> str:
    return Replay.objects.values_list("state", flat=True).get(pk=backfill.pk)
