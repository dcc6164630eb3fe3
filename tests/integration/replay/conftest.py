"""A subscription of a shop, for replays and resubmitting."""

import pytest

from broker_project.stack.load.receiver import Receiver
from subscriptions.models import Subscription
from tests.support import factories
from tests.support.api import EVENT


@pytest.fixture
def shop(storage: None, receiver: Receiver) -> Subscription:
    return factories.subscription(factories.subscriber("shop"), factories.event_type(EVENT), receiver.url("/hook"))
