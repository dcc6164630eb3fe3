"""What the clock ends in mailboxes: what nobody reads for days, and what is fetched in vain (behaviour 9.6, 9.7)."""

import pytest
from django.db import connection

from delivery.dispatch import notify
from delivery.mailbox import unread
from delivery.mailbox.acknowledge import acknowledge, give_back
from delivery.mailbox.unread import expire_unread, return_overdue
from delivery.maintenance.periodic import CHORES
from delivery.models import Announcement, Delivery
from delivery.operations import cancel_deliveries_of
from delivery.outcomes import redact_reason
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription
from tests.driving import line_of, publish_numbered, statuses
from tests.factories import event_type as new_event_type
from tests.factories import subscription
from tests.mailboxes import fetched, switch, time_out

CANCELLED, DELIVERED, EXPIRED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.EXPIRED
FAILED, IN_FLIGHT, PENDING = DeliveryStatus.FAILED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


@pytest.fixture
def pulled(storage: None, event_type: EventType) -> Subscription:
    """One that has an endpoint as well, so that it may be switched."""
    return subscription(event_type=event_type, delivery_mode=DeliveryMode.PULL)


def reasons(wanted: Subscription) -> list[str]:
    return [*Delivery.objects.filter(subscription=wanted).oldest_first().values_list("reason", flat=True)]


def test_the_clock_looks_after_mailboxes() -> None:
    assert (CHORES["expire_unread"], CHORES["return_overdue"]) == (expire_unread, return_overdue)


@pytest.mark.behaviour("9.2")
def test_what_may_be_fetched_again_is_left_alone(pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 2)
    fetched(pulled, 1)
    time_out()
    fetched(pulled, 1)
    time_out()
    before = [*Delivery.objects.oldest_first().values()]
    assert (return_overdue(), [*Delivery.objects.oldest_first().values()]) == (0, before)


@pytest.mark.behaviour("9.7")
@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize("is_returned", [False, True], ids=["timed out", "returned"])
def test_a_message_fails_once_its_redeliveries_are_used_up(
    pulled: Subscription, most: int, *, is_returned: bool
) -> None:
    Subscriber.objects.update(max_redeliveries=most)
    publish_numbered(pulled.event_type, 2)
    for number in range(1, most + 2):
        assert statuses(pulled)[0] in {PENDING, IN_FLIGHT}
        (one,) = fetched(pulled, 1)
        assert (one.fetch, one.content.body) == (number, b"0")
        if is_returned:
            give_back(pulled.subscriber_id, [one.receipt])
        else:
            time_out()
            assert return_overdue() == (number > most)
    times = f"{most + 1} time{'s' if most else ''}"
    assert statuses(pulled) == [FAILED, PENDING]
    assert reasons(pulled)[0] == redact_reason(reasons(pulled)[0]) == f"redeliveries used up: not acknowledged {times}"
    assert [one.content.body for one in fetched(pulled)] == [b"1"]


@pytest.mark.behaviour("9.7")
def test_what_has_used_up_its_redeliveries_is_not_handed_out_before_anybody_has_seen_to_it(
    pulled: Subscription,
) -> None:
    Subscriber.objects.update(max_redeliveries=0)
    publish_numbered(pulled.event_type, 1)
    fetched(pulled)
    time_out()
    assert fetched(pulled) == []


@pytest.mark.behaviour("5.7", "9.7")
@pytest.mark.parametrize("name", ["Shop.Order.Cancelled", "Broker.Line.Paused"])
@pytest.mark.parametrize("is_returned", [False, True], ids=["timed out", "returned"])
def test_a_failure_is_announced_unless_it_tells_of_the_broker_itself(
    pulled: Subscription, name: str, *, is_returned: bool
) -> None:
    subscription(event_type=EventType.objects.get(name="Broker.Delivery.Failed"))
    its = EventType.objects.filter(name=name).first() or new_event_type(name)
    wanted = subscription(pulled.subscriber, its, delivery_mode=DeliveryMode.PULL)
    Subscriber.objects.update(max_redeliveries=0)
    publish_numbered(its, 1)
    (one,) = fetched(wanted)
    if is_returned:
        give_back(wanted.subscriber_id, [one.receipt])
    else:
        time_out()
        return_overdue()
    announced = [*Announcement.objects.values_list("kind", "delivery_id")]
    ours = name.startswith("Broker.")
    assert (statuses(wanted), announced) == ([FAILED], [] if ours else [("Broker.Delivery.Failed", one.delivery_id)])


@pytest.mark.behaviour("1.8", "9.2")
@pytest.mark.parametrize("how", ["acknowledged", "returned", "timed out"])
def test_what_somebody_has_asked_to_cancel_ends_unless_it_is_acknowledged(pulled: Subscription, how: str) -> None:
    publish_numbered(pulled.event_type, 1)
    (one,) = fetched(pulled)
    assert cancel_deliveries_of(pulled.pk, reason="cancelled") == (0, 1)
    if how == "acknowledged":
        acknowledge(pulled.subscriber_id, [one.receipt])
    elif how == "returned":
        assert give_back(pulled.subscriber_id, [one.receipt])[one.receipt].delivery_status == CANCELLED
    else:
        time_out()
        assert (fetched(pulled), return_overdue()) == ([], 1)
    expected = (DELIVERED, "") if how == "acknowledged" else (CANCELLED, "cancelled while in flight")
    assert [(statuses(pulled)[0], redact_reason(reasons(pulled)[0]))] == [expected]


@pytest.mark.behaviour("9.8", "4.11")
def test_what_times_out_after_a_switch_is_pushed_as_a_possible_duplicate(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[list[int]] = []
    monkeypatch.setattr(notify, "wake", lambda _, line_ids: woken.append(line_ids))
    publish_numbered(pulled.event_type, 2)
    fetched(pulled, 1)
    switch(pulled, DeliveryMode.PUSH)
    assert (return_overdue(), woken.pop()) == (0, [])
    time_out()
    woken.clear()
    assert (return_overdue(), woken) == (1, [[line_of(pulled.subscriber).pk]])
    row = dict(Delivery.objects.oldest_first().values("status", "due_at", "fetched_until", "uncertain")[0])
    assert row == {"status": PENDING, "due_at": None, "fetched_until": None, "uncertain": True}


@pytest.mark.behaviour("9.7")
def test_what_nobody_fetches_hides_nothing_that_ends_for_long(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = unread.RETURN.replace(f"LIMIT {unread.RETURN_REACH}", "LIMIT 1")
    small = small.replace(f"LIMIT {unread.STRETCH}", "LIMIT 2").replace(f"OFFSET {unread.STRETCH}", "OFFSET 2")
    monkeypatch.setattr(unread, "RETURN", small)
    monkeypatch.setattr(unread, "walk_of_this_process", unread.Walk())
    beside = subscription(event_type=pulled.event_type, delivery_mode=DeliveryMode.PULL)
    publish_numbered(pulled.event_type, 9)
    ids = [[one.delivery_id for one in fetched(box)] for box in (pulled, beside)]
    time_out()
    last = [box[-2] for box in ids]
    Delivery.objects.filter(pk__in=last).update(cancel_requested=True)
    ended = [return_overdue() for _ in range(9)]
    assert sum(ended) == 2
    assert statuses(pulled) == statuses(beside) == [IN_FLIGHT] * 7 + [CANCELLED, IN_FLIGHT]
    Delivery.objects.filter(pk=ids[0][3]).update(cancel_requested=True)
    assert sum(return_overdue() for _ in range(9)) == 1, "the walk begins anew"


@pytest.mark.behaviour("9.7")
def test_what_nobody_fetches_hides_neither_the_oldest_nor_the_newest_that_end(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = unread.RETURN.replace(f"LIMIT {unread.RETURN_REACH}", "LIMIT 2")
    monkeypatch.setattr(unread, "RETURN", small.replace(f"LIMIT {unread.STRETCH}", "LIMIT 0"))
    publish_numbered(pulled.event_type, 9)
    fetched(pulled)
    with connection.cursor() as cursor:  # the oldest time-outs and the newest are used up, those between are not
        cursor.execute("""
            UPDATE delivery_open SET fetched_until = timestamptz '2026-01-01' + place * interval '1 s',
                   fetches = CASE WHEN place BETWEEN 3 AND 7 THEN 1 ELSE 2 END
              FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM delivery_open) o
             WHERE o.id = delivery_open.id""")
    Subscriber.objects.update(max_redeliveries=1)
    assert [return_overdue() for _ in range(2)] == [4, 0]
    assert statuses(pulled) == [FAILED] * 2 + [IN_FLIGHT] * 5 + [FAILED] * 2
