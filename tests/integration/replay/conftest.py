"""A subscription of a shop, and a rejected delivery of it, for replays and resubmitting."""

import pytest

from broker_project.stack.load.receiver import Receiver
from delivery.models import Delivery
from subscriptions.models import Subscription
from tests.support import factories
from tests.support.api import EVENT
from tests.support.broker import publish_bodies
from tests.support.replays import BODY, end_open


@pytest.fixture
def shop(storage: None, receiver: Receiver) -> Subscription:
    return factories.subscription(factories.subscriber("shop"), factories.event_type(EVENT), receiver.url("/hook"))


@pytest.fixture
def rejected(shop: Subscription) -> Delivery:
    publish_bodies(shop.event_type, BODY)
    end_open()
    return Delivery.objects.get()
