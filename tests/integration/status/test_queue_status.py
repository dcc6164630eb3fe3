"""What people see of QUEUE messages: their groups, and how the senders stand."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.dateparse import parse_datetime

from delivery.dispatch.claim import claim
from delivery.maintenance.partitions import today
from delivery.models import Delivery, Lane, Line, Message, PageRead, QueueGroup
from delivery.operations import cancel_deliveries_of
from delivery.status.line_status import MAX_COUNTED, LineState, LineStatus, line_statuses
from delivery.status.queue_status import GroupState, groups_of
from subscriptions.models import EventKind, EventType, Subscription
from tests.support import factories
from tests.support.admin import change_page
from tests.support.api import client_of
from tests.support.broker import inactivate, publish_bodies

pytestmark = pytest.mark.django_db

LATER = datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC)
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OPEN = "$$->'Body'->>'state' = 'open'"


@pytest.fixture
def event_type() -> EventType:
    return factories.event_type("Shop.Order.Placed", EventKind.QUEUE)


@pytest.fixture
def group(event_type: EventType) -> list[Subscription]:
    """Three like subscriptions, with a message that waits for them."""
    made = [
        factories.subscription(factories.subscriber(name), event_type, f"http://{name}.example.com/secret")
        for name in ("press", "mill", "saw")
    ]
    publish_bodies(event_type, b'{"state": "open"}')
    return made


def end(delivery: Delivery, status: str) -> None:
    Delivery.objects.filter(pk=delivery.pk).update(
        status="IN_FLIGHT" if delivery.status == "PENDING" else delivery.status, attempts=1
    )
    Delivery.objects.filter(pk=delivery.pk).update(status=status, closed_on=today(), finished_at=SINCE)


def line_of_the_group() -> Line:
    return Line.objects.get(sender=Message.objects.get().pk % 5)


def message() -> dict[str, Any]:
    shown: dict[str, Any] = client_of().get(f"/api/v1/messages/{Message.objects.get().pk}").json()
    return shown


@pytest.mark.behaviour("6.4")
def test_a_message_shows_who_took_it_and_who_was_not_needed(
    admin: Client, group: list[Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = Delivery.objects.oldest_first()
    end(first, "REDUNDANT")
    end(second, "DELIVERED")
    end(third, "REJECTED")
    QueueGroup.objects.all().delete()

    shown = message()

    ended = {"state": "TAKEN", "taken_by": second.pk, "attempts": 3, "cycles": None, "next_try_at": None}
    assert shown["groups"] == [{"id": first.pk, "delivery_ids": [first.pk, second.pk, third.pk], **ended}]
    told = [(one["status"], one["group_id"]) for one in shown["deliveries"]]
    assert told == [(status, first.pk) for status in ("REDUNDANT", "DELIVERED", "REJECTED")]
    text = change_page(admin, Message.objects.get())
    assert f"grp_{first.pk}" in text
    assert "TAKEN" in text
    assert "mill.example.com" in text
    assert f"?q=grp_{first.pk}" in text
    assert "REDUNDANT" in change_page(admin, second)
    monkeypatch.setattr("delivery.api.messages.DELIVERIES_SHOWN", 1)
    monkeypatch.setattr("delivery.admin.queue_groups.MAX_SHOWN", 1)
    assert ([one["id"] for one in message()["deliveries"]], message()["groups"][0]["taken_by"]) == (
        [second.pk],
        second.pk,
    )
    assert f"dlv_{second.pk}" in change_page(admin, first)


@pytest.mark.behaviour("6.5")
def test_a_message_shows_failed_cycles_and_the_next_try(admin: Client, group: list[Subscription]) -> None:
    QueueGroup.objects.update(waits_for="RETRY", due_at=LATER, cycles=7)
    (shown,) = message()["groups"]
    assert (shown["state"], shown["cycles"], shown["taken_by"]) == ("DEFERRED", 7, None)
    listed = client_of().get("/api/v1/deliveries").json()["items"]
    assert {parse_datetime(at) for at in (shown["next_try_at"], *(one["due_at"] for one in listed))} == {LATER}
    for text in (change_page(admin, Message.objects.get()), change_page(admin, QueueGroup.objects.get())):
        assert "2999-01-02 03:04:05" in text


@pytest.mark.parametrize(
    ("waits_for", "due_at", "is_late"),
    [("TURN", None, True), ("RETRY", SINCE, True), ("RETRY", LATER, False), ("START", LATER, False)],
)
def test_readyz_names_a_sender_that_nobody_runs_and_none_whose_jobs_are_not_due(
    group: list[Subscription], waits_for: str, due_at: datetime | None, *, is_late: bool
) -> None:
    QueueGroup.objects.update(waits_for=waits_for, due_at=due_at, created_at=SINCE)
    late = f"nobody sends what waits in {line_of_the_group().queue}"
    assert Client().get("/readyz").json()["senders"] == (late if is_late else "ok")


@pytest.mark.parametrize(
    ("waits_for", "due_at", "status", "state"),
    [
        ("TURN", None, "PENDING", GroupState.WAITING),
        ("TURN", None, "IN_FLIGHT", GroupState.IN_FLIGHT),
        ("RETRY", LATER, "IN_FLIGHT", GroupState.IN_FLIGHT),
        ("RETRY", LATER, "PENDING", GroupState.DEFERRED),
        ("START", LATER, "PENDING", GroupState.DELAYED),
        ("SUBSCRIPTION", None, "PENDING", GroupState.INACTIVE),
        ("RELEASE", None, "PENDING", GroupState.HELD),
    ],
)
def test_a_group_shows_its_state(
    group: list[Subscription], waits_for: str, due_at: datetime | None, status: str, state: GroupState
) -> None:
    QueueGroup.objects.update(waits_for=waits_for, due_at=due_at)
    Delivery.objects.filter(subscription=group[1]).update(status=status)
    (standing,) = groups_of(Delivery.objects.all())
    waits = state in {GroupState.DEFERRED, GroupState.DELAYED}
    assert (standing.state, standing.next_try_at) == (state, LATER if waits else None)


def test_a_group_without_a_winner_has_ended(group: list[Subscription]) -> None:
    for one in group:
        cancel_deliveries_of(one.pk, reason="unwanted")
    (standing,) = groups_of(Delivery.objects.all())
    assert (standing.state, standing.taken_by, standing.attempts) == (GroupState.ENDED, None, 0)


def test_a_group_is_found_by_the_id_that_its_endpoints_received(admin: Client, group: list[Subscription]) -> None:
    waiting, deliveries = QueueGroup.objects.get(), [*Delivery.objects.order_by("-id")]
    publish_bodies(group[0].event_type, b"1")
    for name, found in (("queuegroup", [waiting]), ("delivery", deliveries)):
        answer = admin.get(reverse(f"admin:delivery_{name}_changelist"), {"q": f" grp_{waiting.pk}"})
        assert list(answer.context["cl"].result_list) == found
    for text in ("grp_", f"grp_{deliveries[0].pk}", "grp_x", f"grp_{10**17}"):
        answer = admin.get(reverse("admin:delivery_delivery_changelist"), {"q": text})
        assert list(answer.context["cl"].result_list) == []


def test_the_deliveries_of_a_group_are_listed_for_keys_that_see_them(group: list[Subscription]) -> None:
    waiting, deliveries = QueueGroup.objects.get(), [*Delivery.objects.order_by("-id")]
    publish_bodies(group[0].event_type, b"1")
    address = f"/api/v1/deliveries?group={waiting.pk}"
    everything = client_of().get(address).json()["items"]
    assert [one["id"] for one in everything] == [one.pk for one in deliveries]
    for one in group:
        (own,) = client_of(one.subscriber).get(address).json()["items"]
        assert own["subscription_id"] == one.pk
    assert client_of().get(f"/api/v1/deliveries?group={deliveries[0].pk}").json()["items"] == []
    assert client_of().get(f"{address}&status=DELIVERED").json()["items"] == []


def test_a_delivery_for_topic_is_in_no_group(admin: Client) -> None:
    one = factories.subscription()
    publish_bodies(one.event_type, b"{}")
    delivery = Delivery.objects.get()
    assert client_of().get(f"/api/v1/deliveries/{delivery.pk}").json()["group_id"] is None
    assert message()["groups"] == []
    assert "grp_" not in change_page(admin, delivery) + change_page(admin, Message.objects.get())


@pytest.mark.behaviour("1.7")
def test_a_parked_delivery_has_no_next_try(group: list[Subscription]) -> None:
    Delivery.objects.update(waits_for="SUBSCRIPTION")
    shown = client_of().get("/api/v1/deliveries").json()["items"]
    assert {one["due_at"] for one in shown} == {None}


@pytest.mark.behaviour("2.2")
def test_why_a_queue_message_is_for_a_subscription_is_explained(group: list[Subscription]) -> None:
    factories.subscription(event_type=group[0].event_type, filter=OPEN.replace("open", "shut"))
    found = client_of().get(f"/api/v1/messages/{Message.objects.get().pk}/explanation").json()["subscriptions"]
    assert [one["qualifies"] for one in found] == [True, True, True, False]
    assert not any("TOPIC" in one["why"] for one in found)


def sender() -> dict[str, Any]:
    """Return what is told of the one sender that has the message."""
    at = Message.objects.get().pk % 5
    shown: dict[str, Any] = client_of().get("/api/v1/senders").json()[at]
    assert shown.pop("sender") == at
    return shown


@pytest.mark.behaviour("6.2")
def test_senders_show_their_waiting_groups(group: list[Subscription]) -> None:
    publish_bodies(factories.event_type(kind=EventKind.QUEUE), b"{}")
    Message.objects.filter(outcome="UNROUTED").delete()

    shown = sender()

    assert parse_datetime(shown.pop("oldest_since")) == QueueGroup.objects.get().created_at
    nobody = {"in_flight": 0, "worker": "", "lease_until": None}
    counts = {"waiting": 1, "deferred": 0, "deferred_due_at": None, "delayed": 0, "awaiting_release": 0}
    assert shown == {"queue": f"queue.{Message.objects.get().pk % 5}", "state": "WAITING", **counts, **nobody}
    others = [one for one in client_of().get("/api/v1/senders").json() if one["queue"] != shown["queue"]]
    assert [(one["state"], one["waiting"], one["oldest_since"]) for one in others] == [("IDLE", 0, None)] * 4


@pytest.mark.behaviour("6.6")
def test_a_claimed_sender_shows_its_worker_and_requests_in_flight(admin: Client, group: list[Subscription]) -> None:
    line = line_of_the_group()
    claim([line.pk], worker="worker-7")
    PageRead.objects.all().delete()
    for _ in range(2):
        PageRead.objects.create(line=line, epoch=1, delivery_ids=QueueGroup.objects.get().delivery_ids)
    Delivery.objects.filter(subscription=group[0]).update(status="IN_FLIGHT")
    shown = sender()
    assert (shown["state"], shown["worker"], shown["in_flight"]) == ("SENDING", "worker-7", 1)
    assert "worker-7" in change_page(admin, line)


@pytest.mark.parametrize(
    ("waits_for", "due_at", "standing"),
    [
        ("TURN", None, LineStatus(LineState.WAITING, (), 1, 0, None)),
        ("RETRY", SINCE, LineStatus(LineState.WAITING, (), 1, 1, SINCE)),
        ("START", SINCE, LineStatus(LineState.WAITING, (), 1, 0, None, delayed=1)),
        ("START", LATER, LineStatus(LineState.DELAYED, (), 1, 0, None, delayed=1)),
        ("SUBSCRIPTION", None, LineStatus(LineState.INACTIVE, (), 1, 0, None)),
        ("RELEASE", None, LineStatus(LineState.AWAITING_RELEASE, (), 1, 0, None, 1)),
    ],
)
def test_the_state_of_a_sender_follows_from_its_groups(
    admin: Client, group: list[Subscription], waits_for: str, due_at: datetime | None, standing: LineStatus
) -> None:
    QueueGroup.objects.update(waits_for=waits_for, due_at=due_at)
    line = line_of_the_group()
    assert line_statuses([line.pk])[line.pk] == standing
    assert (sender()["oldest_since"] is None) == (standing.state != LineState.WAITING)
    assert str(standing.state) in change_page(admin, line)


def test_no_more_groups_are_counted_than_needed(group: list[Subscription]) -> None:
    one = QueueGroup.objects.get()
    fields: dict[str, Any] = {"line_id": one.line_id, "delivery_ids": [], "size": 1, "waits_for": "RETRY"}
    QueueGroup.objects.bulk_create(
        QueueGroup(id=one.pk + 10 + n, due_at=LATER + timedelta(days=n), **fields) for n in range(MAX_COUNTED + 1)
    )
    standing = line_statuses([one.line_id or 0])[one.line_id or 0]
    assert (standing.waiting, standing.deferred, standing.deferred_due_at) == (MAX_COUNTED, MAX_COUNTED, LATER)


def test_the_list_of_lines_has_them_of_every_owner(admin: Client, group: list[Subscription]) -> None:
    lines = reverse("admin:delivery_line_changelist")
    everything = admin.get(lines)
    assert len(everything.context["cl"].result_list) == 3 + 5
    assert "queue sender 3" in everything.content.decode()
    senders = admin.get(lines, {"lane__exact": Lane.QUEUE}).context["cl"].result_list
    assert sorted(one.sender for one in senders) == [0, 1, 2, 3, 4]
    (found,) = admin.get(lines, {"q": "queue.3"}).context["cl"].result_list
    assert found.sender == 3
    of_line = {"line__id__exact": line_of_the_group().pk}
    assert len(admin.get(reverse("admin:delivery_queuegroup_changelist"), of_line).context["cl"].result_list) == 1
    assert len(admin.get(reverse("admin:delivery_delivery_changelist"), of_line).context["cl"].result_list) == 3


def test_inactive_subscriptions_keep_their_deliveries_readable(admin: Client, group: list[Subscription]) -> None:
    inactivate(group[0])
    address = reverse("admin:subscriptions_subscription_change", args=[group[0].pk])
    assert admin.get(address).status_code == 200
    assert "queue sender" in change_page(admin, Delivery.objects.earliest("id"))
