"""A mailbox of very many subscriptions, or of which many fetch at a time (behaviour 9.1, 9.3)."""

import pytest
from django.db import connection, transaction
from structlog.testing import capture_logs

from broker_project.core.db import rows
from delivery.mailbox.fetch_messages import FETCH, FETCH_IN_ORDER, LEAST_REACH, REACH, fetch
from delivery.mailbox.long_poll import LOOK
from delivery.models import Delivery
from subscriptions.models import EventType, Subscriber, Subscription
from tests.driving import publish_numbered
from tests.integration.test_mailbox_plans import FILL, fill
from tests.mailboxes import at_once, box_of, fetched, pulled_subscription
from tests.plans import Explained, explaining, too_much

SUBSCRIPTIONS = 300
SORTS = 3
"""Fresh, set aside before, timed out."""
BESIDE = 50


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return pulled_subscription(event_type=event_type)


@pytest.mark.behaviour("9.1", "9.3")
def test_whoever_wants_one_gets_one_although_another_is_at_the_next_hundred(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 101)
    box = box_of(pulled.subscriber)
    with transaction.atomic():
        assert len(fetch(box, most=100)) == 100
        ((one,),) = at_once(1, lambda: fetch(box, most=1))
    assert one.content.body == b"100"


@pytest.mark.behaviour("9.1")
def test_what_has_lost_its_message_is_told_of_and_does_not_keep_back_the_rest(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 2)
    lost, _ = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk=lost.pk).update(message=0)
    with capture_logs() as logged:
        assert [one.content.body for one in fetched(pulled)] == [b"1"]
    assert [(one["event"], one["delivery_ids"]) for one in logged] == [("mailboxes.message_missing", [lost.pk])]


@pytest.fixture
def crowd(pulled: Subscription) -> Subscription:
    """One of very many subscriptions of a subscriber."""
    for _ in range(SUBSCRIPTIONS - 1):
        pulled_subscription(pulled.subscriber, pulled.event_type)
    publish_numbered(pulled.event_type, 1)
    return pulled


@pytest.mark.behaviour("9.1")
def test_a_mailbox_of_many_subscriptions_costs_so_much_for_each(
    crowd: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(300)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delivery_open SET fetched_until = now() - interval '1 s' WHERE fetched_until > now()")
    with explaining(monkeypatch) as found:
        fetch(box_of(crowd.subscriber), most=1)
        rows(LOOK, [[crowd.subscriber_id], [1]])
    assert too_much(those(found, FETCH), SUBSCRIPTIONS * SORTS * (LEAST_REACH + REACH) + BESIDE) == []
    assert too_much(those(found, LOOK), SUBSCRIPTIONS * SORTS + BESIDE) == []


@pytest.mark.behaviour("9.7")
def test_so_does_an_ordered_one_of_which_nobody_has_anything(
    crowd: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"{FILL} WHERE n %% 4 < 2", [300])
    Subscriber.objects.update(mailbox_ordered=True)
    with explaining(monkeypatch) as found:
        fetch(box_of(crowd.subscriber), most=1)
    assert too_much(those(found, FETCH_IN_ORDER), SUBSCRIPTIONS * SORTS + BESIDE) == []


def those(found: list[Explained], statement: str) -> list[Explained]:
    """Return what was found of a statement, which was carried out."""
    ours = [one for one in found if one.statement == statement]
    assert ours
    return ours
