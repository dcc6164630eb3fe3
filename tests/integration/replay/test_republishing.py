"""A message that nobody got, published again: to whoever qualifies now, as a copy that names it."""

from typing import Any

import pytest
from django.test import Client

from delivery.models import Message
from subscriptions.models import Publisher
from tests.support import factories
from tests.support.api import EVENT, client_of, client_of_admin, problem, publish
from tests.support.receiver import Receiver
from tests.support.worker import publish_bodies, statuses, wait_until_done, working

pytestmark = [pytest.mark.behaviour("2.14"), pytest.mark.behaviour("5.8")]


@pytest.fixture
def unheard_publisher(storage: None) -> Publisher:
    """Return a publisher whose message nobody wanted."""
    factories.event_type(EVENT)
    shop = factories.publisher("shop")
    publish(client_of(shop), b'{"n": 1.0}', X_Trace="t", FILTER_STRING="blue")
    return shop


def post_republish(client: Client) -> Any:
    return client.post(
        f"/api/v1/messages/{Message.objects.earliest('id').pk}/resubmit", content_type="application/json"
    )


def test_what_was_unrouted_goes_to_whoever_qualifies_now(unheard_publisher: Publisher, receiver: Receiver) -> None:
    old = Message.objects.get()
    wanted = factories.subscription(
        event_type=old.event_type, endpoint=receiver.url("/hook"), header_filter_string="blue"
    )
    answered = post_republish(client_of(unheard_publisher))
    copy = Message.objects.latest("id")
    assert (answered.status_code, answered.json()) == (
        202,
        {"id": copy.pk, "outcome": "ROUTED", "deliveries": 1, "copy_of": old.pk},
    )
    shown = {one["id"]: one["copy_of"] for one in client_of(unheard_publisher).get("/api/v1/messages").json()["items"]}
    assert shown == {old.pk: None, copy.pk: old.pk}
    assert answered["Location"] == f"/api/v1/messages/{copy.pk}"
    assert (copy.copy_of, copy.publisher_id, bytes(copy.body)) == (old.pk, unheard_publisher.pk, b'{"n": 1.0}')
    with working():
        wait_until_done()
    (request,) = receiver.of("/hook")
    assert (request.body, request.headers["x-trace"]) == (b'{"n": 1.0}', "t")
    assert statuses(wanted) == ["DELIVERED"]
    old.refresh_from_db()
    assert (old.outcome, old.deliveries_count) == ("UNROUTED", 0)


def test_nobody_may_want_it_still(unheard_publisher: Publisher) -> None:
    assert post_republish(client_of()).json()["outcome"] == "UNROUTED"
    assert post_republish(client_of()).json()["outcome"] == "UNROUTED"
    first, *copies = Message.objects.order_by("id")
    assert [one.copy_of for one in copies] == [first.pk] * 2


def test_once_somebody_got_a_copy_it_is_not_published_again(unheard_publisher: Publisher) -> None:
    assert post_republish(client_of()).status_code == 202
    old, unrouted = Message.objects.order_by("id")
    admin, page = client_of_admin(), f"/admin/delivery/message/{old.pk}/"
    wanted = factories.subscription(event_type=old.event_type)
    assert post_republish(client_of()).json()["outcome"] == "ROUTED"
    for pk in (old.pk, unrouted.pk):
        assert problem(client_of().post(f"/api/v1/messages/{pk}/resubmit", content_type="application/json")) == (
            409,
            "not_resubmittable",
        )
    assert f"{page}resubmit/" not in admin.get(f"{page}change/").content.decode()
    assert statuses(wanted) == ["PENDING"]


@pytest.mark.behaviour("1.2")
def test_what_its_publisher_may_not_publish_any_more_is_refused(unheard_publisher: Publisher) -> None:
    unheard_publisher.event_types.add(factories.event_type("Other"))
    for client in (client_of(unheard_publisher), client_of()):
        assert problem(post_republish(client)) == (403, "event_type_not_allowed")
    page = f"/admin/delivery/message/{Message.objects.get().pk}/resubmit/"
    refused = client_of_admin().post(page, {"_form_submitted": "on"}, follow=True).content.decode()
    assert "may not publish" in refused
    assert Message.objects.count() == 1


def test_a_destination_that_was_unknown_is_tried_again(storage: None) -> None:
    event_type = factories.event_type()
    publish_bodies(event_type, b"1", destination="later")
    assert Message.objects.get().outcome == "DEAD_LETTERED"
    later = factories.subscription(factories.subscriber("later"), event_type)
    other = factories.subscription(event_type=event_type)
    assert post_republish(client_of()).json()["outcome"] == "ROUTED"
    assert (statuses(later), statuses(other)) == (["PENDING"], [])


def test_what_somebody_got_is_refused(storage: None) -> None:
    publish_bodies(factories.subscription().event_type, b"1")
    assert problem(post_republish(client_of())) == (409, "not_resubmittable")
    assert Message.objects.count() == 1


@pytest.mark.behaviour("1.2")
def test_only_its_publisher_and_management_may(unheard_publisher: Publisher) -> None:
    assert post_republish(client_of(factories.publisher())).status_code == 404
    assert post_republish(client_of(factories.subscriber())).status_code == 403
    assert post_republish(client_of(unheard_publisher)).status_code == 202


def test_in_the_admin_it_is_published_again_from_its_page(unheard_publisher: Publisher, receiver: Receiver) -> None:
    admin, old = client_of_admin(), Message.objects.get()
    page = f"/admin/delivery/message/{old.pk}/"
    assert f"{page}resubmit/" in admin.get(f"{page}change/").content.decode()
    factories.subscription(event_type=old.event_type, endpoint=receiver.url("/hook"))
    shown = admin.post(f"{page}resubmit/", {"_form_submitted": "on"}, follow=True).content.decode()
    copy = Message.objects.latest("id")
    assert (copy.copy_of, copy.outcome) == (old.pk, "ROUTED")
    assert f"This message is a copy of {old.pk}." in shown
    assert f'href="{page}change/"' in shown
    taken = f"/admin/delivery/message/{copy.pk}/"
    assert f"{taken}resubmit/" not in admin.get(f"{taken}change/").content.decode()
    refused = admin.post(f"{taken}resubmit/", {"_form_submitted": "on"}, follow=True).content.decode()
    assert "Somebody got it" in refused
    assert Message.objects.count() == 2
