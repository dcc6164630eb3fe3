"""An ordered mailbox waits for what was being sent as its subscription was switched to PULL (behaviour 9.7, 9.8)."""

from typing import Any, LiteralString

import pytest
from django.db import connection

from broker_project.core.db import rows
from delivery.dispatch.claim import claim
from delivery.mailbox.fetch_messages import FETCH_IN_ORDER
from delivery.mailbox.long_poll import LOOK
from delivery.models import Line
from delivery.statuses import DeliveryStatus
from delivery.worker.settle import settle
from subscriptions.models import DeliveryMode, EventType, Subscription
from tests.driving import begin_and_vanish, expire_lease, line_of, publish_numbered, settlement
from tests.factories import subscriber, subscription
from tests.mailboxes import fetched, pulled_subscription, switch
from tests.plans import explaining, too_much

NOTES, OF_A_NOTE = 10, 200
NOTED: LiteralString = """
INSERT INTO delivery_pageread (line_id, delivery_ids)
SELECT l.id, ARRAY(SELECT id FROM delivery_open ORDER BY id DESC LIMIT %s)
  FROM delivery_line l CROSS JOIN generate_series(1, %s) WHERE l.subscriber_id = %s AND l.lane = 'main'"""


@pytest.fixture
def pushed(storage: None, event_type: EventType) -> Subscription:
    """One that is pushed still, of a subscriber with an ordered mailbox."""
    return subscription(subscriber(mailbox_ordered=True), event_type)


def bodies(wanted: Subscription) -> list[bytes]:
    return [one.content.body for one in fetched(wanted)]


def looked(wanted: Subscription) -> list[Any]:
    """Return what a poll for its mailbox would be woken for."""
    return rows(LOOK, [[wanted.subscriber_id], [3]])


@pytest.mark.behaviour("9.7", "9.8")
@pytest.mark.parametrize("status_code", [200, 503])
def test_what_is_being_sent_as_the_subscription_is_switched_is_waited_for(
    pushed: Subscription, status_code: int
) -> None:
    publish_numbered(pushed.event_type, 2)
    line, delivery, _ = begin_and_vanish(line_of(pushed.subscriber))
    switch(pushed, DeliveryMode.PULL)
    assert (bodies(pushed), looked(pushed)) == ([], [])
    if status_code == 503:
        outcome: dict[str, Any] = {"status": DeliveryStatus.PENDING, "pause": 3600.0, "status_code": 503}
    else:
        outcome = {}
    settle({line.id: line.claim.epoch}, settlements=[settlement(line, delivery, **outcome)])
    assert looked(pushed) == [(pushed.subscriber_id, 1)]
    assert bodies(pushed) == ([b"0"] if status_code == 503 else [b"1"])


@pytest.mark.behaviour("9.7", "9.8", "4.11")
def test_what_a_vanished_worker_was_sending_is_waited_for_until_its_line_is_mended(pushed: Subscription) -> None:
    publish_numbered(pushed.event_type, 2)
    begin_and_vanish(line_of(pushed.subscriber))
    switch(pushed, DeliveryMode.PULL)
    expire_lease(line_of(pushed.subscriber))
    assert (bodies(pushed), looked(pushed)) == ([], [])
    claim([line_of(pushed.subscriber).pk], worker="another")
    assert bodies(pushed) == [b"0"]


@pytest.mark.behaviour("9.7")
def test_what_is_being_sent_of_a_subscription_that_is_pushed_is_not_waited_for(pushed: Subscription) -> None:
    beside = pulled_subscription(pushed.subscriber)
    publish_numbered(pushed.event_type, 1)
    publish_numbered(beside.event_type, 1, first=1)
    begin_and_vanish(line_of(pushed.subscriber))
    assert bodies(beside) == [b"1"]


@pytest.mark.behaviour("9.7", "11.4")
def test_what_other_lines_have_read_is_not_looked_at(pushed: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_numbered(pushed.event_type, NOTES * OF_A_NOTE)
    begin_and_vanish(line_of(pushed.subscriber))
    switch(pushed, DeliveryMode.PULL)
    with connection.cursor() as cursor:
        cursor.execute(NOTED, [1, 5_000, subscriber().pk])
        cursor.execute(NOTED, [OF_A_NOTE, NOTES, pushed.subscriber_id])
    Line.objects.filter(lease_until=None).update(lease_until="2999-01-01T00:00:00Z")
    with explaining(monkeypatch) as found:
        assert (bodies(pushed), looked(pushed)) == ([], [])
    looks = [one for one in found if one.statement in {FETCH_IN_ORDER, LOOK}]
    assert (len(looks), too_much(looks, most_rows=2 * NOTES * OF_A_NOTE)) == (2, [])
