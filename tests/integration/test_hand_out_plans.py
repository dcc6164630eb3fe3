"""A list reads what it shows, however much mailboxes have handed out (behaviour 9.2)."""

import pytest
from django.db import connection

from delivery.status.in_flight import FEW
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventType, Subscription
from tests.clients import client_of
from tests.driving import publish_numbered
from tests.mailboxes import pulled_subscription
from tests.plans import explaining, too_much

IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING
MANY = 20_000

FILL = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, due_at, fetches, fetched_until)
SELECT (SELECT max(id) FROM delivery_message), l.id, s.id, 'IN_FLIGHT', 2, timestamptz '9999-12-28 00:00:00+00', 1,
       CASE WHEN n <= %s THEN now() - interval '1 h' ELSE now() + interval '1 h' END + n * interval '1 ms'
  FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id AND l.lane = 'main'
 CROSS JOIN generate_series(1, %s) n
 WHERE s.delivery_mode = 'PULL'
"""
OTHERS = 300
"""So many mailboxes have a few handed out each: by that, no mailbox has many."""


@pytest.fixture
def crowd(storage: None, event_type: EventType) -> Subscription:
    """A mailbox beside another, where somebody had the open shelf analysed while a crowd had a few handed out each."""
    others = [pulled_subscription(event_type=event_type) for _ in range(OTHERS)]
    publish_numbered(event_type, 1)
    with connection.cursor() as cursor:
        cursor.execute(FILL, [0, 3])
        cursor.execute("ANALYZE delivery_open")
        cursor.execute("DELETE FROM delivery_open")
        cursor.execute("VACUUM delivery_open")
    Subscription.objects.filter(pk__in=[one.pk for one in others]).delete()
    boxes = [pulled_subscription(event_type=event_type) for _ in range(2)]
    publish_numbered(event_type, 10)
    return boxes[0]


@pytest.mark.behaviour("9.2", "11.4")
@pytest.mark.parametrize("late", [0, 500, MANY - 500, MANY])
def test_no_list_reads_all_that_mailboxes_have_handed_out(
    crowd: Subscription, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL, [late, MANY])
    with explaining(monkeypatch) as found:
        for client, statuses in ((client_of(), [IN_FLIGHT]), (client_of(crowd.subscriber), [IN_FLIGHT, PENDING])):
            for query in ("", *(f"&status={one}" for one in statuses)):
                first = client.get(f"/api/v1/deliveries?limit=20{query}").json()
                if first["next"]:
                    client.get(first["next"])
    assert too_much(found, 5 * FEW) == []
