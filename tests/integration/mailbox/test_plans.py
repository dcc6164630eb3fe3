"""What a mailbox reads does not grow with its content or its history."""

from datetime import timedelta
from functools import partial
from typing import LiteralString

import pytest

from benchmarks import filling
from broker_project.core.db import forget_connection, rows
from delivery.mailbox.acknowledge import acknowledge, extend, nack
from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.long_poll import COUNT_AVAILABLE
from delivery.mailbox.mailbox_status import MAX_COUNTED, mailboxes_of
from delivery.mailbox.receipts import MailboxRef
from delivery.mailbox.unread import (
    EXPIRE,
    EXPIRE_PER_KIND,
    RETURN,
    RETURN_PER_END,
    WALK_START,
    WALK_STEP,
    expire_unread,
    purge,
    return_overdue,
    walk_positions,
)
from delivery.maintenance.expiry import expire_overdue
from delivery.maintenance.partitions import open_days, today
from delivery.status.delivery_search import FEW
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.support.api import client_of
from tests.support.broker import line_of, publish_numbered
from tests.support.database import database_url, execute
from tests.support.factories import subscription
from tests.support.mailboxes import pulled_subscription
from tests.support.query_plans import (
    MAX_WASTED_ROWS,
    costly_statements,
    explained_statements,
    prepared_statements,
    searching_plans,
)

MANY = 20_000
MAX_PER_CALL = 250
"""Rows that are near the front: found there, locked, and changed."""
FINISHED = 50_000

IN_FLIGHT, PENDING = DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


OTHERS = 300
"""Mailboxes that have a few handed out each, so that no mailbox has many."""

FILL: LiteralString = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, waits_for, due_at, fetches,
                           fetched_until)
SELECT m.id, l.id, s.id, CASE WHEN n %% 4 > 1 THEN 'IN_FLIGHT' ELSE 'PENDING' END, 2,
       CASE n %% 4 WHEN 0 THEN 'TURN' WHEN 1 THEN 'RETRY' ELSE 'RETURN' END,
       CASE n %% 4 WHEN 1 THEN timestamptz '2026-01-01' END,
       CASE WHEN n %% 4 > 1 THEN 1 ELSE 0 END,
       CASE n %% 4 WHEN 2 THEN now() - interval '1 s' WHEN 3 THEN now() + interval '1 h' END
  FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id AND l.lane = 'main'
 CROSS JOIN (SELECT max(id) AS id FROM delivery_message) m CROSS JOIN generate_series(1, %s) n
"""
"""Of each sort: fresh, set aside by an earlier push, timed out, and in flight; all of one message."""


def fill(many: int = MANY) -> None:
    """Let every subscription have `many` of each sort."""
    execute(FILL, [many])


@pytest.fixture(
    params=[
        pytest.param(False, id="queue seen full"),
        pytest.param(True, id="queue seen empty", marks=pytest.mark.lengthy),
    ]
)
def filled(request: pytest.FixtureRequest, storage: None, event_type: EventType) -> Subscription:
    """A mailbox with much of each sort, beside another, a line, and much that has been finished."""
    made = [subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL) for _ in range(2)]
    made += [subscription(event_type=event_type)]
    receivers = [(line_of(one.subscriber).pk, one.pk) for one in made]
    yesterday = today() - timedelta(days=1)
    open_days(yesterday, ahead=0)
    filling.finish(database_url(), receivers, event_type.pk, count=FINISHED, days=[yesterday])
    publish_numbered(event_type, 10)
    if request.param:
        filling.settle_down(database_url())
    fill()
    if not request.param:
        filling.settle_down(database_url())
    return made[0]


def go_through(wanted: Subscription, *, is_ordered: bool = False) -> None:
    """Look, fetch, acknowledge, return, prolong, say it all again, and do what the clock does."""
    box = MailboxRef(wanted.subscriber_id, is_ordered)
    Subscriber.objects.filter(pk=box.subscriber_id).update(mailbox_ordered=is_ordered)
    rows(COUNT_AVAILABLE, [[box.subscriber_id], [10]])
    for say in (acknowledge, nack, partial(extend, seconds=60)):
        receipts = [one.receipt for one in fetch(box, max_messages=10)]
        for _ in range(2):
            say(box.subscriber_id, receipts)
    return_overdue()
    expire_unread()


@pytest.mark.behaviour("9.1", "9.2")
def test_no_statement_of_mailboxes_reads_too_much(filled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    # Elsewhere, where another test left it, the walk may meet nothing but what is returned: each is read again then.
    monkeypatch.setitem(walk_positions, "next", WALK_START)
    with explained_statements(monkeypatch) as found:
        go_through(filled)
        go_through(filled, is_ordered=True)
    clock = {RETURN: 3 * 2 * RETURN_PER_END + WALK_STEP, EXPIRE: 3 * 3 * EXPIRE_PER_KIND}  # of three subscriptions
    assert len(found) > 15
    for one in found:
        assert costly_statements([one], 3 * clock.get(one.statement, MAX_PER_CALL)) == []


@pytest.mark.behaviour("9.5")
def test_a_look_reads_no_further_than_it_counts(filled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(4 * MAX_COUNTED)
    with explained_statements(monkeypatch) as found:
        standing = mailboxes_of([filled.subscriber_id])[filled.subscriber_id]
    assert (standing.available, standing.in_flight, standing.redelivered) == (MAX_COUNTED,) * 3
    sorts = 8
    (one,) = found
    assert (one.scans(MAX_WASTED_ROWS), one.rows_read <= sorts * MAX_COUNTED) == ([], True)


@pytest.mark.behaviour("9.1", "9.7", "11.4")
def test_no_plan_depends_on_what_waits_when_it_is_made(storage: None, event_type: EventType) -> None:
    wanted = subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)
    publish_numbered(event_type, 40)
    forget_connection()
    for is_ordered in (False, True):
        go_through(wanted, is_ordered=is_ordered)
    mailboxes_of([wanted.subscriber_id])
    purge(wanted.subscriber_id, seconds=60)
    expire_overdue()
    assert searching_plans(prepared_statements(), fewest=10) == []


FILL_HAND_OUTS = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, waits_for, fetches, fetched_until)
SELECT (SELECT max(id) FROM delivery_message), l.id, s.id, 'IN_FLIGHT', 2, 'RETURN', 1,
       CASE WHEN n <= %s THEN now() - interval '1 h' ELSE now() + interval '1 h' END + n * interval '1 ms'
  FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id AND l.lane = 'main'
 CROSS JOIN generate_series(1, %s) n
 WHERE s.delivery_mode = 'PULL'
"""


@pytest.fixture
def crowd(storage: None, event_type: EventType) -> Subscription:
    """A mailbox beside another, where somebody had the open shelf analysed while a crowd had a few handed out each."""
    others = [pulled_subscription(event_type=event_type) for _ in range(OTHERS)]
    publish_numbered(event_type, 1)
    execute(FILL_HAND_OUTS, [0, 3])
    execute("ANALYZE delivery_open")
    execute("DELETE FROM delivery_open")
    execute("VACUUM delivery_open")
    Subscription.objects.filter(pk__in=[one.pk for one in others]).delete()
    boxes = [pulled_subscription(event_type=event_type) for _ in range(2)]
    publish_numbered(event_type, 10)
    return boxes[0]


@pytest.mark.behaviour("9.2", "11.4")
@pytest.mark.parametrize("late", [500, MANY - 500])
def test_no_list_reads_all_hand_outs(crowd: Subscription, monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    execute(FILL_HAND_OUTS, [late, MANY])
    with explained_statements(monkeypatch) as found:
        for client, statuses in ((client_of(), [IN_FLIGHT]), (client_of(crowd.subscriber), [IN_FLIGHT, PENDING])):
            for query in ("", *(f"&status={one}" for one in statuses)):
                first = client.get(f"/api/v1/deliveries?limit=20{query}").json()
                if first["next"]:
                    client.get(first["next"])
    assert costly_statements(found, 5 * FEW) == []
