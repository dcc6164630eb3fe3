"""Ask for replays and backfills, and run them to the end."""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import F
from django.db.models.functions import Now
from django.test import Client

from delivery.maintenance.partitions import today
from delivery.models import Delivery, Replay, ReplayState
from delivery.replay.backfill_job import begin as begin_backfill
from delivery.replay.backfill_job import go_on as go_on_with_backfill
from delivery.replay.eligibility import RESUBMITTABLE, Selection
from delivery.replay.replay_job import begin, go_on
from subscriptions.models import EventType, Status, Subscription
from tests.support import factories
from tests.support.broker import publish_numbered

BODY = b'{\n "n": 1\r}'


def end_open(status: str = "REJECTED") -> None:
    """End all open deliveries, as a worker does after one attempt each."""
    Delivery.objects.open().update(status="IN_FLIGHT", attempts=1)
    Delivery.objects.open().update(status=status, closed_on=today(), finished_at=Now())


def ended(
    shop: Subscription, count: int, status: str = "REJECTED", event_type: EventType | None = None
) -> list[Delivery]:
    """Publish `count` messages and end their deliveries with this status; return all of the subscription."""
    publish_numbered(event_type or shop.event_type, count)
    end_open(status)
    return [*Delivery.objects.filter(subscription=shop).order_by("id")]


def of(*subscriptions: Subscription, statuses: Any = RESUBMITTABLE, **more: Any) -> Selection:
    return Selection(subscriptions[0].subscriber_id, [one.pk for one in subscriptions], sorted(statuses), **more)


def start_replay(selection: Selection, pace: int | None = None) -> Replay:
    """Ask for it, and let it be counted."""
    replay = begin(selection, pace=pace, subscription_id=None, created_by="test")
    while Replay.objects.filter(pk=replay.pk, state="COUNTING").exists():
        go_on()
    replay.refresh_from_db()
    return replay


def run_replays() -> None:
    """Do all steps that are due."""
    while go_on():
        pass


def run_replays_to_the_end() -> None:
    """Run steps until all replays are finished, which may wait for other threads."""
    while Replay.objects.filter(finished_at=None).exists():
        go_on()


def run_replay(selection: Selection) -> Replay:
    """Ask for a replay, and run it to its end."""
    replay = start_replay(selection)
    run_replays()
    replay.refresh_from_db()
    return replay


def repeated() -> list[int | None]:
    """Return which deliveries were made again, in the order of the new ones."""
    return [*Delivery.objects.filter(replay_id__isnull=False).order_by("id").values_list("resubmit_of", flat=True)]


def some_time_later() -> None:
    """Let jobs that have failed be due again."""
    Replay.objects.update(updated_at=F("updated_at") - timedelta(minutes=2))


def new(kind: EventType, **fields: Any) -> Subscription:
    """Store an inactive subscription, which can be backfilled."""
    return factories.subscription(event_type=kind, **{"status": Status.INACTIVE, **fields})


def republish(client: Client, message_id: int) -> Any:
    """Ask for a stored message to be published again."""
    return client.post(f"/api/v1/messages/{message_id}/resubmit")


def start_backfill(subscription: Subscription, since: datetime | None = None) -> Replay:
    """Ask for it, and let it be counted: from then on the subscription gets what is published."""
    backfill = begin_backfill(subscription.pk, since=since, created_by="test")
    while state_of(backfill) == ReplayState.COUNTING:
        go_on_with_backfill()
    return backfill


def start_filing(subscription: Subscription) -> Replay:
    """Ask for a backfill, and run it until it makes deliveries."""
    backfill = start_backfill(subscription)
    while state_of(backfill) != ReplayState.FILING:
        go_on_with_backfill()
    return backfill


def backfilled(kind: EventType, since: datetime | None = None, **fields: Any) -> Subscription:
    """Store an inactive subscription, and backfill it to the end."""
    made = new(kind, **fields)
    run_backfill(start_backfill(made, since))
    return made


def run_backfill(backfill: Replay) -> None:
    while Replay.objects.filter(pk=backfill.pk, finished_at=None).exists():
        go_on_with_backfill()


def bodies_of(subscription: Subscription) -> list[bytes]:
    """Return the bodies lined up, in the order in which they will be sent."""
    lined_up = Delivery.objects.open().filter(subscription=subscription).order_by("id").select_related("message")
    return [bytes(one.message.body) for one in lined_up if one.message]


def state_of(backfill: Replay) -> str:
    return Replay.objects.values_list("state", flat=True).get(pk=backfill.pk)
