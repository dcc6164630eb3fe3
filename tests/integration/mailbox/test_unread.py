"""Messages that nobody reads for days, or that fail too often, end (contract 9.6, 9.7)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from django.test import Client

from broker_project.environment import MAX_DAYS
from delivery.mailbox import unread
from delivery.mailbox.acknowledge import acknowledge, nack
from delivery.mailbox.unread import EXPIRE, EXPIRE_PER_KIND, MAX_SKIPPED, expire_unread, return_overdue
from delivery.maintenance.periodic import JOBS
from delivery.models import Announcement, Delivery
from delivery.operations import cancel_deliveries_of, release
from delivery.outcomes import redact_reason
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventType, PausedBy, Subscriber, Subscription
from tests.support import broker
from tests.support.admin import form_shown, save_form
from tests.support.database import execute
from tests.support.factories import event_type as new_event_type
from tests.support.factories import subscription
from tests.support.mailboxes import fetch_all, let_days_pass, switch_delivery_mode, time_out_hand_outs
from tests.support.query_plans import explained_statements

pytestmark = pytest.mark.behaviour("9.6", "9.7")

CANCELLED, DELIVERED, EXPIRED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.EXPIRED
FAILED, IN_FLIGHT, PENDING = DeliveryStatus.FAILED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING
HELD = DeliveryStatus.HELD

MANY = 20_000


def reasons(wanted: Subscription) -> list[str]:
    return [*Delivery.objects.filter(subscription=wanted).oldest_first().values_list("reason", flat=True)]


def test_the_clock_looks_after_mailboxes() -> None:
    assert (JOBS["expire_unread"], JOBS["return_overdue"]) == (expire_unread, return_overdue)


@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize("is_returned", [False, True], ids=["timed out", "returned"])
def test_a_message_fails_without_redeliveries(pulled: Subscription, most: int, *, is_returned: bool) -> None:
    Subscriber.objects.update(max_redeliveries=most)
    broker.publish_numbered(pulled.event_type, 2)
    for number in range(1, most + 2):
        assert broker.statuses(pulled)[0] in {PENDING, IN_FLIGHT}
        (one,) = fetch_all(pulled, 1)
        assert (one.redeliveries, one.content.body) == (number - 1, b"0")
        if is_returned:
            nack(pulled.subscriber_id, [one.receipt])
        else:
            time_out_hand_outs()
            assert return_overdue() == (number > most)
    times = f"{most + 1} time{'s' if most else ''}"
    assert broker.statuses(pulled) == [FAILED, PENDING]
    assert reasons(pulled)[0] == redact_reason(reasons(pulled)[0]) == f"redeliveries used up: not acknowledged {times}"
    assert [one.content.body for one in fetch_all(pulled)] == [b"1"]


@pytest.mark.behaviour("5.7")
@pytest.mark.parametrize("name", ["Shop.Order.Cancelled", "Broker.Line.Paused"])
@pytest.mark.parametrize("is_returned", [False, True], ids=["timed out", "returned"])
def test_failures_of_others_are_announced(pulled: Subscription, name: str, *, is_returned: bool) -> None:
    subscription(event_type=EventType.objects.get(name="Broker.Delivery.Failed"))
    its = EventType.objects.filter(name=name).first() or new_event_type(name)
    wanted = subscription(pulled.subscriber, its, delivery_mode=DeliveryMode.PULL)
    Subscriber.objects.update(max_redeliveries=0)
    broker.publish_numbered(its, 1)
    (one,) = fetch_all(wanted)
    if is_returned:
        nack(wanted.subscriber_id, [one.receipt])
    else:
        time_out_hand_outs()
        return_overdue()
    announced = [*Announcement.objects.values_list("kind", "delivery_id")]
    told = [] if name.startswith("Broker.") else [("Broker.Delivery.Failed", one.delivery_id)]
    assert (broker.statuses(wanted), announced) == ([FAILED], told)


@pytest.mark.behaviour("1.8", "9.2")
@pytest.mark.parametrize("how", ["acknowledged", "returned", "timed out"])
def test_a_requested_cancellation_applies_unless_acknowledged(pulled: Subscription, how: str) -> None:
    broker.publish_numbered(pulled.event_type, 1)
    (one,) = fetch_all(pulled)
    assert cancel_deliveries_of(pulled.pk, reason="cancelled") == (0, 1, True)
    if how == "acknowledged":
        acknowledge(pulled.subscriber_id, [one.receipt])
    elif how == "returned":
        assert nack(pulled.subscriber_id, [one.receipt])[one.receipt].delivery_status == CANCELLED
    else:
        time_out_hand_outs()
        assert (fetch_all(pulled), return_overdue()) == ([], 1)
    expected = (DELIVERED, "") if how == "acknowledged" else (CANCELLED, "cancelled while in flight")
    assert [(broker.statuses(pulled)[0], redact_reason(reasons(pulled)[0]))] == [expected]


@pytest.mark.behaviour("9.8", "4.11")
def test_a_switched_time_out_is_a_possible_duplicate(pulled: Subscription, woken: list[list[int]]) -> None:
    broker.publish_numbered(pulled.event_type, 2)
    fetch_all(pulled, 1)
    switch_delivery_mode(pulled, DeliveryMode.PUSH)
    assert (return_overdue(), woken) == (0, [])
    time_out_hand_outs()
    assert (return_overdue(), woken) == (1, [[broker.line_of(pulled.subscriber).pk]])
    row = dict(Delivery.objects.oldest_first().values("status", "waits_for", "fetched_until", "uncertain")[0])
    assert row == {"status": PENDING, "waits_for": "TURN", "fetched_until": None, "uncertain": True}


def test_unfetched_messages_hide_no_ended_ones(pulled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    small = unread.RETURN.replace(f"LIMIT {unread.RETURN_PER_END}", "LIMIT 1")
    small = small.replace(f"LIMIT {unread.WALK_STEP}", "LIMIT 2").replace(f"OFFSET {unread.WALK_STEP}", "OFFSET 2")
    monkeypatch.setattr(unread, "RETURN", small)
    monkeypatch.setitem(unread.walk_positions, "next", unread.WALK_START)
    beside = subscription(event_type=pulled.event_type, delivery_mode=DeliveryMode.PULL)
    broker.publish_numbered(pulled.event_type, 9)
    ids = [[one.delivery_id for one in fetch_all(box)] for box in (pulled, beside)]
    time_out_hand_outs()
    last = [box[-2] for box in ids]
    Delivery.objects.filter(pk__in=last).update(cancel_requested=True)
    ended = [return_overdue() for _ in range(9)]
    assert sum(ended) == 2
    assert broker.statuses(pulled) == broker.statuses(beside) == [IN_FLIGHT] * 7 + [CANCELLED, IN_FLIGHT]
    Delivery.objects.filter(pk=ids[0][3]).update(cancel_requested=True)
    assert sum(return_overdue() for _ in range(9)) == 1, "the walk begins again"


def test_unfetched_messages_hide_neither_end(pulled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    small = unread.RETURN.replace(f"LIMIT {unread.RETURN_PER_END}", "LIMIT 2")
    monkeypatch.setattr(unread, "RETURN", small.replace(f"LIMIT {unread.WALK_STEP}", "LIMIT 0"))
    broker.publish_numbered(pulled.event_type, 9)
    fetch_all(pulled)
    # the oldest time-outs and the newest are used up, those between are not
    execute("""
            UPDATE delivery_open SET fetched_until = timestamptz '2026-01-01' + place * interval '1 s',
                   fetches = CASE WHEN place BETWEEN 3 AND 7 THEN 1 ELSE 2 END
              FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM delivery_open) o
             WHERE o.id = delivery_open.id""")
    Subscriber.objects.update(max_redeliveries=1)
    assert [return_overdue() for _ in range(2)] == [4, 0]
    assert broker.statuses(pulled) == [FAILED] * 2 + [IN_FLIGHT] * 5 + [FAILED] * 2


def hold() -> None:
    Delivery.objects.update(status="HELD", waits_for="RELEASE")


@pytest.mark.behaviour("2.10")
def test_unread_messages_expire_after_four_days_but_never_in_flight(pulled: Subscription) -> None:
    broker.publish_numbered(pulled.event_type, 3)
    out, late = fetch_all(pulled, 1), fetch_all(pulled, 1)
    Delivery.objects.filter(pk=late[0].delivery_id).update(fetched_until="2026-01-01T00:00:00Z")
    let_days_pass(days=3)
    assert expire_unread() == 0
    let_days_pass(days=1)
    assert (expire_unread(), expire_unread()) == (2, 0)
    assert broker.statuses(pulled) == [IN_FLIGHT, EXPIRED, EXPIRED]
    assert reasons(pulled) == ["", "unread for 4 days", "unread for 4 days"]
    assert redact_reason(reasons(pulled)[1]) == "unread for 4 days"
    acknowledge(pulled.subscriber_id, [out[0].receipt])
    assert broker.statuses(pulled)[0] == DELIVERED


def test_how_many_days_is_a_setting_and_counts_at_once(pulled: Subscription, settings: Any) -> None:
    broker.publish_numbered(pulled.event_type, 1)
    let_days_pass(days=1)
    settings.MAILBOX_DAYS = MAX_DAYS
    assert expire_unread() == 0
    settings.MAILBOX_DAYS = 1
    assert (expire_unread(), reasons(pulled)) == (1, ["unread for 1 day"])


CLOSE: dict[str, Callable[[Subscription], object]] = {
    "pushed": lambda one: switch_delivery_mode(one, DeliveryMode.PUSH),
    "paused": lambda _: Subscription.objects.update(paused_since=Now(), paused_by=PausedBy.HAND),
    "inactive": broker.inactivate,
    "its subscriber inactive": lambda one: broker.inactivate(one.subscriber),
}


@pytest.mark.behaviour("9.6", "9.8")
@pytest.mark.parametrize("how", CLOSE)
def test_the_days_go_on_while_nobody_may_read(pulled: Subscription, how: str) -> None:
    """A pushed message waits for its endpoint, however long."""
    broker.publish_numbered(pulled.event_type, 2)
    CLOSE[how](pulled)
    let_days_pass(days=3)
    assert (expire_unread(), broker.statuses(pulled)) == (0, [PENDING] * 2)
    let_days_pass(days=1)
    if how == "pushed":
        assert (expire_unread(), broker.statuses(pulled)) == (0, [PENDING] * 2)
        switch_delivery_mode(pulled, DeliveryMode.PULL)
    assert (expire_unread(), broker.statuses(pulled)) == (2, [EXPIRED] * 2)


@pytest.mark.behaviour("9.6")
def test_a_subscriber_has_days_of_its_own_for_what_is_there_already(admin: Client, pulled: Subscription) -> None:
    other = subscription(event_type=pulled.event_type, delivery_mode=DeliveryMode.PULL)
    broker.publish_numbered(pulled.event_type, 1)
    let_days_pass(days=4)

    def give(days: int) -> None:
        save_form(admin, pulled.subscriber, form_shown(admin, pulled.subscriber) | {"mailbox_days": str(days)})
        assert Subscriber.objects.get(pk=pulled.subscriber_id).mailbox_days == days

    give(6)
    assert (expire_unread(), reasons(other), broker.statuses(pulled)) == (1, ["unread for 4 days"], [PENDING])
    let_days_pass(days=1)
    assert expire_unread() == 0
    give(5)
    assert (expire_unread(), reasons(pulled)) == (1, ["unread for 5 days"])
    history = [entry.get_change_message() for entry in LogEntry.objects.filter(object_id=pulled.subscriber_id)]
    assert ["Mailbox days" in one for one in history] == [True, True]


@pytest.mark.behaviour("2.13")
def test_the_days_of_what_was_delayed_begin_when_it_is_due(pulled: Subscription) -> None:
    broker.publish_bodies(pulled.event_type, b"due", b"delayed")
    let_days_pass(days=9)
    due, delayed = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk=due.pk).update(not_before=Now() - timedelta(days=3))
    Delivery.objects.filter(pk=delayed.pk).update(not_before="2999-01-01T00:00:00Z", waits_for="START")
    assert (expire_unread(), broker.statuses(pulled)) == (0, [PENDING, PENDING])
    Delivery.objects.filter(pk=due.pk).update(not_before=Now() - timedelta(days=4))
    assert (expire_unread(), broker.statuses(pulled)) == (1, [EXPIRED, PENDING])


@pytest.mark.behaviour("3.6")
def test_the_days_of_what_was_held_begin_when_it_is_released(pulled: Subscription) -> None:
    broker.publish_numbered(pulled.event_type, 2)
    hold()
    let_days_pass(days=9)
    assert (expire_unread(), broker.statuses(pulled)) == (0, [HELD] * 2)
    release([Delivery.objects.oldest_first()[0].pk])
    assert (expire_unread(), broker.statuses(pulled)) == (0, [PENDING, HELD])
    Delivery.objects.filter(status=PENDING).update(not_before=Now() - timedelta(days=4))
    assert (expire_unread(), broker.statuses(pulled)) == (1, [EXPIRED, HELD])


@pytest.mark.behaviour("2.13", "3.6")
@pytest.mark.parametrize("mode", DeliveryMode)
def test_a_release_moves_no_time_that_is_still_to_come(pulled: Subscription, mode: DeliveryMode) -> None:
    switch_delivery_mode(pulled, mode)
    broker.publish_bodies(pulled.event_type, b"later", not_before="2999-01-01T00:00:00Z")
    broker.publish_bodies(pulled.event_type, b"now")
    before = [*Delivery.objects.oldest_first().values_list("not_before", flat=True)]
    hold()
    release([one.pk for one in Delivery.objects.all()])
    later, now = Delivery.objects.oldest_first()
    assert (later.not_before, later.waits_for) == (before[0], "START")
    assert (now.not_before is None, now.waits_for) == (mode == DeliveryMode.PUSH, "TURN")


FILL = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, created_at, not_before)
SELECT m.id, l.id, s.id, 'PENDING', 2, now() - make_interval(days => %s), CASE WHEN %s THEN now() END
  FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id AND l.lane = 'main'
 CROSS JOIN (SELECT max(id) AS id FROM delivery_message) m CROSS JOIN generate_series(1, %s)
"""


def small(monkeypatch: pytest.MonkeyPatch, *, of_each: int, all_in_all: int = unread.EXPIRE_BATCH) -> None:
    """Look at few of each subscription, and end few at once."""
    statement = unread.EXPIRE.replace(f"LIMIT {unread.EXPIRE_PER_KIND})", f"LIMIT {of_each})")
    monkeypatch.setattr(unread, "EXPIRE", statement.replace(f"LIMIT {unread.EXPIRE_BATCH})", f"LIMIT {all_in_all})"))


@pytest.mark.parametrize("sort", ["fresh", "aside", "timed out"])
@pytest.mark.parametrize("young_by", ["its due time", "its publishing", "being in flight"])
def test_no_number_of_others_hides_what_is_old(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch, sort: str, young_by: str
) -> None:
    """What is young by its publishing comes behind what is old; what is so otherwise may stand before it."""
    small(monkeypatch, of_each=2)
    broker.publish_numbered(pulled.event_type, 5)
    if sort == "timed out" or young_by == "being in flight":
        assert len(fetch_all(pulled)) == 5
        time_out_hand_outs()
    if sort == "aside":
        Delivery.objects.filter(fetched_until=None).update(waits_for="RETRY", due_at="2026-01-01T00:00:00Z")
    let_days_pass(days=9)
    *before, last = Delivery.objects.oldest_first().values_list("pk", flat=True)
    others = Delivery.objects.filter(pk__in=before)
    if young_by == "its due time":
        others.update(not_before=Now() - timedelta(days=1))
    elif young_by == "being in flight":
        others.update(fetched_until=Now() + timedelta(hours=1))
    else:
        last = before[0]
        fresh: dict[str, object] = {"status": PENDING, "waits_for": "TURN", "due_at": None, "fetched_until": None}
        Delivery.objects.exclude(pk=last).update(created_at=Now(), **fresh)
    assert expire_unread() == 1
    assert [*Delivery.objects.filter(status=EXPIRED).values_list("pk", flat=True)] == [last]


def test_every_mailbox_is_looked_after_a_slice_at_a_time(pulled: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [subscription(event_type=pulled.event_type, delivery_mode=DeliveryMode.PULL) for _ in range(2)]
    subscription(event_type=pulled.event_type)
    broker.publish_numbered(pulled.event_type, 5)
    let_days_pass(days=4)
    small(monkeypatch, of_each=2, all_in_all=5)
    ended = [expire_unread() for _ in range(6)]
    assert (max(ended), sum(ended), ended[-1]) == (5, 15, 0)
    assert [broker.statuses(one) for one in [pulled, *others]] == [[EXPIRED] * 5] * 3


@pytest.mark.behaviour("11.4")
@pytest.mark.parametrize(
    ("days", "is_delayed", "read"),
    [(0, False, 1), (9, False, EXPIRE_PER_KIND), (9, True, MAX_SKIPPED)],
    ids=["young", "old", "old, and due just now"],
)
def test_no_look_for_it_reads_all_there_is(
    pulled: Subscription, monkeypatch: pytest.MonkeyPatch, days: int, read: int, *, is_delayed: bool
) -> None:
    boxes = [pulled, subscription(event_type=pulled.event_type, delivery_mode=DeliveryMode.PULL)]
    broker.publish_numbered(pulled.event_type, 1)
    let_days_pass(days=days)
    execute(FILL, [days, is_delayed, MANY])
    with explained_statements(monkeypatch) as found:
        expire_unread()
    (one,) = [one for one in found if one.statement == EXPIRE]
    assert one.rows_read < 100 + len(boxes) * (read + 4 * EXPIRE_PER_KIND)
    assert one.blocks_read < 20 * (100 + len(boxes) * (read + 4 * EXPIRE_PER_KIND))
