"""What nobody has read for days is found among whatever else is in mailboxes, and for what it is (behaviour 9.6)."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from delivery.mailbox import unread
from delivery.mailbox.unread import EXPIRE, OF_EACH, REACH, expire_unread
from delivery.models import Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.driving import publish_numbered, statuses
from tests.factories import subscription
from tests.mailboxes import age, fetched, time_out
from tests.plans import explaining

EXPIRED, PENDING = DeliveryStatus.EXPIRED, DeliveryStatus.PENDING
MANY = 20_000

FILL = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, created_at, not_before)
SELECT m.id, l.id, s.id, 'PENDING', 2, now() - make_interval(days => %s), CASE WHEN %s THEN now() END
  FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id AND l.lane = 'main'
 CROSS JOIN (SELECT max(id) AS id FROM delivery_message) m CROSS JOIN generate_series(1, %s)
"""
CHANGES = """
INSERT INTO subscriptions_statuschange (subscriber_id, subscription_id, status, at)
SELECT s.subscriber_id, CASE n %% 2 WHEN 0 THEN s.id END, 'ACTIVE', now() - interval '9 days'
  FROM subscriptions_subscription s CROSS JOIN generate_series(1, %s) n
"""


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    return subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)


def small(monkeypatch: pytest.MonkeyPatch, *, of_each: int, all_in_all: int = unread.SLICE) -> None:
    """Look at few of each subscription, and end few at once."""
    statement = unread.EXPIRE.replace(f"LIMIT {unread.OF_EACH})", f"LIMIT {of_each})")
    monkeypatch.setattr(unread, "EXPIRE", statement.replace(f"LIMIT {unread.SLICE})", f"LIMIT {all_in_all})"))


@pytest.mark.behaviour("9.6")
@pytest.mark.parametrize("sort", ["fresh", "aside", "timed out"])
@pytest.mark.parametrize("young_by", ["its due time", "its publishing", "being in flight"])
def test_no_number_of_others_hides_what_is_old(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch, sort: str, young_by: str
) -> None:
    """What is young by its publishing comes behind what is old; what is so otherwise may stand before it."""
    small(monkeypatch, of_each=2)
    publish_numbered(pulled.event_type, 5)
    if sort == "timed out" or young_by == "being in flight":
        assert len(fetched(pulled)) == 5
        time_out()
    if sort == "aside":
        Delivery.objects.filter(fetched_until=None).update(due_at="2026-01-01T00:00:00Z")
    age(days=9)
    *before, last = Delivery.objects.oldest_first().values_list("pk", flat=True)
    others = Delivery.objects.filter(pk__in=before)
    if young_by == "its due time":
        others.update(not_before=Now() - timedelta(days=1))
    elif young_by == "being in flight":
        others.update(fetched_until=Now() + timedelta(hours=1))
    else:
        last = before[0]
        Delivery.objects.exclude(pk=last).update(created_at=Now(), fetched_until=None)
        Delivery.objects.exclude(pk=last).update(status=PENDING, due_at=None)
    assert expire_unread() == 1
    assert [*Delivery.objects.filter(status=EXPIRED).values_list("pk", flat=True)] == [last]


@pytest.mark.behaviour("9.6")
def test_every_mailbox_is_looked_after_a_slice_at_a_time(pulled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [subscription(event_type=pulled.event_type, delivery_mode=DeliveryMode.PULL) for _ in range(2)]
    subscription(event_type=pulled.event_type)
    publish_numbered(pulled.event_type, 5)
    age(days=4)
    small(monkeypatch, of_each=2, all_in_all=5)
    ended = [expire_unread() for _ in range(6)]
    assert (max(ended), sum(ended), ended[-1]) == (5, 15, 0)
    assert [statuses(one) for one in [pulled, *others]] == [[EXPIRED] * 5] * 3


@pytest.mark.behaviour("9.6", "11.4")
@pytest.mark.parametrize(
    ("days", "is_delayed", "read"),
    [(0, False, 1), (9, False, OF_EACH), (9, True, REACH)],
    ids=["young", "old", "old, and due just now"],
)
def test_no_look_for_it_reads_all_there_is(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch, days: int, read: int, *, is_delayed: bool
) -> None:
    boxes = [pulled, subscription(event_type=pulled.event_type, delivery_mode=DeliveryMode.PULL)]
    publish_numbered(pulled.event_type, 1)
    age(days=days)
    with connection.cursor() as cursor:
        cursor.execute(FILL, [days, is_delayed, MANY])
        cursor.execute(CHANGES, [MANY])
    with explaining(monkeypatch) as found:
        expire_unread()
    (one,) = [one for one in found if one.statement == EXPIRE]
    assert one.rows_read < 100 + len(boxes) * (read + 4 * OF_EACH)
    changes = [node["Node Type"] for node in one.nodes() if node.get("Relation Name") == "subscriptions_statuschange"]
    assert (bool(changes), "Seq Scan" in changes) == (True, False)
    assert one.blocks_read < 20 * (100 + len(boxes) * (read + 4 * OF_EACH))
