"""What QUEUE senders read and write does not grow with what waits for somebody inactive, or to be released."""

from datetime import datetime

import pytest
from django.db import connection

from delivery.callbacks.address import callback_terms
from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import lines_with_due_work, still_due
from delivery.models import UNTIL_ACTIVE, Delivery, Line, QueueGroup
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from delivery.worker.buffer import BodyBudget
from delivery.worker.pages import PageRequest
from delivery.worker.queue import GroupInHand
from delivery.worker.queue_pages import read_groups
from delivery.worker.queue_settle import settle_groups
from delivery.worker.run_lines import active_line
from delivery.worker.steps import Turn
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.driving import PLENTY, activate, expire_lease, inactivate, publish_bodies, settlement
from tests.plans import explaining, too_much

WAITING = 20_000
FILL = """
WITH made AS (
  INSERT INTO delivery_queuegroup (message_id, line_id, delivery_ids, size, due_at)
  SELECT 1, %(line)s, ARRAY[nextval('delivery_delivery_id_seq')], 2, %(due_at)s FROM generate_series(1, %(count)s)
  RETURNING id, delivery_ids)
INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, due_at)
SELECT delivery_ids[1], 1, %(line)s, %(subscription)s, id, 'PENDING', 2, %(due_at)s FROM made
"""


@pytest.fixture
def jobs(storage: None) -> EventType:
    kind = factories.event_type(kind=EventKind.QUEUE)
    for _ in range(3):
        factories.subscription(event_type=kind)
    return kind


@pytest.fixture
def parked(jobs: EventType) -> Subscription:
    """Somebody inactive, for whom much waits at every sender; the shelf was analysed when it had been emptied."""
    publish_bodies(jobs, b"the senders have lines from the first message on")
    nobody = factories.subscription(event_type=factories.event_type(kind=EventKind.QUEUE))
    inactivate(nobody)
    park(nobody)
    QueueGroup.objects.all().delete()
    Delivery.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE delivery_open, delivery_queuegroup")
    park(nobody)
    return nobody


def park(nobody: Subscription) -> None:
    with connection.cursor() as cursor:
        for line in Line.objects.filter(sender__isnull=False):
            filled: dict[str, int | datetime]
            filled = {"line": line.pk, "subscription": nobody.pk, "count": WAITING // 5, "due_at": UNTIL_ACTIVE}
            cursor.execute(FILL, filled)


def read(line: Line, capacity: int = 500) -> list[GroupInHand]:
    line.refresh_from_db()
    hand = read_groups([PageRequest(line.pk, line.epoch, None, capacity)], BodyBudget(PLENTY), callback_terms())[
        line.pk
    ]
    return [group for _ in range(len(hand)) if (group := hand.take(aside_next=False))]


def send_and_crash(jobs: EventType) -> None:
    """Publish, sweep, claim, read, mark, settle, let go, look again, crash, mend and cancel; for one sender."""
    ids = [one.id for one in publish_bodies(jobs, *[b"%d" % number for number in range(20)])]
    line = Line.objects.get(sender=ids[0] % 5)
    assert line.pk in lines_with_due_work()
    (taken,) = claim([line.pk], worker="one")
    sender = active_line(taken, Turn([line.pk], 0.5), 0.0, under_way=1)
    epochs = {line.pk: taken.epoch}
    first, second = [group.delivery(group.endpoints[0], tried=0, uncertain=False) for group in read(line)[:2]]
    settle_groups(epochs, marks=[sender.mark(first), sender.mark(second)])
    won = settlement(sender, first, group_id=first.group_id)
    refused = settlement(
        sender, second, status=DeliveryStatus.PENDING, status_code=500, group_id=second.group_id, again=0.0
    )
    settle_groups(epochs, settlements=[won])
    settle_groups(epochs, settlements=[refused], states=[sender.state(let_go=True)])
    assert still_due([line.pk]) == [line.pk]
    (taken,) = claim([line.pk], worker="two")
    third = read(line)[0]
    delivery = third.delivery(third.endpoints[0], tried=0, uncertain=False)
    settle_groups({line.pk: taken.epoch}, marks=[sender.mark(delivery)])
    expire_lease(line)
    assert len(claim([line.pk], worker="three")) == 1
    assert QueueGroup.objects.get(pk=third.id).first_id == delivery.id
    cancel_deliveries_of(third.endpoints[0].destination.subscription_id, reason="unwanted")


@pytest.mark.behaviour("1.7", "11.4")
def test_no_statement_of_a_sender_reads_what_is_parked(
    jobs: EventType, parked: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    with explaining(monkeypatch) as statements:
        send_and_crash(jobs)
    assert len(statements) > 20
    assert too_much(statements) == []
    searched = [one.statement for one in statements if "delivery_queuegroup" in one.searched]
    assert searched == []


@pytest.mark.behaviour("1.7")
def test_what_is_parked_is_taken_back_slice_by_slice(jobs: EventType, parked: Subscription) -> None:
    activate(parked)
    left = [WAITING]
    while left[-1]:
        lines_with_due_work()
        left.append(QueueGroup.objects.filter(due_at=UNTIL_ACTIVE).count())
        assert 0 < left[-2] - left[-1] <= 2_000
    assert not Delivery.objects.open().filter(due_at=UNTIL_ACTIVE).exists()


@pytest.mark.behaviour("1.7")
def test_what_nobody_can_take_is_parked_by_the_page_and_hides_nothing(jobs: EventType, storage: None) -> None:
    others = factories.event_type(kind=EventKind.QUEUE)
    nobody = factories.subscription(event_type=others)
    publish_bodies(others, *[b"%d" % number for number in range(50)])
    inactivate(nobody)
    publish_bodies(jobs, *[b"%d" % number for number in range(5)])
    line = Line.objects.get(sender=0)
    assert (read(line, capacity=10), len(read(line, capacity=10))) == ([], 1)
    mine = QueueGroup.objects.filter(line=line)
    assert [mine.filter(due_at=UNTIL_ACTIVE).count(), mine.filter(due_at=None).count()] == [10, 1]
