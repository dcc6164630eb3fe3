"""Nobody stands in another's way: large backlogs, and a line that its own process claims again."""

import pytest
from django.db import connection

from delivery.models import Delivery, Lane, Line
from delivery.operations import SLICE, cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from tests import factories
from tests.driving import Worker, line_of, publish_numbered, wait_until_done
from tests.receiver import Receiver, wait_until


@pytest.mark.behaviour("1.8")
@pytest.mark.django_db(transaction=True)
def test_a_backlog_larger_than_one_slice_is_cancelled_whole(storage: None) -> None:
    subscription = factories.subscription()
    line = line_of(subscription.subscriber)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, due_at)"
            " SELECT n, %s, %s, 'PENDING', 1, CASE WHEN n %% 2 = 0 THEN now() END FROM generate_series(1, %s) n",
            [line.pk, subscription.pk, 2 * SLICE + 1],
        )

    assert cancel_deliveries_of(subscription.pk, reason="too many") == (2 * SLICE + 1, 0)
    assert Delivery.objects.open().count() == 0
    assert Delivery.objects.final().filter(status=DeliveryStatus.CANCELLED, reason="too many").count() == 2 * SLICE + 1


@pytest.mark.behaviour("4.11", "4.1")
def test_a_line_that_its_own_process_claims_again_is_settled_under_the_new_claim_only(
    receiver: Receiver, worker: Worker
) -> None:
    subscription = factories.subscription(endpoint=receiver.url("/a"))
    gate = receiver.gate("/a")
    publish_numbered(subscription.event_type, 3)
    wait_until(lambda: len(receiver.log) == 1)
    # The process was stalled past its lease: its sweeper takes the line again while the first request still waits.
    Line.objects.filter(lane=Lane.MAIN).update(lease_until="2000-01-01T00:00Z")
    wait_until_done()
    gate.open()
    wait_until(lambda: receiver.log[0].ended)

    assert [(request.sequence, request.is_flagged) for request in receiver.log] == [
        (1, False),
        (1, True),
        (2, False),
        (3, False),
    ]
    wait_until(lambda: Line.objects.get(lane=Lane.MAIN).lease_until is None)
    assert Line.objects.get(lane=Lane.MAIN).last_sequence == 3
