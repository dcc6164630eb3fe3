"""What goes wrong is announced: recorded with its cause, published once, in order, and without loops."""

from datetime import timedelta
from typing import Any, LiteralString

import orjson
import psycopg
import pytest
from django.db import transaction
from django.db.models.functions import Now

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery import announcements
from delivery.announcements import announce, announce_held_lines
from delivery.models import Announcement, Delivery, Hold, Line, Message
from delivery.operations import cancel_deliveries_of
from delivery.pause import pause, resume
from subscriptions.models import EventKind, EventType, PausedBy, Subscription
from tests.support import broker, factories
from tests.support.api import EVENT

REJECTED, FAILED = "Broker.Delivery.Rejected", "Broker.Delivery.Failed"
PAUSED, RESUMED = "Broker.Line.Paused", "Broker.Line.Resumed"
MINUTE = timedelta(seconds=announcements.HELD_SECONDS)


@pytest.fixture
def wanted(storage: None, receiver: Receiver) -> Subscription:
    return factories.subscription(factories.subscriber("shop"), factories.event_type(EVENT), receiver.url("/hook"))


@pytest.fixture
def ops(storage: None, receiver: Receiver) -> Subscription:
    """A subscription to all announcements."""
    return factories.subscription(factories.subscriber("ops"), endpoint=receiver.url("/ops"), event_pattern="Broker.*")


def recorded(*kinds: str) -> None:
    for kind in kinds:
        Announcement.objects.create(kind=kind)


def arrived(receiver: Receiver) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and content of what arrived, without ids and times."""
    unknown = {"announcement", "at", "since"}
    return [
        (one.headers["broker-event-type"], {k: v for k, v in orjson.loads(one.body).items() if k not in unknown})
        for one in receiver.of("/ops")
    ]


def published() -> list[str]:
    return [*Message.objects.order_by("id").values_list("event_type__name", flat=True)]


@pytest.mark.behaviour("5.7")
def test_a_rejected_delivery_is_announced(wanted: Subscription, ops: Subscription, receiver: Receiver) -> None:
    receiver.on("/hook", answer(404), answer(200))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 2)
        wait_until(lambda: receiver.of("/ops"))
        broker.wait_until_done()
    rejected = Delivery.objects.get(status="REJECTED")
    says = {"status": "REJECTED", "reason": rejected.reason, "attempts": 1, "delivery": rejected.pk}
    assert arrived(receiver) == [(REJECTED, {"subscriber": "shop", "subscription": wanted.pk, "events": EVENT, **says})]
    assert Announcement.objects.count() == 0


@pytest.mark.behaviour("5.7", "6.4")
def test_each_rejection_of_a_job_is_announced(wanted: Subscription, ops: Subscription, receiver: Receiver) -> None:
    jobs = factories.event_type("Shop.Job", EventKind.QUEUE)
    for _ in range(3):
        factories.subscription(wanted.subscriber, jobs, receiver.url("/jobs"))
    receiver.on("/jobs", answer(404), answer(410), answer(200))
    with broker.running_worker():
        broker.publish_numbered(jobs, 1)
        wait_until(lambda: len(receiver.of("/ops")) == 2)
        broker.wait_until_done()
    rejected = Delivery.objects.filter(status="REJECTED").order_by("finished_at")
    about = {"status": "REJECTED", "attempts": 1, "subscriber": "shop", "events": "Shop.Job"}
    says = [about | {"delivery": one.pk, "subscription": one.subscription_id, "reason": one.reason} for one in rejected]
    assert arrived(receiver) == [(REJECTED, said) for said in says]
    assert [one.reason for one in rejected] == ["answered 404", "answered 410"]


@pytest.mark.behaviour("5.7")
@pytest.mark.parametrize(
    ("pattern", "rows"), [("Broker.*", 1), ("Broker.Delivery.*", 1), ("", 1), ("Broker.Line.*", 0), ("*", 0)]
)
@pytest.mark.parametrize("kind", [EventKind.TOPIC, EventKind.QUEUE])
def test_a_rejection_without_a_matching_subscription_stores_nothing(
    storage: None, receiver: Receiver, nobody_announces: None, pattern: str, rows: int, kind: EventKind
) -> None:
    event_type = factories.event_type(kind=kind)
    wanted = factories.subscription(event_type=event_type, endpoint=receiver.url("/hook"))
    named = None if pattern else EventType.objects.get(name=REJECTED)
    factories.subscription(event_type=named, event_pattern=pattern)
    for inactive in (factories.subscription(event_pattern="Broker.*"), factories.subscriber()):
        broker.inactivate(inactive)
    receiver.on("/hook", answer(404))
    with broker.running_worker():
        broker.publish_numbered(event_type, 1)
        wait_until(lambda: broker.statuses(wanted) == ["REJECTED"])
    assert Announcement.objects.count() == rows


@pytest.mark.behaviour("5.7")
def test_other_final_statuses_are_not_announced(wanted: Subscription, ops: Subscription, receiver: Receiver) -> None:
    receiver.on("/hook", answer(302), answer(200))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 2)
        broker.wait_until_done()
    assert broker.statuses(wanted) == ["3xxNOTSUPPORTED", "DELIVERED"]
    assert (Announcement.objects.count(), published()) == (0, [EVENT, EVENT])


@pytest.mark.behaviour("5.7")
def test_rejected_announcements_make_no_more(wanted: Subscription, ops: Subscription, receiver: Receiver) -> None:
    receiver.on("/hook", answer(404))
    receiver.on("/ops", answer(404))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        wait_until(lambda: broker.statuses(ops) == ["REJECTED"])
        broker.publish_numbered(wanted.event_type, 1)
        wait_until(lambda: broker.statuses(ops) == ["REJECTED"] * 2)
    assert (published(), Announcement.objects.count()) == ([EVENT, REJECTED] * 2, 0)


@pytest.mark.behaviour("5.7")
def test_announcements_are_published_once_and_in_order(ops: Subscription) -> None:
    recorded(PAUSED, RESUMED, REJECTED, FAILED, PAUSED)
    assert (announce(), announce()) == (5, 0)
    assert published() == [PAUSED, RESUMED, REJECTED, FAILED, PAUSED]
    assert (broker.statuses(ops), Announcement.objects.count()) == (["PENDING"] * 5, 0)


@pytest.mark.behaviour("5.7")
def test_a_crash_delays_but_loses_no_announcement(ops: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(REJECTED)
    with monkeypatch.context() as dying:

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        dying.setattr(transaction, "on_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            announce()
    assert (Announcement.objects.count(), published()) == (1, [])
    assert (announce(), published(), Announcement.objects.count()) == (1, [REJECTED], 0)


@pytest.mark.behaviour("5.7")
def test_a_change_that_is_rolled_back_is_not_announced(wanted: Subscription) -> None:
    with transaction.atomic():
        pause([wanted.pk], reason="")
        transaction.set_rollback(True)
    assert Announcement.objects.count() == 0


def test_two_at_a_time_do_not_take_turns(ops: Subscription, elsewhere: "psycopg.Connection[Any]") -> None:
    recorded(PAUSED)
    elsewhere.execute(announcements.ALONE)
    assert announce() == 0
    elsewhere.rollback()
    assert announce() == 1


@pytest.mark.parametrize("nobody", ["unsubscribed", "inactive", "of an inactive subscriber", "for another"])
@pytest.mark.behaviour("5.7")
def test_announcements_without_subscription_are_dropped(ops: Subscription, nobody: str) -> None:
    if nobody == "inactive":
        broker.inactivate(ops)
    elif nobody == "of an inactive subscriber":
        broker.inactivate(ops.subscriber)
    else:
        ops.delete()
    if nobody == "for another":
        factories.subscription(event_type=EventType.objects.get(name=REJECTED))
        factories.subscription(event_pattern="*")
    recorded(PAUSED)
    assert (announce(), published(), Announcement.objects.count()) == (1, [], 0)


@pytest.fixture
def held(wanted: Subscription, receiver: Receiver, long_pauses: None) -> Line:
    """A line that its endpoint has held for a minute."""
    receiver.on("/hook", answer(503))
    broker.publish_numbered(wanted.event_type, 1)
    with broker.running_worker():
        broker.wait_until_held(wanted.subscriber)
    Hold.objects.update(since=Now() - MINUTE)
    return broker.line_of(wanted.subscriber)


def announced() -> list[str]:
    return [*Announcement.objects.order_by("id").values_list("kind", flat=True)]


@pytest.mark.behaviour("5.7")
def test_a_hold_and_its_end_announced(held: Line, ops: Subscription, wanted: Subscription, receiver: Receiver) -> None:
    assert (announce_held_lines(), announce_held_lines(), announced()) == (1, 0, [PAUSED])
    paused = Announcement.objects.get()
    assert (paused.line, paused.subscription, paused.delivery_id) == (held, wanted, held.holds.get().delivery_id)
    assert paused.details["reason"] == "answered 503"
    receiver.on("/hook", answer(200))
    with broker.running_worker():
        broker.make_due()
        wait_until(lambda: len(receiver.of("/ops")) == 2)
    assert [kind for kind, _ in arrived(receiver)] == [PAUSED, RESUMED]
    assert [says["subscriber"] for _, says in arrived(receiver)] == ["shop", "shop"]
    assert (announce_held_lines(), Line.objects.exclude(pause_announced_at=None).count()) == (0, 0)


@pytest.mark.behaviour("5.7")
def test_a_line_held_for_less_is_only_interrupted(held: Line) -> None:
    Hold.objects.update(since=Now() - MINUTE + timedelta(seconds=30))
    assert (announce_held_lines(), announced()) == (0, [])


def stop(wanted: Subscription, how: str) -> None:
    """Let what is at a line's head hold nothing up any more."""
    if how == "inactive":
        broker.inactivate(wanted)
    elif how == "inactive with its subscriber":
        broker.inactivate(wanted.subscriber)
    elif how == "cancelled":
        cancel_deliveries_of(wanted.pk, reason="")
    else:
        paused = Subscription.objects.filter(pk=wanted.pk)
        paused.update(paused_since=Now(), paused_by=PausedBy.POLICY, half_open=how == "on trial")


@pytest.mark.parametrize("how", ["inactive", "inactive with its subscriber", "suspended", "on trial", "cancelled"])
@pytest.mark.parametrize("kinds", [[], [PAUSED, RESUMED]])
@pytest.mark.behaviour("5.7")
def test_a_line_whose_head_is_not_sent_is_announced_no_more_but_resumes(
    held: Line, wanted: Subscription, how: str, kinds: list[str]
) -> None:
    if kinds:
        announce_held_lines()
    stop(wanted, how)
    assert (announce_held_lines(), announced()) == (bool(kinds), kinds)
    assert all(one.details["pause"] == "HELD" for one in Announcement.objects.all())


LINE_LOCK = "SELECT FROM delivery_line FOR UPDATE"


@pytest.mark.parametrize("lock", [announcements.ALONE_WITH_LINES, LINE_LOCK])
def test_locked_lines_are_announced_too(held: Line, elsewhere: "psycopg.Connection[Any]", lock: LiteralString) -> None:
    elsewhere.execute(lock)
    assert announce_held_lines() == 0
    elsewhere.rollback()
    assert announce_held_lines() == 1


@pytest.mark.behaviour("5.7")
def test_a_hold_by_an_announcement_is_silent(ops: Subscription, receiver: Receiver, long_pauses: None) -> None:
    receiver.on("/ops", answer(503))
    recorded(REJECTED)
    with broker.running_worker():
        broker.wait_until_held(ops.subscriber)
    Hold.objects.update(since=Now() - MINUTE)
    assert (announce_held_lines(), announced()) == (0, [])


@pytest.mark.behaviour("5.7")
def test_a_hold_beside_one_by_an_announcement_is_announced_and_so_is_its_end(storage: None) -> None:
    shop = factories.subscriber(processing="CONCURRENT")
    line = broker.line_of(shop)
    for event_type, minutes in ((EventType.objects.get(name=REJECTED), 3), (factories.event_type("Shop.Paid"), 2)):
        wanted = factories.subscription(shop, event_pattern=f"{event_type.name.partition('.')[0]}.*")
        message = Message.objects.create(event_type=event_type, body=b"", size=0, outcome="ROUTED")
        delivery = Delivery.objects.create(subscription=wanted, line=line, message=message, size=1)
        Hold.objects.create(delivery=delivery, line=line, reason="answered 503", since=Now() - minutes * MINUTE)
    assert (announce_held_lines(), announced()) == (1, [PAUSED])
    assert (Announcement.objects.get().delivery_id, Announcement.objects.get().subscription) == (delivery.pk, wanted)
    Hold.objects.filter(delivery=delivery).delete()
    assert (announce_held_lines(), announced()) == (1, [PAUSED, RESUMED])
    assert announce_held_lines() == 0


@pytest.mark.behaviour("5.7")
def test_a_manual_pause_is_announced(wanted: Subscription, ops: Subscription, receiver: Receiver) -> None:
    with broker.running_worker():
        pause([wanted.pk], reason="moving house")
        resume([wanted.pk])
        wait_until(lambda: len(receiver.of("/ops")) == 2)
    about = {"subscriber": "shop", "subscription": wanted.pk, "events": EVENT, "pause": "BY_HAND"}
    assert arrived(receiver) == [(PAUSED, {**about, "reason": "moving house"}), (RESUMED, about)]
