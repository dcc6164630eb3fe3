"""Activate, inactivate, change and cancel while a line works; release held deliveries."""

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, models, transaction
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from broker_project.core.admin import lists
from broker_project.core.admin.lists import SINCE
from broker_project.stack.load.receiver import Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery import operations
from delivery.admin import bulk
from delivery.dispatch.claim import claim
from delivery.models import Delivery, Hold, LineEvent, LineEventKind, Message, QueueGroup
from delivery.operations import cancel, cancel_deliveries_of, release, try_now
from delivery.status.line_status import LineState, LineStatus, line_statuses
from delivery.statuses import DeliveryStatus
from subscriptions.edit import change
from subscriptions.models import EventKind, RetryPolicy, Status, StatusChange, Subscriber, Subscription
from subscriptions.retry_policies import PRESETS, Action, OnExhausted
from tests.support import broker, factories
from tests.support.admin import browser_with, messages_of
from tests.support.api import EVENT, FAILING_BODY, client_of, client_of_admin, publish
from tests.support.broker import Worker, lines_with_due_work
from tests.support.database import in_other_thread
from tests.support.factories import subscription

CANCELLED, DELIVERED, PENDING = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.PENDING

POSITIVE = "$$->'Body'->'n' > '0'"
LIST = "/api/v1/deliveries"


@pytest.fixture
def beside(receiver: Receiver, wanted: Subscription) -> Subscription:
    """Another subscription of the same subscriber."""
    return subscription(subscriber=wanted.subscriber, endpoint=receiver.url("/b"))


ENOUGH_TRIES = 4
MOVES_ON_SECONDS = 5.0
"""From the end of the request in flight, if there is one, until a line passes an INACTIVE head."""
SUSPENDS: dict[str, Any] = {"max_retries": 1, "on_exhausted": OnExhausted.SUSPEND}


@pytest.mark.behaviour("1.6")
@pytest.mark.parametrize("status", [302, 404, 500, 503, None])
@pytest.mark.parametrize("policy", [*PRESETS, "suspends"])
def test_no_failure_inactivates_under_any_policy(
    receiver: Receiver, worker: Worker, policy: str, status: int | None
) -> None:
    """To the last retry, and what follows; under a policy that never gives up a few of them."""
    made = factories.retry_policy(policy, **SUSPENDS) if policy == "suspends" else RetryPolicy.objects.get(name=policy)
    wanted = subscription(endpoint=receiver.url("/a"), retry_policy=made)
    receiver.on("/a", answer(status)) if status else receiver.close_port()
    broker.publish_numbered(wanted.event_type, 2)

    def is_through() -> bool:
        broker.make_due()
        wanted.refresh_from_db()
        never_ends = made.on_exhausted == OnExhausted.NEVER and _tries() > ENOUGH_TRIES
        is_inactive = wanted.status != Status.ACTIVE
        return not broker.unfinished() or wanted.paused_since is not None or never_ends or is_inactive

    wait_until(is_through, saying=lambda: [*Delivery.objects.values()])
    assert (wanted.status, Subscriber.objects.get().status) == (Status.ACTIVE, Status.ACTIVE)
    assert not StatusChange.objects.filter(status=Status.INACTIVE).exists()


def _tries() -> int:
    tries: int = Delivery.objects.aggregate(models.Sum("attempts"))["attempts__sum"]
    return tries


@pytest.fixture
def sweeper(wanted: Subscription) -> Iterator[None]:
    """The threads of a worker process, which look for work as often as in production."""
    alone = broker.lone_worker("alone")
    alone.start()
    yield
    alone.stop()


@pytest.mark.behaviour("1.7")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
def test_inactive_messages_are_not_sent(receiver: Receiver, worker: Worker, wanted: Subscription, whose: str) -> None:
    thing = wanted if whose == "subscription" else wanted.subscriber
    broker.publish_bodies(wanted.event_type, b"before")
    broker.wait_until_done()
    broker.inactivate(thing)
    assert broker.publish_bodies(wanted.event_type, b"meanwhile")[0].outcome == "UNROUTED"
    broker.activate(thing)
    broker.publish_bodies(wanted.event_type, b"after")
    broker.wait_until_done()
    assert receiver.bodies("/a") == [b"before", b"after"]


@pytest.mark.behaviour("1.7")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
def test_pending_deliveries_survive_inactivity_in_order(receiver: Receiver, wanted: Subscription, whose: str) -> None:
    thing = wanted if whose == "subscription" else wanted.subscriber
    broker.publish_numbered(wanted.event_type, 5)
    broker.inactivate(thing)
    (taken,) = claim([broker.line_of(wanted.subscriber).pk], worker="w")
    assert (lines_with_due_work(), broker.outgoing_of(taken), broker.statuses(wanted)) == ([], [], [PENDING] * 5)
    broker.expire_lease(broker.line_of(wanted.subscriber))
    broker.activate(thing)
    with broker.running_worker():
        broker.wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.behaviour("1.7", "4.9")
def test_an_inactive_subscription_is_skipped(receiver: Receiver, wanted: Subscription, beside: Subscription) -> None:
    for number in range(3):
        broker.publish_bodies(wanted.event_type, b"a%d" % number)
        broker.publish_bodies(beside.event_type, b"b%d" % number)
    broker.inactivate(wanted)
    with broker.running_worker():
        wait_until(lambda: broker.statuses(beside) == [DELIVERED] * 3)
        broker.publish_bodies(beside.event_type, b"b3")
        wait_until(lambda: broker.statuses(beside) == [DELIVERED] * 4)
        assert receiver.of("/a") == []
        broker.activate(wanted)
        broker.wait_until_done()
    assert [request.body for request in receiver.log] == [b"b0", b"b1", b"b2", b"b3", b"a0", b"a1", b"a2"]
    assert [request.sequence for request in receiver.log] == [*range(1, 8)]


@pytest.mark.behaviour("4.9")
@pytest.mark.parametrize("reason", ["503", pytest.param("refused", marks=pytest.mark.lengthy)])
def test_a_line_passes_an_inactive_head(
    receiver: Receiver, sweeper: None, wanted: Subscription, beside: Subscription, reason: str
) -> None:
    receiver.on("/a", answer(503, Retry_After="300"))
    if reason == "refused":
        Subscription.objects.filter(pk=wanted.pk).update(endpoint="http://127.0.0.1:9/closed")
    broker.publish_numbered(wanted.event_type, 1)
    broker.wait_until_held(wanted.subscriber)
    broker.hold_for_minutes(wanted.subscriber)
    broker.publish_bodies(beside.event_type, b"waiting")
    inactivated_at = time.monotonic()
    broker.inactivate(wanted)
    wait_until(lambda: receiver.bodies("/b") == [b"waiting"])
    assert receiver.of("/b")[0].begun - inactivated_at < MOVES_ON_SECONDS
    wait_until(lambda: not broker.holds_of(wanted.subscriber).exists())
    assert broker.statuses(wanted) == [PENDING]
    Subscription.objects.filter(pk=wanted.pk).update(endpoint=receiver.url("/again"), status=Status.ACTIVE)
    broker.wait_until_done()
    assert [request.body for request in receiver.log if request.path != "/a"] == [b"waiting", b"0"]


@pytest.mark.behaviour("4.9")
def test_head_inactive_in_flight_is_passed(receiver: Receiver, wanted: Subscription, beside: Subscription) -> None:
    receiver.on("/a", hang)
    Subscription.objects.filter(pk=wanted.pk).update(timeout_seconds=1)
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.publish_bodies(beside.event_type, b"waiting")
        wait_until(lambda: receiver.of("/a"))
        broker.inactivate(wanted)
        wait_until(lambda: receiver.bodies("/b") == [b"waiting"])
    answered_at = receiver.log[0].ended
    assert answered_at
    assert receiver.log[1].begun - answered_at < MOVES_ON_SECONDS
    assert (len(receiver.of("/a")), broker.statuses(wanted)) == (1, [PENDING])


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "endpoint": ("subscription", {"endpoint": "/b"}),
    "headers": ("subscription", {"headers": {"X-New": "yes"}}),
    "secret": ("subscription", {"signing_secret": "whsec_" + "A" * 32}),
    "the subscriber's headers": ("subscriber", {"headers": {"X-New": "yes"}}),
}


@pytest.mark.behaviour("4.9", "4.15")
@pytest.mark.parametrize(("whose", "fields"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_makes_a_held_line_due(
    receiver: Receiver, worker: Worker, wanted: Subscription, whose: str, fields: dict[str, Any]
) -> None:
    receiver.on("/a", answer(503, Retry_After="300"), answer())
    broker.publish_numbered(wanted.event_type, 2)
    broker.wait_until_held(wanted.subscriber)
    if path := fields.get("endpoint"):
        fields = {"endpoint": receiver.url(path)}
    changed = Subscription.objects if whose == "subscription" else Subscriber.objects
    pk = wanted.pk if whose == "subscription" else wanted.subscriber_id
    change(changed.filter(pk=pk), changes=fields)
    broker.wait_until_done()
    assert [request.body for request in receiver.log] == [b"0", b"0", b"1"]
    old, new = receiver.log[0], receiver.log[1]
    assert (old.path, old.headers.get("x-new")) == ("/a", None)
    assert (new.path == "/b", new.headers.get("x-new") == "yes") == ("endpoint" in fields, "headers" in fields)


@pytest.mark.behaviour("4.9")
def test_a_hold_ends_in_time(receiver: Receiver, worker: Worker, wanted: Subscription, beside: Subscription) -> None:
    receiver.on("/a", answer(503, Retry_After="300"))
    broker.publish_numbered(wanted.event_type, 1)
    line = broker.wait_until_held(wanted.subscriber)
    broker.publish_bodies(beside.event_type, b"waiting")
    Subscription.objects.get(pk=beside.pk).save()  # a change of another subscription does not concern the head
    assert (lines_with_due_work(), claim([line.pk], worker="w"), receiver.of("/b")) == ([], [], [])


@pytest.mark.behaviour("4.15")
def test_a_change_applies_from_the_next_request_on(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    gate = receiver.gate("/a")
    broker.publish_numbered(wanted.event_type, 3)
    wait_until(lambda: receiver.log)
    changes = {"endpoint": "PUT:" + receiver.url("/b"), "headers": {"X-New": "yes"}}
    change(Subscription.objects.filter(pk=wanted.pk), changes=changes)
    gate.open()
    broker.wait_until_done()
    sent = [(request.method, request.path, request.headers.get("x-new")) for request in receiver.log]
    assert sent == [("POST", "/a", None), ("PUT", "/b", "yes"), ("PUT", "/b", "yes")]
    assert [request.sequence for request in receiver.log] == [1, 2, 3]


@pytest.mark.behaviour("4.15")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
def test_inactivating_stops_read_pages(receiver: Receiver, worker: Worker, wanted: Subscription, whose: str) -> None:
    gate = receiver.gate("/a")
    broker.publish_numbered(wanted.event_type, 3)
    wait_until(lambda: receiver.log)
    broker.inactivate(wanted if whose == "subscription" else wanted.subscriber)
    gate.open()
    wait_until(lambda: broker.statuses(wanted) == [DELIVERED, PENDING, PENDING])
    wait_until(lambda: broker.line_of(wanted.subscriber).lease_until is None)
    assert receiver.bodies("/a") == [b"0"]


@pytest.mark.behaviour("4.15")
def test_recipients_are_fixed_at_publish(receiver: Receiver, wanted: Subscription) -> None:
    broker.publish_bodies(wanted.event_type, b"old")
    late = subscription(event_type=wanted.event_type, endpoint=receiver.url("/late"))
    Subscription.objects.filter(pk=wanted.pk).update(header_filter_string="something else")
    with broker.running_worker():
        broker.wait_until_done()
    assert (receiver.bodies("/a"), receiver.bodies("/late"), broker.statuses(late)) == ([b"old"], [], [])


@pytest.mark.behaviour("1.8", "4.15")
def test_nothing_is_sent_that_was_cancelled_in_hand(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    gate = receiver.gate("/a")
    broker.publish_numbered(wanted.event_type, 4)
    wait_until(lambda: receiver.log)
    assert cancel_deliveries_of(wanted.pk, reason="unwanted") == (3, 1, True)
    gate.open()
    broker.wait_until_done()
    assert broker.statuses(wanted) == [DELIVERED, CANCELLED, CANCELLED, CANCELLED]
    assert receiver.bodies("/a") == [b"0"]
    broker.publish_numbered(wanted.event_type, 1)
    broker.wait_until_done()
    assert ([request.sequence for request in receiver.log], LineEvent.objects.count()) == ([1, 2], 0)


@pytest.mark.behaviour("1.8")
@pytest.mark.parametrize("status", [503, 500])
def test_open_deliveries_keep_a_subscription_until_cancelled(
    receiver: Receiver, worker: Worker, wanted: Subscription, beside: Subscription, status: int
) -> None:
    receiver.on("/a", answer(status, Retry_After="300"))
    broker.publish_numbered(wanted.event_type, 2)
    wait_until(lambda: broker.line_of(wanted.subscriber).lease_until is None and _tries() >= 1)
    broker.publish_bodies(beside.event_type, b"waiting")
    with pytest.raises(IntegrityError, match="has unfinished deliveries"):
        Subscription.objects.filter(pk=wanted.pk)._raw_delete("default")
    broker.inactivate(wanted)
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    broker.wait_until_done()
    assert (set(broker.statuses(wanted)), broker.statuses(beside)) == ({CANCELLED}, [DELIVERED])
    Subscription.objects.filter(pk=wanted.pk)._raw_delete("default")
    assert not Subscription.objects.filter(pk=wanted.pk).exists()


@pytest.mark.behaviour("4.10", "1.8")
def test_a_cancelled_unsent_head_leaves_no_gap(
    receiver: Receiver, worker: Worker, wanted: Subscription, beside: Subscription
) -> None:
    Subscription.objects.filter(pk=wanted.pk).update(endpoint="http://127.0.0.1:9/closed")
    broker.publish_numbered(wanted.event_type, 1)
    broker.wait_until_held(wanted.subscriber)
    broker.publish_bodies(beside.event_type, b"next")
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    broker.wait_until_done()
    assert [(request.path, request.sequence) for request in receiver.log] == [("/b", 1)]
    assert LineEvent.objects.count() == 0


@pytest.fixture
def filtered(storage: None, receiver: Receiver) -> Subscription:
    return factories.subscription(
        factories.subscriber("shop"), factories.event_type(EVENT), receiver.url("/hook"), filter=POSITIVE
    )


@pytest.fixture
def held(filtered: Subscription) -> Delivery:
    """Return the one that is held, between two that are not."""
    broker.publish_bodies(filtered.event_type, b'{"n": 1}', FAILING_BODY, b'{"n": 3}')
    return Delivery.objects.get(status="HELD")


@pytest.mark.behaviour("3.6")
def test_a_filter_that_fails_holds_the_delivery_and_loses_nothing(filtered: Subscription) -> None:
    other = factories.subscription(event_type=filtered.event_type)
    answer = publish(client_of(factories.publisher()), FAILING_BODY)
    assert (answer.status_code, answer.json()["outcome"], answer.json()["deliveries"]) == (202, "ROUTED", 2)
    assert Message.objects.get().deliveries_count == 2
    assert (broker.statuses(filtered), broker.statuses(other)) == (["HELD"], ["PENDING"])
    shown = client_of(filtered.subscriber).get(LIST, {"status": "HELD"}).json()["items"]
    assert [(one["status"], one["due_at"], one["reason"][:15]) for one in shown] == [("HELD", None, "filter failed: ")]
    assert client_of().get(LIST, {"status": "HELD"}).json()["items"] == shown


@pytest.mark.behaviour("3.6", "4.10")
def test_released_deliveries_are_sent_in_order_of_id(held: Delivery, filtered: Subscription) -> None:
    (taken,) = claim([broker.line_of(filtered.subscriber).pk], worker="w")
    assert [one.content.body for one in broker.outgoing_of(taken)] == [b'{"n": 1}', b'{"n": 3}']
    assert release([held.pk]) == [held.pk]
    assert [one.content.body for one in broker.outgoing_of(taken)] == [b'{"n": 1}', FAILING_BODY, b'{"n": 3}']
    released = Delivery.objects.get(pk=held.pk)
    assert (released.status, released.due_at, released.reason) == ("PENDING", None, f"released; {held.reason}")
    assert release([held.pk]) == []
    events = LineEvent.objects.values_list("line", "kind", "sequence", "delivery_id", "reason")
    assert [*events] == [(broker.line_of(filtered.subscriber).pk, LineEventKind.RELEASED, None, held.pk, "")]


@pytest.mark.behaviour("3.6")
def test_held_deliveries_are_released(held: Delivery, filtered: Subscription, receiver: Receiver) -> None:
    with broker.running_worker():
        wait_until(lambda: broker.statuses(filtered) == ["DELIVERED", "HELD", "DELIVERED"])
        address = f"{LIST}/{held.pk}/release"
        answer = client_of(filtered.subscriber).post(address)
        assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")
        broker.wait_until_done()
    assert receiver.bodies("/hook") == [b'{"n": 1}', b'{"n": 3}', FAILING_BODY]
    assert broker.statuses(filtered) == ["DELIVERED"] * 3


@pytest.mark.behaviour("3.6")
def test_only_own_held_deliveries_can_be_released(held: Delivery, filtered: Subscription) -> None:
    first = Delivery.objects.earliest("id")
    refused = client_of(filtered.subscriber).post(f"{LIST}/{first.pk}/release")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_held")
    for owner in (factories.subscriber(), factories.publisher()):
        answer = client_of(owner).post(f"{LIST}/{held.pk}/release")
        assert answer.status_code == (404 if owner._meta.model_name == "subscriber" else 403)
    assert client_of().post(f"{LIST}/{held.pk}/release", {}).status_code == 200
    assert client_of().post(f"{LIST}/999/release").status_code == 404


@pytest.mark.behaviour("3.6")
def test_held_deliveries_wake_no_line_and_are_counted(filtered: Subscription) -> None:
    broker.publish_bodies(filtered.event_type, FAILING_BODY, FAILING_BODY)
    line = broker.line_of(filtered.subscriber).pk
    assert lines_with_due_work() == []
    assert line_statuses([line])[line] == LineStatus(LineState.AWAITING_RELEASE, (), 2, 0, None, awaiting_release=2)
    now = client_of().get("/api/v1/subscribers/shop/line").json()
    assert (now["state"], now["waiting"], now["deferred"], now["awaiting_release"]) == ("AWAITING_RELEASE", 2, 0, 2)
    page = client_of_admin().get(reverse("admin:delivery_line_changelist")).content.decode()
    assert "AWAITING_RELEASE" in page
    broker.publish_bodies(filtered.event_type, b'{"n": 1}')
    assert line_statuses([line])[line] == LineStatus(LineState.WAITING, (), 3, 0, None, awaiting_release=2)
    broker.inactivate(filtered)
    assert line_statuses([line])[line].state == LineState.INACTIVE
    assert {*Delivery.objects.filter(status="HELD").values_list("waits_for", "due_at")} == {("RELEASE", None)}


def chosen(*deliveries: Delivery, **more: str) -> dict[str, Any]:
    return {"action": "release_chosen", "_selected_action": [one.pk for one in deliveries], **more}


@pytest.mark.behaviour("3.6")
def test_many_are_released_from_the_list_after_a_question(held: Delivery, filtered: Subscription) -> None:
    broker.publish_bodies(filtered.event_type, FAILING_BODY)
    admin, changelist = client_of_admin(), reverse("admin:delivery_delivery_changelist")
    everything = [*Delivery.objects.all()]
    asked = admin.post(changelist, chosen(*everything)).content.decode()
    assert "Release 2 deliveries?" in asked
    one = admin.post(changelist, chosen(held)).content.decode()
    assert "Release 1 delivery?" in one
    assert broker.statuses(filtered) == ["PENDING", "HELD", "PENDING", "HELD"]
    done = admin.post(changelist, chosen(*everything, confirmed="yes"), follow=True).content.decode()
    assert "Released: 2 deliveries." in done
    assert broker.statuses(filtered) == ["PENDING"] * 4


@pytest.mark.behaviour("5.12")
def test_all_that_a_filter_finds_is_counted_and_then_acted_on(
    held: Delivery, filtered: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    for _ in range(4):
        broker.publish_bodies(filtered.event_type, FAILING_BODY)
    admin = client_of_admin()
    asked = admin.get(reverse("admin:delivery_delivery_act_on_all"), {"status__exact": "HELD", "from": "1h"})
    address = asked.headers["Location"]
    listed = address.replace("act_on_all/", "")
    page = admin.get(address).text
    assert ["Release 5" in page, "Cancel 5" in page, "Resubmit" in page] == [True, True, False]
    to_release, _ = re.findall('name="state" value="([^"]+)"', page)
    broker.publish_bodies(filtered.event_type, FAILING_BODY)  # which nobody was asked about
    reader = browser_with("delivery.view_delivery")
    assert reader.post(address, {"state": to_release}).status_code == 403
    assert admin.post(address, {"state": to_release[:-1]}).status_code == 400
    with monkeypatch.context() as later:
        later.setattr(bulk, "SEAL_SECONDS", -1)
        again = admin.post(address, {"state": to_release}, follow=True)
    assert (again.redirect_chain, "Release 6" in again.text) == ([(address, 302)], True)
    assert "The count is more than an hour old." in messages_of(again)
    moments = iter(range(100))
    monkeypatch.setattr(bulk, "monotonic", lambda: float(next(moments)))
    under_way = admin.post(address, {"state": to_release}).text
    assert ("Released: 2 of 5" in under_way, "left. This page goes on by itself" in under_way) == (True, True)
    assert broker.statuses(filtered).count("HELD") == 4
    (state,) = re.findall('name="state" value="([^"]+)"', under_way)
    while (answer := admin.post(address, {"state": state})).status_code == 200:
        (state,) = re.findall('name="state" value="([^"]+)"', answer.text)
    assert (answer["Location"], broker.statuses(filtered).count("HELD")) == (listed, 1)
    assert Delivery.objects.get(status="HELD") == Delivery.objects.filter(subscription=filtered).latest("pk")
    assert "Released: 5 deliveries." in admin.get(listed).text
    assert admin.get(f"{address}&idempotency_key=%00").status_code == 400
    assert admin.get(address.partition("?")[0])["Location"].endswith("/delivery/?")


@pytest.mark.behaviour("5.12")
@pytest.mark.parametrize("since", SINCE)
def test_what_was_counted_since_a_while_ago_is_acted_on_later_too(
    held: Delivery, filtered: Subscription, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    admin = client_of_admin()
    page = admin.get(
        reverse("admin:delivery_delivery_act_on_all"), {"status__exact": "HELD", "from": since}, follow=True
    )
    to_release, _ = re.findall('name="state" value="([^"]+)"', page.text)
    later = timezone.now() + SINCE[since][1] + timedelta(minutes=1)
    monkeypatch.setattr(lists, "timezone", SimpleNamespace(now=lambda: later, localtime=timezone.localtime))
    done = admin.post(page.redirect_chain[-1][0], {"state": to_release}, follow=True)
    assert (messages_of(done), broker.statuses(filtered).count("HELD")) == ("Released: 1 delivery.", 0)


@pytest.mark.behaviour("5.12")
def test_chosen_deliveries_are_cancelled_and_resubmitted_once(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    first, second, third = Delivery.objects.order_by("pk")
    admin, changelist = client_of_admin(), reverse("admin:delivery_delivery_changelist")
    cancelled = admin.post(changelist, chosen(first, second, action="cancel_chosen", confirmed="yes"), follow=True)
    assert "Cancelled: 2 deliveries." in cancelled.text
    assert [*Delivery.objects.order_by("pk").values_list("status", flat=True)] == ["CANCELLED", "CANCELLED", "PENDING"]
    assert cancel([first.pk, third.pk], reason="unwanted") == [third.pk]
    broker.publish_numbered(wanted.event_type, 1)
    failed = Delivery.objects.get(status="PENDING")
    for status in ("IN_FLIGHT", "FAILED"):
        ended = {"closed_on": timezone.now().date(), "finished_at": timezone.now()} if status == "FAILED" else {}
        Delivery.objects.filter(pk=failed.pk).update(status=status, **ended)
    for times in (1, 0):
        again = admin.post(changelist, chosen(failed, action="resubmit_chosen", confirmed="yes"), follow=True)
        assert f"Resubmitted: {times} deliver" in again.text
    assert Delivery.objects.filter(resubmit_of=failed.pk).count() == 1
    assert bulk.RESUBMIT.do([failed.pk]) == [], "somebody else may have done it meanwhile"
    assert Delivery.objects.filter(resubmit_of=failed.pk).count() == 1


@pytest.mark.behaviour("3.6")
def test_one_is_released_from_its_page(held: Delivery, filtered: Subscription) -> None:
    admin, page = client_of_admin(), reverse("admin:delivery_delivery_change", args=[held.pk])
    shown = admin.get(page).content.decode()
    assert ("filter failed: " in shown, f"/{held.pk}/release" in shown) == (True, True)
    address = reverse("admin:delivery_delivery_release", args=[held.pk])
    assert admin.get(address, headers={"HX-Request": "true"}).status_code == 200
    assert broker.statuses(filtered) == ["PENDING", "HELD", "PENDING"]
    assert admin.post(address, {"_form_submitted": "on"}).status_code == 302
    assert broker.statuses(filtered) == ["PENDING"] * 3
    released = admin.get(page).content.decode()
    assert ("Released: 1 delivery." in released, f"/{held.pk}/release" in released) == (True, False)


@pytest.mark.behaviour("3.6")
def test_the_database_refuses_what_is_held_and_due(held: Delivery) -> None:
    for due in ({"waits_for": "TURN"}, {"waits_for": "RETRY", "due_at": held.created_at}, {"due_at": held.created_at}):
        with pytest.raises(IntegrityError, match="delivery_open_or_filed"), transaction.atomic():
            Delivery.objects.filter(pk=held.pk).update(**due)


@pytest.mark.behaviour("5.11")
@pytest.mark.parametrize("how", [Action.HOLD, Action.DEFER, Action.RETRY_LANE])
def test_what_waits_to_be_tried_again_is_tried_now(storage: None, receiver: Receiver, how: Action) -> None:
    terms: dict[str, Any] = {"max_retries": 9, "on_exhausted": OnExhausted.FAIL, "initial_delay_seconds": 600.0}
    policy = factories.retry_policy(on_server_error=how, max_delay_seconds=600.0, **terms)
    wanted = subscription(endpoint=receiver.url("/hook"), retry_policy=policy)
    receiver.on("/hook", answer(500), answer(500), answer(200))
    broker.publish_numbered(wanted.event_type, 1)
    one = Delivery.objects.get()
    address, own = f"{LIST}/{one.pk}/try-now", client_of(wanted.subscriber)
    refused = own.post(address)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_waiting")
    with broker.running_worker():
        wait_until(lambda: len(broker.attempts_of(one.pk)) == 1)
        assert own.post(address).json()["status"] == "PENDING"
        wait_until(lambda: len(broker.attempts_of(one.pk)) == 2)
        admin, page = client_of_admin(), reverse("admin:delivery_delivery_change", args=[one.pk])
        assert "Try now" in admin.get(page).content.decode()
        admin.post(reverse("admin:delivery_delivery_try_now", args=[one.pk]), {"_form_submitted": "on"})
        broker.wait_until_done()
    assert client_of(factories.subscriber()).post(address).status_code == 404


@pytest.mark.behaviour("5.11")
def test_those_in_a_pause_are_tried_now_from_the_list_after_a_question(wanted: Subscription) -> None:
    work = subscription(event_type=factories.event_type(kind=EventKind.QUEUE)).event_type
    broker.publish_numbered(wanted.event_type, 4)
    broker.publish_bodies(work, b"1")
    fresh, deferred, held, due, grouped = Delivery.objects.order_by("pk")
    later, line = timezone.now() + timedelta(hours=1), broker.line_of(wanted.subscriber)
    Delivery.objects.filter(pk=deferred.pk).update(waits_for="RETRY", due_at=later)
    QueueGroup.objects.update(waits_for="RETRY", due_at=later)
    for one, at in ((held, later), (due, timezone.now())):
        Hold.objects.create(delivery=one, line=line, reason="503", failures=1, due_at=at)
    admin, changelist = client_of_admin(), reverse("admin:delivery_delivery_changelist")
    every = (fresh, held, due, grouped, deferred)
    pages = [admin.get(reverse("admin:delivery_delivery_change", args=[one.pk])).text for one in every]
    assert ["Try now" in page for page in pages] == [False, True, False, True, True]
    asked = chosen(*every, action="try_chosen_now")
    assert "Try 3 deliveries now?" in admin.post(changelist, asked).text
    assert Delivery.objects.get(pk=deferred.pk).due_at == Hold.objects.get(delivery=held).due_at == later
    assert "Tried now: 3 deliveries." in admin.post(changelist, {**asked, "confirmed": "yes"}, follow=True).text


@pytest.mark.behaviour("5.11")
def test_what_goes_to_the_retry_line_meanwhile_is_tried_there(
    wanted: Subscription, elsewhere: psycopg.Connection[object]
) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    one, retries = Delivery.objects.get(), broker.retry_line_of(wanted.subscriber)
    elsewhere.execute("SELECT FROM delivery_line WHERE id = %s FOR NO KEY UPDATE", [one.line_id])
    with in_other_thread(lambda: try_now([one.pk])) as tried:
        elsewhere.execute(
            "UPDATE delivery_open SET line_id = %s, waits_for = 'RETRY', due_at = clock_timestamp() + interval '1 h'",
            [retries.pk],
        )
        elsewhere.commit()
    assert tried.result() == [one.pk]
    assert broker.lines_with_due_work() == [retries.pk]


@pytest.mark.behaviour("1.8")
def test_a_request_cancels_as_much_as_its_time_allows(wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    client, address = client_of(wanted.subscriber), f"/api/v1/subscriptions/{wanted.pk}/cancel-deliveries"
    with monkeypatch.context() as slowly:
        slowly.setattr(operations, "monotonic", partial(next, count(0, operations.CANCEL_SECONDS)))
        assert client.post(address).json() == {"cancelled": 3, "in_flight": 0, "complete": False}
    assert client.post(address).json() == {"cancelled": 0, "in_flight": 0, "complete": True}


@pytest.mark.behaviour("5.11")
def test_a_group_is_tried_now_as_a_whole(storage: None, receiver: Receiver) -> None:
    work = factories.event_type("Shop.Work", EventKind.QUEUE)
    for name in ("a", "b"):
        subscription(event_type=work, endpoint=receiver.url(f"/{name}"))
        receiver.on(f"/{name}", answer(500), answer(200))
    broker.publish_bodies(work, b"1")
    with broker.running_worker():
        wait_until(lambda: QueueGroup.objects.filter(waits_for="RETRY").exists())
        QueueGroup.objects.update(due_at=Now() + timedelta(hours=1))
        assert len(try_now([*Delivery.objects.values_list("pk", flat=True)])) == 2
        broker.wait_until_done()
