"""A receiver that follows delivery.md word by word processes each delivery once, and loses none."""

import sqlite3
from pathlib import Path

import pytest
import requests

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.models import Delivery
from subscriptions.models import RetryPolicy, Subscription
from tests.support import broker
from tests.support.documented_programs import running_receiver

PAGE = "reference/delivery.md"


@pytest.mark.behaviour("4.10", "4.11")
@pytest.mark.parametrize("policy", ["TeamForge", "Workfront"])
def test_what_comes_late_is_processed_and_what_comes_twice_is_dropped(
    receiver: Receiver, wanted: Subscription, policy: str, tmp_path: Path
) -> None:
    """The first is deferred, or retried apart, and so comes after the second, with the lower number."""
    Subscription.objects.update(retry_policy=RetryPolicy.objects.get(name=policy))
    receiver.on("/a", answer(500))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        wait_until(Delivery.objects.open().filter(waits_for="RETRY").exists)
        with running_receiver(PAGE, DATABASE=str(tmp_path / "orders")) as url:
            Subscription.objects.update(endpoint=url)
            broker.publish_numbered(wanted.event_type, 2, first=1)
            wait_until(lambda: len(processed(tmp_path)) == 2)
            broker.cut_pauses_until_done()
            assert processed(tmp_path) == [b"1", b"2", b"0"]
            newest = Delivery.objects.latest("id")
            requests.post(url, b"2", headers={"webhook-id": f"dlv_{newest.pk}"}, timeout=5)
    assert processed(tmp_path) == [b"1", b"2", b"0"]


def processed(folder: Path) -> list[bytes]:
    with sqlite3.connect(folder / "orders") as database:
        return [body for (body,) in database.execute("SELECT body FROM orders ORDER BY rowid")]
