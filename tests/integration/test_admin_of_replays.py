"""Sending again in the admin: one delivery with its body or another; many, after they were counted."""

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from delivery.models import Delivery, Message, Replay
from subscriptions.models import Status, Subscription
from tests import factories
from tests.clients import client_of_admin
from tests.driving import publish_bodies, wait_until_done, working
from tests.publishing import EVENT
from tests.receiver import Receiver, answer

pytestmark = pytest.mark.behaviour("5.8")

BODY = b'{\n "n": 1\n}'


@pytest.fixture
def shop(storage: None, receiver: Receiver) -> Subscription:
    return factories.subscription(factories.subscriber("shop"), factories.event_type(EVENT), receiver.url("/hook"))


@pytest.fixture
def rejected(shop: Subscription, receiver: Receiver) -> Delivery:
    receiver.on("/hook", answer(404), answer(200))
    publish_bodies(shop.event_type, BODY)
    with working():
        wait_until_done()
    return Delivery.objects.get()


def form_of(delivery: Delivery) -> str:
    return reverse("admin:delivery_delivery_resubmission", args=[delivery.pk])


def browser_of(*permissions: str) -> Client:
    user = User.objects.create(username="somebody", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    browser = Client()
    browser.force_login(user)
    return browser


def test_one_is_resubmitted_from_its_page_as_it_was(rejected: Delivery) -> None:
    admin, page = client_of_admin(), reverse("admin:delivery_delivery_change", args=[rejected.pk])
    assert f"/{rejected.pk}/resubmit" in admin.get(page).content.decode()
    shown = admin.get(form_of(rejected)).content.decode()
    assert "&quot;n&quot;: 1" in shown
    assert Delivery.objects.count() == 1
    # As a browser sends it: other ends of lines.
    sent = admin.post(form_of(rejected), {"body": BODY.decode().replace("\n", "\r\n")}, follow=True)
    assert f"This delivery repeats {rejected.pk}." in sent.content.decode()
    new = Delivery.objects.latest("id")
    assert (new.resubmit_of, new.message_id) == (rejected.pk, rejected.message_id)
    assert "resubmit" not in admin.get(reverse("admin:delivery_delivery_change", args=[new.pk])).content.decode()


def test_an_edited_body_is_sent_and_a_wrong_one_refused(rejected: Delivery, receiver: Receiver) -> None:
    admin = client_of_admin()
    assert "The body is not JSON" in admin.post(form_of(rejected), {"body": "{"}).content.decode()
    assert Delivery.objects.count() == 1
    admin.post(form_of(rejected), {"body": "[\r\n2]"})
    assert [bytes(one.body) for one in Message.objects.order_by("id")] == [BODY, b"[\n2]"]
    with working():
        wait_until_done()
    assert receiver.bodies("/hook") == [BODY, b"[\n2]"]


def test_what_is_no_text_is_sent_as_it_is(shop: Subscription, receiver: Receiver) -> None:
    receiver.on("/bytes", answer(404))
    binary = factories.event_type(content_type="image/png")
    factories.subscription(shop.subscriber, binary, receiver.url("/bytes"))
    publish_bodies(binary, b"\xff\xfe")
    with working():
        wait_until_done()
    client_of_admin().post(form_of(Delivery.objects.get()), {"body": ""})
    assert Message.objects.count() == 1
    assert Delivery.objects.count() == 2


def test_it_takes_the_permission_and_the_body_is_for_those_who_may_see_it(rejected: Delivery) -> None:
    looker = browser_of("view_delivery")
    assert looker.get(form_of(rejected)).status_code == looker.post(form_of(rejected), {"body": "3"}).status_code == 403
    assert Delivery.objects.count() == 1
    User.objects.all().delete()
    sender = browser_of("view_delivery", "replay")
    assert "&quot;n&quot;: 1" not in sender.get(form_of(rejected)).content.decode()
    assert sender.post(form_of(rejected), {"body": ""}).status_code == 302
    assert Message.objects.count() == 1
    assert Delivery.objects.count() == 2


ALL = {"statuses": ["REJECTED", "FAILED"]}


def test_many_are_counted_first_and_made_again_once_that_is_confirmed(rejected: Delivery, shop: Subscription) -> None:
    admin, address = client_of_admin(), reverse("admin:delivery_replay_new_replay")
    assert address in admin.get(reverse("admin:delivery_replay_changelist")).content.decode()
    assert "Count" in admin.get(address).content.decode()
    asked = {"subscriber": "shop", "pace": "5", **ALL}
    assert "1 delivery: 1 REJECTED." in admin.post(address, asked).content.decode()
    assert not Replay.objects.exists()
    begun = admin.post(address, {**asked, "confirmed": "yes"}, follow=True).content.decode()
    assert "Begun, of 1." in begun
    replay = Replay.objects.get()
    assert (replay.total, replay.pace, replay.created_by, replay.subscription_id) == (1, 5, "admin", None)
    assert "0 of 1" in admin.get(reverse("admin:delivery_replay_changelist")).content.decode()


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({}, "Give a subscription or a subscriber."),
        ({"subscription": "1", "subscriber": "shop"}, "Give a subscription or a subscriber."),
        ({"subscriber": "nobody"}, "There is none of it."),
        ({"subscriber": "shop", "event_type": "Unknown"}, "There is no such event type."),
        ({"subscriber": "shop", "begin": "2026-01-02", "end": "2026-01-01"}, "not after the beginning"),
        ({"subscriber": "shop", "statuses": []}, "required"),
    ],
)
def test_what_makes_no_selection_is_said(shop: Subscription, asked: dict[str, str], text: str) -> None:
    address = reverse("admin:delivery_replay_new_replay")
    assert text in client_of_admin().post(address, {**ALL, **asked, "confirmed": "yes"}).content.decode()
    assert not Replay.objects.exists()


def test_one_under_way_is_cancelled_from_its_page(rejected: Delivery, shop: Subscription) -> None:
    admin = client_of_admin()
    admin.post(reverse("admin:delivery_replay_new_replay"), {"subscription": str(shop.pk), **ALL, "confirmed": "yes"})
    replay = Replay.objects.get()
    page = reverse("admin:delivery_replay_change", args=[replay.pk])
    assert f"/{replay.pk}/cancel" in admin.get(page).content.decode()
    admin.post(reverse("admin:delivery_replay_cancel", args=[replay.pk]), {"_form_submitted": "on"})
    replay.refresh_from_db()
    assert (replay.state, replay.reason) == ("CANCELLED", "cancelled by admin")
    assert f"/{replay.pk}/cancel" not in admin.get(page).content.decode()


def test_whoever_may_only_look_begins_and_cancels_nothing(shop: Subscription) -> None:
    looker = browser_of("view_replay")
    address = reverse("admin:delivery_replay_new_replay")
    assert address not in looker.get(reverse("admin:delivery_replay_changelist")).content.decode()
    assert looker.post(address, {"subscriber": "shop", **ALL, "confirmed": "yes"}).status_code == 403
    assert not Replay.objects.exists()


def test_a_new_subscription_is_backfilled_from_its_page_after_a_question(
    rejected: Delivery, shop: Subscription
) -> None:
    admin = client_of_admin()
    late = factories.subscription(event_type=shop.event_type, status=Status.INACTIVE)
    address = reverse("admin:subscriptions_subscription_backfill", args=[late.pk])
    pages = [reverse("admin:subscriptions_subscription_change", args=[one.pk]) for one in (late, shop)]
    assert ["/backfill" in admin.get(page).content.decode() for page in pages] == [True, False]
    assert "There are 1 to look at" in admin.get(address).content.decode()
    assert not Replay.objects.exists()
    begun = admin.post(address, follow=True).content.decode()
    replay = Replay.objects.get()
    assert (replay.kind, replay.state, replay.total, replay.created_by) == ("BACKFILL", "RESERVED", 1, "admin")
    assert f"/{replay.pk}/cancel" in begun
    again = admin.post(address, follow=True).content.decode()
    assert "A backfill is for an INACTIVE subscription" in again
    admin.post(reverse("admin:delivery_replay_cancel", args=[replay.pk]), {"_form_submitted": "on"})
    late.refresh_from_db()
    assert (late.status, late.paused_by) == (Status.INACTIVE, "")
    looker = browser_of("view_subscription", "change_subscription")
    assert looker.post(address).status_code == 403
    assert Replay.objects.count() == 1
