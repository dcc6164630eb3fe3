"""A mailbox of very many subscriptions, or of which many fetch at a time (behaviour 9.1, 9.3)."""

import pytest
from django.db import connection, transaction
from structlog.testing import capture_logs

from delivery.mailboxes.fetch_statements import FETCH, FETCH_IN_ORDER
from delivery.mailboxes.fetching import LEAST_REACH, REACH, fetch
from delivery.mailboxes.hand_outs import Box
from delivery.mailboxes.looking_out import LOOK
from delivery.models import Delivery
from subscriptions.database import rows
from subscriptions.models import EventType, Subscriber, Subscription
from tests.driving import publish_numbered
from tests.integration.test_mailbox_plans import fill
from tests.mailboxes import at_once, box_of, fetched, pulled_subscription
from tests.plans import explaining, too_much

SUBSCRIPTIONS = 300


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


@pytest.mark.behaviour("9.1", "9.7")
def test_a_mailbox_of_many_subscriptions_costs_so_much_for_each(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(SUBSCRIPTIONS - 1):
        pulled_subscription(pulled.subscriber, pulled.event_type)
    publish_numbered(pulled.event_type, 1)
    fill(300)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delivery_open SET fetched_until = now() - interval '1 s' WHERE fetched_until > now()")
    of_each = {FETCH: LEAST_REACH + REACH, LOOK: 1, FETCH_IN_ORDER: 1}
    sorts = 3
    with explaining(monkeypatch) as found:
        fetch(Box(pulled.subscriber_id, is_ordered=False), most=1)
        rows(LOOK, [[pulled.subscriber_id], [1]])
        Delivery.objects.open().filter(fetched_until__isnull=False).delete()
        Subscriber.objects.update(mailbox_ordered=True)
        fetch(Box(pulled.subscriber_id, is_ordered=True), most=1)
    looked_at = [one for one in found if one.statement in of_each]
    assert {one.statement for one in looked_at} == of_each.keys()
    for one in looked_at:
        most = SUBSCRIPTIONS * sorts * of_each[one.statement]
        assert too_much([one], most + 50) == []
