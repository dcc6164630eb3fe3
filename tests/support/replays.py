"""Ask for replays and backfills, and run them to the end."""

from datetime import timedelta
from typing import Any

from django.db.models import F

from delivery.models import Delivery, Replay
from delivery.replay.eligibility import RESUBMITTABLE
from delivery.replay.replay_job import begin, go_on
from delivery.replay.selection import Selection
from subscriptions.models import Subscription
from tests.support.receiver import Receiver, answer
from tests.support.worker import publish_numbered, wait_until_done, working


def ended(shop: Subscription, receiver: Receiver, numbers: int, status: int = 404) -> list[Delivery]:
    """Publish so many, and let their endpoint answer so."""
    receiver.on("/hook", answer(status))
    publish_numbered(shop.event_type, numbers)
    with working():
        wait_until_done()
    receiver.on("/hook", answer(200))
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


def repeated() -> list[int | None]:
    """Return which deliveries were made again, in the order of the new ones."""
    return [*Delivery.objects.filter(replay_id__isnull=False).order_by("id").values_list("resubmit_of", flat=True)]


def some_time_later() -> None:
    """Let jobs that have failed be due again."""
    Replay.objects.update(updated_at=F("updated_at") - timedelta(minutes=2))
