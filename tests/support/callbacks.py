"""Callbacks over the API, and the passing of their days."""

from datetime import timedelta
from typing import Any

from django.db.models import F

from delivery.models import Callback, Delivery
from tests.support.api import client_of

WORK, THERE = "/work", "/done"
"""Paths of a receiver: where jobs go, and where replies are passed on to."""
DAY = timedelta(days=1)
KEPT_DAYS = 14


def resubmit(delivery: Delivery, **edit: str) -> tuple[int, Any]:
    """Resubmit a reply over the API; return the status and the answer."""
    answered = client_of().post(f"/api/v1/deliveries/{delivery.pk}/resubmit", edit)
    return answered.status_code, answered.json()


def state_of(callback: Callback) -> str:
    """Return the state that the API shows of a callback."""
    (shown,) = client_of().get(f"/api/v1/callbacks?message={callback.message_id}").json()["items"]
    return str(shown["state"])


def ids_in(state: str) -> list[int]:
    """Return the ids that the API lists of callbacks in a state."""
    return [one["id"] for one in client_of().get(f"/api/v1/callbacks?state={state}").json()["items"]]


def grow_older(days: int) -> None:
    """Let this many days pass for every callback and every reply."""
    Callback.objects.update(created_at=F("created_at") - days * DAY, expires_at=F("expires_at") - days * DAY)
    Delivery.objects.filter(subscription=None).update(expires_at=F("expires_at") - days * DAY)
