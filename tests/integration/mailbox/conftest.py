"""A mailbox of one subscription, and the lines that are woken."""

import pytest

from delivery.dispatch import notify
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.support.factories import subscription


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    """A PULL subscription; it has an endpoint as well, so that it can be switched to PUSH."""
    return subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The lines that are woken, each time."""
    lines: list[list[int]] = []
    monkeypatch.setattr(notify, "wake", lambda _, line_ids: lines.append(line_ids) if line_ids else None)
    return lines
