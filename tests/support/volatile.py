"""Publishing volatile messages, doing what workers do with them, and what is counted then."""

import base64
import time
from typing import Any

import orjson
import pytest

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from delivery.dispatch import notify
from delivery.models import Attempt, Delivery, IdempotencyKey, Message, VolatileCount
from delivery.tasks import send_volatile
from delivery.volatile import counters, send_once
from subscriptions.models import Subscription

VOLATILE_HEADERS: dict[str, Any] = {"Broker_Durability": "volatile"}


def take_tasks() -> list[dict[str, Any]]:
    """Take all tasks from the queue, the oldest first."""
    client, found = notify.redis_client(), []
    while raw := client.rpop(notify.VOLATILE):
        found.append(orjson.loads(raw))  # type: ignore[arg-type]  # the stubs know of asynchronous clients, too
    return found


def arguments_in(task: dict[str, Any]) -> tuple[str, str]:
    arguments, *_ = orjson.loads(base64.b64decode(task["body"]))
    envelope_id, encrypted = arguments
    return envelope_id, encrypted


def run_tasks() -> int:
    """Do what workers do with the tasks that wait; return how many there were."""
    found = take_tasks()
    for task in found:
        send_volatile(*arguments_in(task))
    return len(found)


def volatile_counts(of: Subscription | None = None) -> dict[str, int]:
    """Return what is counted of a subscription's share, or of the messages themselves, once all has ended."""
    send_once.stop()
    columns = VolatileCount.objects.filter(subscription=of).values(*counters.COLUMNS)
    return {name: number for row in columns for name, number in row.items() if number}


def wait_until_answered(receiver: Receiver, path: str, requests: int = 1) -> None:
    """Wait until this many requests have come and their outcomes are counted."""
    wait_until(lambda: len(receiver.of(path)) == requests)
    wait_until(are_counts_complete)


def are_counts_complete() -> bool:
    counters.get_counters().write()
    return not any(row.unaccounted for row in VolatileCount.objects.all())


def stored() -> int:
    return sum(model.objects.count() for model in (Message, Delivery, Attempt, IdempotencyKey))


def redis_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify.breaker, "_open_until", time.monotonic() + 60)
