"""A limit of redeliveries that is lowered counts from the next hand-out on (behaviour 9.7)."""

import pytest

from delivery.mailbox.acknowledge import give_back
from delivery.mailbox.unread import return_overdue
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventType, Subscriber, Subscription
from tests.driving import publish_numbered, statuses
from tests.mailboxes import fetched, pulled_subscription, time_out


@pytest.fixture
def often_returned(storage: None, event_type: EventType) -> Subscription:
    """A mailbox whose one message has come back three times."""
    pulled = pulled_subscription(event_type=event_type)
    publish_numbered(event_type, 1)
    for _ in range(3):
        (one,) = fetched(pulled)
        give_back(pulled.subscriber_id, [one.receipt])
    return pulled


@pytest.mark.behaviour("9.7")
def test_what_was_returned_before_is_handed_out_once_more(often_returned: Subscription) -> None:
    Subscriber.objects.update(max_redeliveries=1)
    return_overdue()
    (one,) = fetched(often_returned)
    assert one.fetch == 4
    give_back(often_returned.subscriber_id, [one.receipt])
    assert statuses(often_returned) == [DeliveryStatus.FAILED]


@pytest.mark.behaviour("9.7")
def test_what_had_timed_out_is_handed_out_no_more(often_returned: Subscription) -> None:
    fetched(often_returned)
    time_out()
    Subscriber.objects.update(max_redeliveries=1)
    assert fetched(often_returned) == []
    return_overdue()
    assert statuses(often_returned) == [DeliveryStatus.FAILED]
