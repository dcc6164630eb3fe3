"""Searches for what is next begin at floors while dead rows pile up, and overlook nothing (contract 11.6)."""

from datetime import timedelta
from functools import partial

import pytest
from django.db.models import F
from django.db.models.functions import Now

from broker_project.core.db import rows
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from delivery.dispatch.claim import claim, renew
from delivery.dispatch.sweep import begin_delayed
from delivery.dispatch.turn_floors import note_floors
from delivery.maintenance.periodic import HAS_WORK, JOBS
from delivery.models import Delivery, Line, QueueGroup, ReplayState, TurnFloor
from delivery.operations import cancel_deliveries_of
from subscriptions.models import EventKind, Subscription
from tests.support import broker, factories, replays
from tests.support.broker import (
    lines_with_due_work,
    note_floors_now,
    publish_bodies,
    publish_numbered,
    raise_floors,
)
from tests.support.database import another_connection
from tests.support.query_plans import explained_statements

pytestmark = pytest.mark.behaviour("11.6")

PACES = """
SELECT DISTINCT array(SELECT o FROM unnest(c.reloptions) o WHERE o LIKE 'autovacuum_vacuum_cost_%' ORDER BY o)
  FROM pg_class c
 WHERE c.relname IN ('delivery_line', 'delivery_turnfloor') OR EXISTS (
   SELECT FROM unnest(c.reloptions) o WHERE o LIKE 'autovacuum_vacuum_threshold=%')
"""
LATE = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size)
SELECT message_id, line_id, subscription_id, 'PENDING', size FROM delivery_open LIMIT 1 RETURNING id
"""


@pytest.fixture
def _many_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(JOBS, "note_floors", partial(note_floors, many_dead=-1))
    monkeypatch.delitem(HAS_WORK, "note_floors")


@pytest.fixture
def line(wanted: Subscription) -> Line:
    publish_numbered(wanted.event_type, 3)
    return broker.line_of(wanted.subscriber)


def floor_of(one: Subscription) -> int:
    return TurnFloor.objects.get(subscription=one).floor


def test_a_floor_is_the_first_that_waits_or_the_next_id(wanted: Subscription, line: Line) -> None:
    first, second, _ = Delivery.objects.order_by("pk")
    raise_floors()
    assert floor_of(wanted) == first.pk
    first.delete()
    raise_floors()
    assert floor_of(wanted) == second.pk
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    raise_floors()
    assert lines_with_due_work() == []
    publish_numbered(wanted.event_type, 1)
    assert floor_of(wanted) == Delivery.objects.open().get().pk
    assert lines_with_due_work() == [line.pk]


def test_there_are_no_floors_without_dead_rows(line: Line) -> None:
    raise_floors()
    assert TurnFloor.objects.exists()
    note_floors()
    assert not TurnFloor.objects.exists()


def test_no_floor_passes_over_what_is_committed_late(wanted: Subscription, line: Line) -> None:
    with another_connection() as elsewhere:
        with elsewhere.transaction():
            ((late,),) = elsewhere.execute(LATE).fetchall()
            cancel_deliveries_of(wanted.pk, reason="unwanted")
            for _ in range(9):
                note_floors_now()
            assert floor_of(wanted) == 0
        raise_floors()
        assert floor_of(wanted) == late
    assert lines_with_due_work() == [line.pk]


def test_what_begins_late_has_its_place(wanted: Subscription, line: Line) -> None:
    Delivery.objects.update(waits_for="START", not_before=Now() - timedelta(seconds=1))
    raise_floors()
    earliest = Delivery.objects.earliest("pk").pk
    assert floor_of(wanted) > earliest
    begin_delayed()
    assert floor_of(wanted) == earliest
    assert lines_with_due_work() == [line.pk]


def test_dead_versions_of_a_line_are_not_passed(
    wanted: Subscription, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_floors()
    with another_connection() as elsewhere, elsewhere.transaction():
        elsewhere.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        elsewhere.execute("SELECT")
        for _ in range(300):
            Line.objects.update(epoch=F("epoch") + 1, lease_until=None)
        with explained_statements(monkeypatch) as statements:
            publish_numbered(wanted.event_type, 1, first=3)
            assert lines_with_due_work() == [line.pk]
            (claimed,) = claim([line.pk], worker="worker-1")
            assert len(broker.outgoing_of(claimed)) == 4
            assert renew({line.pk: claimed.epoch}) == {line.pk: True}
    reads = [node for one in statements for node in one.nodes() if node.get("Relation Name") == "delivery_line"]
    assert len(reads) > 10
    assert max(node["Shared Hit Blocks"] for node in reads) < 60


@pytest.mark.django_db
def test_vacuum_of_tables_whose_rows_come_and_go_leaves_three_quarters_of_a_core() -> None:
    paces = rows(PACES)
    assert paces == [(["autovacuum_vacuum_cost_delay=100", "autovacuum_vacuum_cost_limit=2000"],)]


@pytest.mark.usefixtures("_many_dead")
def test_a_backfill_begins_below_the_floor(storage: None, receiver: Receiver) -> None:
    kind = factories.event_type("Shop.Order")
    old = publish_numbered(kind, 3)
    backfill = replays.start_backfill(replays.new(kind, endpoint=receiver.url("/new")))
    live = publish_numbered(kind, 2, first=3)
    raise_floors()
    with broker.running_worker():
        wait_until(lambda: replays.state_of(backfill) == ReplayState.DONE)
        broker.wait_until_done()
    assert receiver.bodies("/new") == [*old, *live]


@pytest.mark.usefixtures("_many_dead")
def test_groups_have_floors_too(storage: None, receiver: Receiver) -> None:
    work = factories.event_type("Shop.Work", EventKind.QUEUE)
    factories.subscription(event_type=work, endpoint=receiver.url("/work"))
    publish_bodies(work, *[b"%d" % number for number in range(20)])
    QueueGroup.objects.update(waits_for="START", due_at=Now())
    raise_floors()
    assert TurnFloor.objects.filter(line__isnull=False, floor__gt=QueueGroup.objects.latest("pk").pk).count() == 5
    QueueGroup.objects.update(waits_for="TURN", due_at=None)
    with broker.running_worker():
        broker.wait_until_done()
    assert len(receiver.bodies("/work")) == 20
