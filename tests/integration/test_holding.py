"""What is HELD because its filter failed, and releasing it: over the API, in the admin, and what is sent then."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import lines_with_due_work, still_due
from delivery.models import UNTIL_RELEASED, Delivery, LineEvent, LineEventKind, Message
from delivery.operations import cancel_deliveries_of, release
from delivery.status.line_status import LineState, LineStatus, line_statuses
from subscriptions.models import Subscription
from tests import factories
from tests.clients import client_of, client_of_admin
from tests.driving import hand_of, inactivate, line_of, publish_bodies, statuses, wait_until_done, working
from tests.publishing import EVENT, publish
from tests.receiver import Receiver, wait_until

POSITIVE = "$$->'Body'->'n' > '0'"
UNREADABLE = b'{"n": 1e200000}'
"""JSON all the same, and more than a decimal of PostgreSQL can hold."""
LIST = "/api/v1/deliveries"


@pytest.fixture
def wanted(storage: None, receiver: Receiver) -> Subscription:
    return factories.subscription(
        factories.subscriber("shop"), factories.event_type(EVENT), receiver.url("/hook"), filter=POSITIVE
    )


@pytest.fixture
def held(wanted: Subscription) -> Delivery:
    """Return the one that is held, between two that are not."""
    publish_bodies(wanted.event_type, b'{"n": 1}', UNREADABLE, b'{"n": 3}')
    return Delivery.objects.get(status="HELD")


@pytest.mark.behaviour("3.6")
def test_a_filter_that_fails_holds_the_delivery_and_loses_nothing(wanted: Subscription) -> None:
    other = factories.subscription(event_type=wanted.event_type)
    answer = publish(client_of(factories.publisher()), UNREADABLE)
    assert (answer.status_code, answer.json()["outcome"], answer.json()["deliveries"]) == (202, "ROUTED", 2)
    assert Message.objects.get().deliveries_count == 2
    assert (statuses(wanted), statuses(other)) == (["HELD"], ["PENDING"])
    shown = client_of(wanted.subscriber).get(LIST, {"status": "HELD"}).json()["items"]
    assert [(one["status"], one["due_at"], one["reason"][:15]) for one in shown] == [("HELD", None, "filter failed: ")]
    assert client_of().get(LIST, {"status": "HELD"}).json()["items"] == shown


@pytest.mark.behaviour("3.6", "4.10")
def test_what_is_released_is_sent_in_order_of_id(held: Delivery, wanted: Subscription) -> None:
    (taken,) = claim([line_of(wanted.subscriber).pk], worker="w")
    assert [one.content.body for one in hand_of(taken)] == [b'{"n": 1}', b'{"n": 3}']
    assert release([held.pk]) == [held.pk]
    assert [one.content.body for one in hand_of(taken)] == [b'{"n": 1}', UNREADABLE, b'{"n": 3}']
    released = Delivery.objects.get(pk=held.pk)
    assert (released.status, released.due_at, released.reason) == ("PENDING", None, f"released; {held.reason}")
    assert release([held.pk]) == []
    told = LineEvent.objects.values_list("line", "kind", "sequence", "delivery_id", "reason")
    assert [*told] == [(line_of(wanted.subscriber).pk, LineEventKind.RELEASED, None, held.pk, "")]


@pytest.mark.behaviour("3.6")
def test_what_is_held_holds_nobody_up_and_goes_out_once_it_is_released(
    held: Delivery, wanted: Subscription, receiver: Receiver
) -> None:
    with working():
        wait_until(lambda: statuses(wanted) == ["DELIVERED", "HELD", "DELIVERED"])
        address = f"{LIST}/{held.pk}/release"
        answer = client_of(wanted.subscriber).post(address, content_type="application/json")
        assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")
        wait_until_done()
    assert receiver.bodies("/hook") == [b'{"n": 1}', b'{"n": 3}', UNREADABLE]
    assert statuses(wanted) == ["DELIVERED"] * 3


@pytest.mark.behaviour("3.6")
def test_only_what_is_held_and_one_s_own_can_be_released(held: Delivery, wanted: Subscription) -> None:
    first = Delivery.objects.earliest("id")
    refused = client_of(wanted.subscriber).post(f"{LIST}/{first.pk}/release", content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_held")
    for owner in (factories.subscriber(), factories.publisher()):
        answer = client_of(owner).post(f"{LIST}/{held.pk}/release", content_type="application/json")
        assert answer.status_code == (404 if owner._meta.model_name == "subscriber" else 403)
    assert client_of().post(f"{LIST}/{held.pk}/release", {}, "application/json").status_code == 200
    assert client_of().post(f"{LIST}/999/release", content_type="application/json").status_code == 404


@pytest.mark.behaviour("1.8", "3.6")
def test_what_is_held_is_cancelled_with_the_rest(held: Delivery, wanted: Subscription) -> None:
    assert cancel_deliveries_of(wanted.pk, reason="unwanted") == (3, 0)
    assert statuses(wanted) == ["CANCELLED"] * 3


@pytest.mark.behaviour("3.6")
def test_what_is_held_wakes_no_line_and_is_counted_in_its_standing(wanted: Subscription) -> None:
    publish_bodies(wanted.event_type, UNREADABLE, UNREADABLE)
    line = line_of(wanted.subscriber).pk
    assert (lines_with_due_work(), still_due([line])) == ([], [])
    assert line_statuses([line])[line] == LineStatus(LineState.AWAITING_RELEASE, None, 2, 0, None, awaiting_release=2)
    now = client_of().get("/api/v1/subscribers/shop/line").json()
    assert (now["state"], now["waiting"], now["set_aside"], now["awaiting_release"]) == ("AWAITING_RELEASE", 2, 0, 2)
    page = client_of_admin().get(reverse("admin:delivery_line_changelist")).content.decode()
    assert "AWAITING_RELEASE" in page
    publish_bodies(wanted.event_type, b'{"n": 1}')
    assert line_statuses([line])[line] == LineStatus(LineState.WAITING, None, 3, 0, None, awaiting_release=2)
    inactivate(wanted)
    assert line_statuses([line])[line].state == LineState.INACTIVE
    assert {*Delivery.objects.filter(status="HELD").values_list("due_at", flat=True)} == {UNTIL_RELEASED}


def chosen(*deliveries: Delivery, **more: str) -> dict[str, Any]:
    return {"action": "release_chosen", "_selected_action": [one.pk for one in deliveries], **more}


@pytest.mark.behaviour("3.6")
def test_many_are_released_from_the_list_after_a_question(held: Delivery, wanted: Subscription) -> None:
    publish_bodies(wanted.event_type, UNREADABLE)
    admin, changelist = client_of_admin(), reverse("admin:delivery_delivery_changelist")
    everything = [*Delivery.objects.all()]
    asked = admin.post(changelist, chosen(*everything)).content.decode()
    assert "Release these 2 HELD deliveries?" in asked
    one = admin.post(changelist, chosen(held)).content.decode()
    assert "Release this HELD delivery?" in one
    assert statuses(wanted) == ["PENDING", "HELD", "PENDING", "HELD"]
    done = admin.post(changelist, chosen(*everything, confirmed="yes"), follow=True).content.decode()
    assert "Released 2 deliveries." in done
    assert statuses(wanted) == ["PENDING"] * 4


@pytest.mark.behaviour("3.6")
def test_one_is_released_from_its_page(held: Delivery, wanted: Subscription) -> None:
    admin, page = client_of_admin(), reverse("admin:delivery_delivery_change", args=[held.pk])
    shown = admin.get(page).content.decode()
    assert ("filter failed: " in shown, f"/{held.pk}/release" in shown) == (True, True)
    address = reverse("admin:delivery_delivery_release", args=[held.pk])
    assert admin.get(address, headers={"HX-Request": "true"}).status_code == 200
    assert statuses(wanted) == ["PENDING", "HELD", "PENDING"]
    assert admin.post(address, {"_form_submitted": "on"}).status_code == 302
    assert statuses(wanted) == ["PENDING"] * 3
    released = admin.get(page).content.decode()
    assert ("Released 1 delivery." in released, f"/{held.pk}/release" in released) == (True, False)


def test_whoever_may_only_look_cannot_release(held: Delivery, wanted: Subscription) -> None:
    looker = User.objects.create(username="looker", is_staff=True)
    looker.user_permissions.add(Permission.objects.get(codename="view_delivery"))
    browser = Client()
    browser.force_login(looker)
    assert "release_chosen" not in browser.get(reverse("admin:delivery_delivery_changelist")).content.decode()
    assert browser.post(reverse("admin:delivery_delivery_release", args=[held.pk])).status_code == 403
    assert statuses(wanted) == ["PENDING", "HELD", "PENDING"]


@pytest.mark.behaviour("3.6")
def test_the_database_refuses_what_is_held_and_due(held: Delivery) -> None:
    for due_at in (None, held.created_at):
        with pytest.raises(IntegrityError, match="delivery_open_or_filed"), transaction.atomic():
            Delivery.objects.filter(pk=held.pk).update(due_at=due_at)
