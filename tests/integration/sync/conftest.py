"""An event type whose publishes are calls."""

import pytest

from subscriptions.models import EventKind, EventType
from tests.support import factories
from tests.support.api import EVENT


@pytest.fixture(autouse=True)
def event_type(calls: None) -> EventType:
    return factories.event_type(EVENT, EventKind.SYNC)
