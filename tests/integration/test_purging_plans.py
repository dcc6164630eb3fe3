"""What purging, cancelling and expiring read follows what they end, not what clients have in hand (behaviour 9.7)."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from broker_project.core.db import forget_connection
from delivery import operations
from delivery.mailbox.acknowledge import acknowledge, give_back
from delivery.mailbox.unread import Purged, purge
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery
from delivery.operations import CANCEL
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.connections import another_connection
from tests.driving import line_of, publish_numbered
from tests.factories import subscription
from tests.mailboxes import fetched
from tests.plans import explaining, prepared_here, too_much

OUT = 20_000
SLICE = 500
CANCEL_IN_SLICES = CANCEL.replace("5000", str(SLICE))
SORTS = 4
EACH = 200
OF_EACH = 4
"""Times that a delivery which is ended is read: found, locked, found again, and deleted."""
FILL = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, due_at, fetches, fetched_until,
                           expires_at, cancel_requested)
SELECT (SELECT min(id) FROM delivery_message), %(line)s, %(subscription)s, 'IN_FLIGHT', 2, '9999-12-28 00:00:00+00', 1,
       now() + interval '1 h' + n * interval '1 ms', now() - interval '1 s', false
  FROM generate_series(1, %(out)s) n
UNION ALL
SELECT (SELECT min(id) FROM delivery_message), %(line)s, %(subscription)s,
       CASE sort WHEN 3 THEN 'HELD' ELSE 'PENDING' END, 2,
       (ARRAY[NULL, timestamptz '2026-01-01', '9999-12-31', '9999-12-29'])[sort], 0, NULL, NULL, false
  FROM generate_series(1, %(each)s) n CROSS JOIN generate_series(1, 4) sort
"""
"""Much that is in flight, its time to live over, and some of each sort that waits."""


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    """A mailbox of which clients have much, beside another one like it."""
    first, second = (subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL) for _ in range(2))
    publish_numbered(event_type, 1)
    fill(first)
    fill(second)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM delivery_open")
    forget_connection()
    return first


def fill(wanted: Subscription) -> None:
    line = line_of(wanted.subscriber).pk
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"line": line, "subscription": wanted.pk, "out": OUT, "each": EACH})


@pytest.fixture
def in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slices be so small that many of them are needed."""
    monkeypatch.setattr(operations, "SLICE", SLICE)
    monkeypatch.setattr(operations, "CANCEL", CANCEL_IN_SLICES)


@pytest.mark.behaviour("9.7", "11.4")
@pytest.mark.usefixtures("in_slices")
def test_a_slice_of_a_purge_reads_no_more_than_it_ends_or_asks_to_end(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    with explaining(monkeypatch) as found:
        assert purge(pulled.subscriber_id, seconds=600) == Purged(SORTS * EACH + 1, OUT, is_complete=True)
    slices = [one for one in found if one.statement == CANCEL_IN_SLICES]
    first, *others, last = slices
    assert len(slices) == OUT // SLICE + 2
    assert too_much([first], OF_EACH * (SLICE + SORTS * EACH + 1)) == []
    assert too_much(others, OF_EACH * SLICE + 1) == []
    assert last.rows_read == OUT


@pytest.mark.behaviour("2.10", "11.4")
def test_what_has_expired_is_found_whatever_clients_have_in_hand(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Delivery.objects.filter(subscription=pulled, fetched_until__isnull=False).oldest_first()[:EACH]
    Delivery.objects.filter(pk__in=[one.pk for one in late]).update(fetched_until=Now() - timedelta(seconds=1))
    with explaining(monkeypatch) as found:
        assert (expire_overdue(), expire_overdue()) == (EACH, 0)
    first, second = found
    assert too_much([first], OF_EACH * EACH) == []
    assert second.rows_read == 0


@pytest.mark.behaviour("9.7", "11.4")
def test_no_plan_made_while_nothing_is_there_searches_when_there_is_much(storage: None, event_type: EventType) -> None:
    wanted = subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)
    publish_numbered(event_type, 10)
    forget_connection()
    receipts = [one.receipt for one in fetched(wanted)]
    for say in (give_back, acknowledge):
        say(wanted.subscriber_id, receipts)
    purge(wanted.subscriber_id, seconds=60)
    expire_overdue()
    statements = prepared_here()
    with another_connection() as raw:
        fill(wanted)
        raw.execute("DELETE FROM delivery_open")
        raw.execute("VACUUM delivery_open")
        for number, one in enumerate(statements):
            one.prepare(raw, number)
        publish_numbered(event_type, 1)
        fill(wanted)
        plans = [one.kept_plan(raw, number) for number, one in enumerate(statements)]
    assert len(plans) > 6
    assert [(one.searched, one.statement) for one in plans if "delivery_open" in one.searched] == []
