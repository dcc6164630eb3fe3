"""A client whose key is revoked, or expires, while it waits for a message (contract 1.2, 9.1)."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http import HTTPStatus

import pytest
from django.db.models.functions import Now
from django.test import Client

from broker_project.core.db import forget_connection
from delivery.mailbox.long_poll import HERE
from delivery.models import Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import ApiKey, EventType
from tests.support.api import JSON, Answer, client_of
from tests.support.mailboxes import pulled_subscription
from tests.support.receiver import PATIENCE, wait_until
from tests.support.worker import publish_numbered

SECOND = timedelta(seconds=1)


def waited(client: Client, mailbox: str) -> Answer:
    try:
        return client.post(f"/api/v1/mailboxes/{mailbox}/next", {"wait": 20}, content_type=JSON)
    finally:
        forget_connection()


@pytest.mark.usefixtures("storage")
@pytest.mark.behaviour("1.2")
@pytest.mark.parametrize(
    ("act", "status"),
    [
        (lambda: ApiKey.objects.update(revoked_at=Now() - SECOND), DeliveryStatus.PENDING),
        (lambda: ApiKey.objects.update(expires_at=Now() - SECOND), DeliveryStatus.PENDING),
        (lambda: ApiKey.objects.update(expires_at=Now() + timedelta(days=1)), DeliveryStatus.IN_FLIGHT),
    ],
    ids=["revoked", "expired", "good still"],
)
def test_whoever_waits_gets_nothing_by_a_key_that_is_good_no_more(
    event_type: EventType, act: Callable[[], object], status: DeliveryStatus
) -> None:
    pulled = pulled_subscription(event_type=event_type)
    client = client_of(pulled.subscriber)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waited, client, pulled.subscriber.name)
        wait_until(HERE.waiting)
        act()
        publish_numbered(event_type, 1)
        answer = waiting.result(PATIENCE)
    assert Delivery.objects.get().status == status
    got = HTTPStatus.OK if status == DeliveryStatus.IN_FLIGHT else HTTPStatus.NO_CONTENT
    assert answer.status_code == got
