"""Every attempt is recorded, whatever came of it (behaviour 5.2)."""

from datetime import datetime
from typing import Any

import pytest

from delivery.models import Delivery
from subscriptions.models import Subscription
from tests.clients import client_of
from tests.driving import hurry_until_done, publish_numbered, working
from tests.factories import retry_policy, subscription
from tests.receiver import Receiver, answer, reset


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription that gives up after the second retry."""
    terms = {"on_server_error": "RETRY_LANE", "on_no_answer": "RETRY_LANE"}
    policy = retry_policy(**terms, max_retries=2, on_exhausted="FAIL")
    return subscription(endpoint=receiver.url("/a"), retry_policy=policy)


def history_of(delivery: Delivery) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = client_of().get(f"/api/v1/deliveries/{delivery.pk}").json()["history"]
    return history


@pytest.mark.behaviour("5.2")
def test_each_failure_has_its_number_time_answer_and_duration(receiver: Receiver, wanted: Subscription) -> None:
    receiver.on("/a", answer(500, b"no room", X_Shelf="7"), reset, answer(599, b"still none"))
    with working():
        publish_numbered(wanted.event_type, 1)
        hurry_until_done()
    delivery = Delivery.objects.get()
    history = history_of(delivery)
    assert (delivery.status, delivery.attempts) == ("FAILED", 3)
    assert [(one["number"], one["status_code"], one["answer_excerpt"]) for one in history] == [
        (1, 500, "no room"),
        (2, None, ""),
        (3, 599, "still none"),
    ]
    assert [bool(one["error"]) for one in history] == [False, True, False]
    assert "X-Shelf: 7" in history[0]["answer_headers"]
    started = [datetime.fromisoformat(one["started_at"]) for one in history]
    assert started == sorted(started)
    assert delivery.created_at <= started[0]
    assert min(one["duration_ms"] for one in history) >= 0


@pytest.mark.behaviour("5.2", "5.8")
def test_what_somebody_has_sent_again_says_so_and_what_is_tried_again_does_not(
    receiver: Receiver, wanted: Subscription
) -> None:
    receiver.on("/a", answer(404), answer(500), answer())
    with working():
        publish_numbered(wanted.event_type, 1)
        hurry_until_done()
        rejected = Delivery.objects.get()
        answered = client_of().post(f"/api/v1/deliveries/{rejected.pk}/resubmit", {}, "application/json")
        hurry_until_done()
    again = Delivery.objects.get(resubmit_of=rejected.pk)
    assert (answered.status_code, answered.json()["id"], again.status) == (201, again.pk, "DELIVERED")
    assert [(one["status_code"], one["by_hand"]) for one in history_of(rejected)] == [(404, False)]
    assert [(one["status_code"], one["by_hand"]) for one in history_of(again)] == [(500, True), (200, False)]
