"""What QUEUE senders read and write does not grow with what waits."""

from collections.abc import Callable

import pytest
from django.db.models.functions import Now
from django.urls import reverse

from broker_project.core.db import forget_connection
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.dispatch.claim import claim
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, Line, QueueGroup
from delivery.operations import cancel_deliveries_of, release
from delivery.status.queue_status import groups_of, senders
from delivery.statuses import DeliveryStatus
from delivery.worker.buffer import PageRequest
from delivery.worker.leases import active_line
from delivery.worker.queue import OutgoingGroup
from delivery.worker.round_trip import mark_of
from delivery.worker.rounds import NO_LINK
from subscriptions.models import EventKind, EventType, Subscription
from tests.support import broker, factories
from tests.support.api import client_of, client_of_admin
from tests.support.broker import lines_with_due_work
from tests.support.database import execute
from tests.support.query_plans import costly_statements, explained_statements, prepared_statements, searching_plans

WAITING = 20_000

FEW = 200
COUNTED = 1_000
"""A sender's groups are counted to a limit, each kind for itself."""


FILL = """
WITH made AS (
  INSERT INTO delivery_queuegroup (message_id, line_id, delivery_ids, size, waits_for)
  SELECT 1, %(line)s, ARRAY[nextval('delivery_delivery_id_seq')], 2, 'SUBSCRIPTION' FROM generate_series(1, %(count)s)
  RETURNING id, delivery_ids)
INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, waits_for)
SELECT delivery_ids[1], 1, %(line)s, %(subscription)s, id, 'PENDING', 2, 'SUBSCRIPTION' FROM made
"""


@pytest.fixture
def queue_of_three(storage: None) -> EventType:
    kind = factories.event_type(kind=EventKind.QUEUE)
    for _ in range(3):
        factories.subscription(event_type=kind)
    return kind


@pytest.fixture
def parked(queue_of_three: EventType) -> Subscription:
    """Somebody inactive, for whom much waits at every sender; the shelf was analysed when it had been emptied."""
    broker.publish_bodies(queue_of_three, b"the senders have lines from the first message on")
    nobody = factories.subscription(event_type=factories.event_type(kind=EventKind.QUEUE))
    broker.inactivate(nobody)
    park(nobody)
    QueueGroup.objects.all().delete()
    Delivery.objects.all().delete()
    execute("VACUUM ANALYZE delivery_open, delivery_queuegroup")
    park(nobody)
    return nobody


def park(nobody: Subscription) -> None:
    for line in Line.objects.filter(sender__isnull=False):
        filled = {"line": line.pk, "subscription": nobody.pk, "count": WAITING // 5}
        execute(FILL, filled)


def read(line: Line, capacity: int = 500) -> list[OutgoingGroup]:
    line.refresh_from_db()
    hand = broker.read_groups_of(PageRequest(line.pk, line.epoch, capacity))
    return [group for _ in range(len(hand)) if (group := hand.take(deferred_next=False))]


def send_and_crash(jobs: EventType) -> None:
    """Publish, sweep, claim, read, mark, settle, let go, crash, mend, cancel and expire; for one sender."""
    ids = [one.id for one in broker.publish_bodies(jobs, *[b"%d" % number for number in range(20)])]
    line = Line.objects.get(sender=ids[0] % 5)
    assert line.pk in lines_with_due_work()
    (taken,) = claim([line.pk], worker="one")
    sender = active_line(taken, NO_LINK, 0.0, queue_max_in_flight=1)
    epochs = {line.pk: taken.epoch}
    first, second = [group.delivery(group.endpoints[0], tried=0, uncertain=False) for group in read(line)[:2]]
    broker.settle_groups(epochs, marks=[mark_of(sender, first), mark_of(sender, second)])
    won = broker.settlement(sender, first, group_id=first.group_id)
    refused = broker.settlement(
        sender, second, status=DeliveryStatus.PENDING, status_code=500, group_id=second.group_id, again=0.0
    )
    for spares in (False, True):  # the second time as after a lock: it is safe to repeat
        broker.settle_groups(epochs, spares=spares, settlements=[won])
    broker.settle_groups(epochs, settlements=[refused], states=[sender.update()])
    (taken,) = claim([line.pk], worker="two")
    third = read(line)[0]
    delivery = third.delivery(third.endpoints[0], tried=0, uncertain=False)
    broker.settle_groups({line.pk: taken.epoch}, marks=[mark_of(sender, delivery)])
    broker.expire_lease(line)
    assert len(claim([line.pk], worker="three")) == 1
    assert QueueGroup.objects.get(pk=third.id).first_id == delivery.id
    cancel_deliveries_of(third.endpoints[0].destination.subscription_id, reason="unwanted")
    late = [one.id for one in broker.publish_bodies(jobs, b"late", b"later")]
    assert Delivery.objects.filter(message_id__in=late).update(expires_at=Now()) == expire_overdue() > 0


@pytest.mark.behaviour("1.7", "11.4")
@pytest.mark.parametrize("analysed", ["", "delivery_queuegroup", "delivery_open"])
def test_no_statement_of_a_sender_reads_parked_deliveries(
    queue_of_three: EventType, parked: Subscription, monkeypatch: pytest.MonkeyPatch, analysed: str
) -> None:
    if analysed:
        execute(f"ANALYZE {analysed}")
    with explained_statements(monkeypatch) as statements:
        send_and_crash(queue_of_three)
    assert len(statements) > 20
    assert costly_statements(statements) == []
    searched = [one.statement for one in statements if "delivery_queuegroup" in one.searched]
    assert searched == []


@pytest.mark.behaviour("1.7")
def test_parked_groups_are_taken_back_in_slices(queue_of_three: EventType, parked: Subscription) -> None:
    broker.activate(parked)
    left = [WAITING]
    while left[-1]:
        lines_with_due_work()
        left.append(QueueGroup.objects.filter(waits_for="SUBSCRIPTION").count())
        assert 0 < left[-2] - left[-1] <= 2_000
    assert not Delivery.objects.open().filter(waits_for="SUBSCRIPTION").exists()


@pytest.mark.behaviour("1.7")
def test_groups_of_inactive_subscriptions_are_parked_by_the_page(queue_of_three: EventType, storage: None) -> None:
    others = factories.event_type(kind=EventKind.QUEUE)
    nobody = factories.subscription(event_type=others)
    broker.publish_bodies(others, *[b"%d" % number for number in range(50)])
    broker.inactivate(nobody)
    broker.publish_bodies(queue_of_three, *[b"%d" % number for number in range(5)])
    line = Line.objects.get(sender=0)
    assert (read(line, capacity=10), len(read(line, capacity=10))) == ([], 1)
    mine = QueueGroup.objects.filter(line=line)
    assert [mine.filter(waits_for="SUBSCRIPTION").count(), mine.filter(waits_for="TURN").count()] == [10, 1]


@pytest.mark.behaviour("2.10", "11.7")
def test_expired_groups_that_are_not_ended_yet_are_put_off_by_the_page(queue_of_three: EventType) -> None:
    broker.publish_bodies(queue_of_three, *[b"%d" % number for number in range(50)])
    Delivery.objects.update(expires_at=Now())
    broker.publish_bodies(queue_of_three, *[b"%d" % number for number in range(5)])
    line = Line.objects.get(sender=0)
    assert (read(line, capacity=10), len(read(line, capacity=10))) == ([], 1)
    mine = QueueGroup.objects.filter(line=line)
    assert [mine.filter(waits_for="RETRY").count(), mine.filter(waits_for="TURN").count()] == [10, 1]
    assert not Delivery.objects.exclude(waits_for="TURN").exists(), "parked: it would not be sent by a clock set back"


BACKLOG = """
WITH lines AS (SELECT array_agg(id ORDER BY sender) AS ids FROM delivery_line WHERE lane = 'queue'),
groups AS (
  INSERT INTO delivery_queuegroup (id, message_id, line_id, delivery_ids, size, waits_for, due_at)
  SELECT n, n, ids[1 + n %% 5], ARRAY[n], 2, (ARRAY['SUBSCRIPTION', 'RELEASE', 'START'])[1 + n %% 3],
         CASE n %% 3 WHEN 2 THEN %s::timestamptz END
    FROM generate_series(1, %s) n, lines RETURNING id, line_id, waits_for)
INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, waits_for)
SELECT id, id, line_id, %s, id, CASE waits_for WHEN 'RELEASE' THEN 'HELD' ELSE 'PENDING' END, 2,
       CASE waits_for WHEN 'START' THEN 'TURN' ELSE waits_for END
  FROM groups
"""
"""Parked, held, and delayed for long."""


@pytest.fixture(params=[False, True], ids=["", "vacuumed"])
def group(storage: None, request: pytest.FixtureRequest) -> list[Subscription]:
    """Three like subscriptions among the backlog of another, which is inactive."""
    wanted = factories.event_type(kind=EventKind.QUEUE)
    made = [factories.subscription(event_type=wanted, filter="$$->'Body'->'n' > '5'") for _ in range(3)]
    stuck = factories.subscription(event_type=factories.event_type(kind=EventKind.QUEUE))
    broker.publish_bodies(stuck.event_type, b"{}")
    cancel_deliveries_of(stuck.pk, reason="only the lines are wanted")
    execute(BACKLOG, ["2999-01-01", WAITING, stuck.pk])
    if request.param:
        execute("VACUUM delivery_open, delivery_queuegroup")
    broker.inactivate(stuck)
    return made


def taken() -> int:
    return Delivery.objects.final().filter(status="DELIVERED").count()


def publish_and_cancel(group: list[Subscription]) -> None:
    broker.publish_bodies(group[0].event_type, *[b'{"n": 6}'] * 10)
    assert [cancel_deliveries_of(one.pk, reason="unwanted") for one in group] == [(10, 0, True)] * 3


def publish_and_release(group: list[Subscription]) -> None:
    broker.publish_bodies(group[0].event_type, b'{"n": 1e200000}')
    assert len(release([QueueGroup.objects.latest("id").pk])) == 3


def look_at_a_message(group: list[Subscription]) -> None:
    (published,) = broker.publish_bodies(group[0].event_type, b'{"n": 6}')
    assert len(groups_of(Delivery.objects.filter(message=published.id))) == 1


def sweep(group: list[Subscription]) -> None:
    broker.publish_bodies(group[0].event_type, b'{"n": 6}')
    assert len(lines_with_due_work()) == 1


@pytest.mark.behaviour("6.2", "11.4")
@pytest.mark.parametrize("act", [publish_and_cancel, publish_and_release, look_at_a_message, sweep])
def test_no_statement_reads_waiting_groups(
    group: list[Subscription], monkeypatch: pytest.MonkeyPatch, act: Callable[[list[Subscription]], None]
) -> None:
    with explained_statements(monkeypatch) as statements:
        act(group)

    assert statements
    assert [(one.rows_read, one.statement) for one in statements if one.rows_read > FEW] == []


@pytest.mark.behaviour("6.4", "6.5", "11.4")
def test_sending_reads_no_other_groups(
    group: list[Subscription], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one, behaviour in zip(group, (answer(200), answer(404), answer(500)), strict=True):
        Subscription.objects.filter(pk=one.pk).update(endpoint=receiver.url(f"/{one.pk}"))
        receiver.on(f"/{one.pk}", behaviour)
    with explained_statements(monkeypatch) as statements, broker.running_worker():
        broker.publish_bodies(group[0].event_type, *[b'{"n": 6}'] * 12)
        wait_until(lambda: taken() == 12)

    hot = [one for one in statements if not one.statement.startswith(("SELECT", "UPDATE"))]
    assert len(hot) > 10
    assert [(one.rows_read, one.statement) for one in hot if one.rows_read > FEW] == []


def test_counting_a_senders_groups_is_limited(group: list[Subscription], monkeypatch: pytest.MonkeyPatch) -> None:
    with explained_statements(monkeypatch) as statements:
        assert {one.line.delayed for one in senders()} == {1_000}
        assert client_of().get("/api/v1/senders").status_code == 200
        line = Line.objects.get(sender=3)
        assert client_of_admin().get(reverse("admin:delivery_line_change", args=[line.pk])).status_code == 200

    assert [(one.rows_read, one.statement) for one in statements if one.rows_read > 5 * 3 * COUNTED + FEW] == []


@pytest.mark.behaviour("11.4")
def test_no_plan_of_a_sender_depends_on_what_waits_when_it_is_made(queue_of_three: EventType) -> None:
    broker.publish_bodies(queue_of_three, b"the senders have lines from the first message on")
    forget_connection()
    send_and_crash(queue_of_three)
    assert searching_plans(prepared_statements(), fewest=10) == []
