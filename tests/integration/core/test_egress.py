"""Whatever sends requests sends none to an address that is out of egress, and says so: lines, replies, calls and all.

Nothing is lost by it, and no order: it counts as no answer, tried again after the longest pause.
"""

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from broker_project.core.egress import EgressPolicy, networks_in
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.endpoint_probe import Monitors
from delivery.models import Attempt, Delivery, Hold, Lane, QueueGroup
from delivery.operations import cancel_deliveries_of
from subscriptions import edit
from subscriptions.models import EventKind, EventType, Subscription
from tests.support import broker, factories
from tests.support.api import SYNC_PATH, client_of, create_callback, job_type, post_reply, problem_of, publish
from tests.support.volatile import VOLATILE_HEADERS, are_counts_complete, run_tasks, volatile_counts

INTERNET = EgressPolicy()
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
WHY = "Address not allowed (loopback)"
SHORTEST, LONGEST = timedelta(seconds=45), timedelta(seconds=61)
"""Of the longest pause, 60 s, up to a fifth of which may be missing."""

pytestmark = pytest.mark.usefixtures("storage")


@pytest.fixture
def wanted(receiver: Receiver) -> Subscription:
    return factories.subscription(endpoint=receiver.url("/hook"))


def is_far(due_at: datetime | None) -> bool:
    """Tell whether it is due after the longest pause; the database is on this machine."""
    assert due_at
    return SHORTEST < due_at - timezone.now() < LONGEST


@pytest.mark.behaviour("4.8")
def test_refusals_hold_the_line(wanted: Subscription, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    with broker.running_worker(egress=INTERNET):
        hold = broker.wait_until_held(wanted.subscriber)
    first = Delivery.objects.oldest_first()[0]
    told = {"host": "127.0.0.1", "of": f"dlv_{first.pk}", "addresses": {"127.0.0.1": "loopback"}}
    assert str(told)[1:-1] in caplog.text
    assert (hold.reason, first.reason) == (f"no answer: {WHY}",) * 2
    assert (broker.statuses(wanted), broker.attempts_of(first.pk)) == (["PENDING"] * 3, [(1, None)])
    assert (Attempt.objects.get().error, first.uncertain, is_far(hold.due_at)) == (f"no answer: {WHY}", False, True)
    assert receiver.log == []


@pytest.mark.behaviour("4.9", "4.10")
def test_changed_endpoint_makes_the_line_due_in_order(wanted: Subscription, receiver: Receiver) -> None:
    endpoint = wanted.endpoint
    Subscription.objects.update(endpoint=endpoint.replace(HERE, ELSEWHERE))
    bodies = broker.publish_numbered(wanted.event_type, 5)
    with broker.running_worker(egress=EgressPolicy(networks_in(HERE))):
        broker.wait_until_held(wanted.subscriber)
        broker.hold_for_minutes(wanted.subscriber)
        edit.change(Subscription.objects.filter(pk=wanted.pk), changes={"endpoint": endpoint})
        broker.wait_until_done()
    assert (receiver.bodies("/hook"), [one.sequence for one in receiver.log]) == (bodies, [1, 2, 3, 4, 5])
    assert not any(one.is_flagged for one in receiver.log), "the first one had not been sent"


def test_refused_address_is_announced(wanted: Subscription) -> None:
    assert wanted.event_type
    till = factories.publisher(event_types=[wanted.event_type])
    publish(client_of(till), b"{}", event=wanted.event_type.name)
    with broker.running_worker(egress=INTERNET):
        broker.wait_until_held(wanted.subscriber)
    delivery = Delivery.objects.get()

    def told(by: Client) -> str:
        message = by.get(f"/api/v1/messages/{delivery.message_id}").json()
        return str(message["deliveries"][0]["reason"])

    assert (told(client_of(till)), told(client_of())) == ("no answer: its address is not allowed", f"no answer: {WHY}")
    own = client_of(wanted.subscriber).get(f"/api/v1/deliveries/{delivery.pk}").json()
    assert (own["reason"], HERE in str(own)) == (f"no answer: {WHY}", False)


@pytest.mark.behaviour("5.3")
def test_refused_address_waits_in_the_retry_line(receiver: Receiver) -> None:
    policy = factories.retry_policy(
        on_no_answer="RETRY_LANE", schedule=[1.0, 3600.0], max_retries=5, on_exhausted="FAIL", jitter=0.0
    )
    wanted = factories.subscription(endpoint=receiver.url("/hook"), retry_policy=policy)
    broker.publish_numbered(wanted.event_type, 2)
    with broker.running_worker(egress=INTERNET):
        wait_until(lambda: Delivery.objects.filter(attempts=1, line__lane=Lane.RETRY).count() == 2)
    assert Delivery.objects.filter(due_at__gt=Now() + timedelta(minutes=59)).count() == 2
    assert receiver.log == []
    with broker.running_worker():
        broker.cut_pauses_until_done()
    assert sorted(receiver.bodies("/hook")) == [b"0", b"1"]


@pytest.mark.behaviour("6.4", "6.5")
def test_refused_endpoint_leaves_the_group_to_others(receiver: Receiver) -> None:
    kind = factories.event_type(kind=EventKind.QUEUE)
    out = factories.subscription(event_type=kind, endpoint=receiver.url("/out").replace(HERE, ELSEWHERE))
    reachable = factories.subscription(event_type=kind, endpoint=receiver.url("/in"))
    with broker.running_worker(egress=EgressPolicy(networks_in(HERE))):
        broker.publish_bodies(kind, *(b"%d" % number for number in range(10)))
        broker.wait_until_done()
        assert len(receiver.of("/in")) == 10
        Subscription.objects.filter(pk=reachable.pk).update(status="INACTIVE")
        broker.publish_bodies(kind, b"nobody's")
        wait_until(lambda: Delivery.objects.open().filter(subscription=out, attempts=1).exists())
        wait_until(lambda: Delivery.objects.open().filter(subscription=out, status="PENDING").exists())
    group, waiting = QueueGroup.objects.get(), Delivery.objects.open().get(subscription=out)
    assert (waiting.reason, is_far(group.due_at)) == (f"no answer: {WHY}", True)


@pytest.mark.behaviour("6.8")
def test_reply_to_a_refused_address_is_not_sent(client: Client, publisher: Any, receiver: Receiver) -> None:
    job_type()
    callback = create_callback(client, receiver.url("/done"))
    cancel_deliveries_of(Subscription.objects.get().pk, reason="done")
    post_reply(callback)
    with broker.running_worker(egress=INTERNET):
        wait_until(Hold.objects.filter(line__callback=callback, failures=1, line__lease_until=None).exists)
    hold = Hold.objects.get(line__callback=callback)
    assert (hold.reason, is_far(hold.due_at), receiver.log) == (f"no answer: {WHY}", True, [])
    with broker.running_worker():
        broker.cut_pauses_until_done()
    assert len(receiver.of("/done")) == 1


@pytest.mark.behaviour("5.6")
def test_monitor_at_a_refused_address_is_not_requested(receiver: Receiver) -> None:
    monitors = Monitors(INTERNET)
    monitors.ask(1, receiver.url("/up"), timezone.now())
    future, _ = monitors._requests[1]
    wait_until(future.done)
    assert future.result().failure.reason == WHY
    assert (monitors.working(), receiver.log) == ({}, [])
    assert monitors._loop
    monitors._loop.stop()


@pytest.mark.usefixtures("calls")
@pytest.mark.behaviour("7.2")
def test_sync_call_to_a_refused_address_is_not_sent(client: Client, receiver: Receiver, settings: Any) -> None:
    settings.EGRESS_POLICY = INTERNET
    asked = factories.subscription(
        event_type=factories.event_type("A.Call", EventKind.SYNC), endpoint=receiver.url(SYNC_PATH)
    )
    began = time.monotonic()
    answered = publish(client_of(), event="A.Call")
    assert (problem_of(answered), answered["Broker-Outcome"]) == ((502, "endpoint_not_allowed"), "endpoint_not_allowed")
    assert "loopback" not in answered.json()["detail"]
    assert time.monotonic() < began + PATIENCE_SECONDS
    delivery = Delivery.objects.get(subscription=asked)
    assert (delivery.status, delivery.reason, delivery.uncertain) == ("FAILED", f"no answer: {WHY}", False)
    assert receiver.log == []


@pytest.mark.usefixtures("volatile")
@pytest.mark.behaviour("2.9")
def test_no_volatile_message_is_sent(client: Client, event_type: EventType, receiver: Receiver, settings: Any) -> None:
    settings.EGRESS_POLICY = INTERNET
    shop = factories.subscription(event_type=event_type, endpoint=receiver.url("/shop"))
    publish(client, b"{}", **VOLATILE_HEADERS)
    assert run_tasks() == 1
    wait_until(are_counts_complete)
    assert (volatile_counts(shop), receiver.log) == ({"accepted": 1, "not_allowed": 1}, [])


@pytest.mark.behaviour("4.13")
def test_concurrent_requests_to_a_refused_address_are_not_sent(receiver: Receiver) -> None:
    several = factories.subscriber(processing="CONCURRENT", concurrency=4)
    wanted = factories.subscription(several, endpoint=receiver.url("/hook"))
    broker.publish_numbered(wanted.event_type, 8)
    with broker.running_worker(egress=INTERNET):
        wait_until(lambda: broker.holds_of(several).filter(line__lease_until=None).count() == 4)
    assert (receiver.log, {*broker.statuses(wanted)}) == ([], {"PENDING"})
    assert all(is_far(hold.due_at) for hold in broker.holds_of(several))
