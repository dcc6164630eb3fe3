"""Resubmit a delivery, and publish a message again (contract 2.14, 5.8)."""

import base64
import contextlib
import logging
from typing import Any

import psycopg
import pytest
from django.db import transaction
from django.test import Client
from structlog.testing import capture_logs

from broker_project.stack.load.receiver import Receiver
from delivery.maintenance.partitions import leaf_of, today
from delivery.models import Delivery, Lane, Message, QueueGroup
from delivery.publish import publish as publishing
from delivery.publish.errors import PayloadTooLarge
from delivery.publish.publish import publish_terms
from delivery.publish.store import Accepted
from delivery.replay.backfill_job import begin
from delivery.replay.resubmit import Edit, resubmit
from subscriptions.models import EventKind, Publisher, Status, Subscription
from tests.support import broker, factories
from tests.support.api import EVENT, client_of, client_of_admin, problem_of, publish
from tests.support.database import in_parallel
from tests.support.replays import BODY, end_open, republish

pytestmark = pytest.mark.behaviour("5.8")

LIST = "/api/v1/deliveries"
MOST = 1_000_000


def post_resubmit(client: Client, delivery: Delivery, **edit: Any) -> Any:
    return client.post(f"{LIST}/{delivery.pk}/resubmit", edit)


def everything_of(delivery: Delivery) -> dict[str, Any]:
    return {**Delivery.objects.filter(pk=delivery.pk).values().get()}


def test_a_resubmission_names_the_old_delivery(rejected: Delivery, shop: Subscription, receiver: Receiver) -> None:
    old = everything_of(rejected)
    answered = post_resubmit(client_of(shop.subscriber), rejected)
    assert (answered.status_code, answered.json()["status"]) == (201, "PENDING")
    new = Delivery.objects.get(pk=answered.json()["id"])
    assert answered["Location"] == f"{LIST}/{new.pk}"
    assert (new.resubmit_of, new.message_id, new.subscription_id) == (rejected.pk, rejected.message_id, shop.pk)
    broker.run_worker_until_done()
    (sent,) = receiver.of("/hook")
    assert (sent.body, sent.delivery_id, sent.sequence) == (BODY, new.pk, 1)
    assert (everything_of(rejected), broker.statuses(shop)) == (old, ["REJECTED", "DELIVERED"])


def test_each_resubmission_is_behind_what_waits(rejected: Delivery, shop: Subscription, receiver: Receiver) -> None:
    broker.publish_bodies(shop.event_type, b"2")
    first, second = (post_resubmit(client_of(), rejected).json()["id"] for _ in range(2))
    assert first != second
    broker.publish_bodies(shop.event_type, b"3")
    broker.run_worker_until_done()
    assert receiver.bodies("/hook") == [b"2", BODY, BODY, b"3"]


def test_an_edited_body_is_sent_and_stored_as_a_message_of_its_own(rejected: Delivery, receiver: Receiver) -> None:
    answered = post_resubmit(client_of(), rejected, body='{"n": 2.0}')
    assert answered.status_code == 201
    copy = Message.objects.get(pk=answered.json()["message_id"])
    stored = (copy.copy_of, bytes(copy.body), copy.size, copy.publisher_id)
    assert stored == (rejected.message_id, b'{"n": 2.0}', 10, None)
    assert bytes(Message.objects.earliest("id").body) == BODY
    broker.run_worker_until_done()
    assert receiver.bodies("/hook") == [b'{"n": 2.0}']


@pytest.mark.behaviour("2.12")
@pytest.mark.parametrize("specversion", ["1.0", None])
def test_an_edited_cloud_event_is_another(shop: Subscription, receiver: Receiver, specversion: str | None) -> None:
    version = {"ce-specversion": specversion} if specversion else {}
    publish(client_of(), b"1", **version, ce_id="caf%C3%A9", ce_source="/till", ce_type=EVENT)
    end_open()
    old = Delivery.objects.get()
    for edit in ({}, {"body": "2"}):
        post_resubmit(client_of(), old, **edit)
    broker.run_worker_until_done()
    copy = Message.objects.latest("id")
    same, edited = "caf%C3%A9", f"caf%C3%A9~{copy.pk}" if specversion else "caf%C3%A9"
    assert [request.headers["ce-id"] for request in receiver.of("/hook")] == [same, edited]
    assert {request.headers["ce-source"] for request in receiver.of("/hook")} == {"/till"}


def test_an_edited_body_may_be_of_another_content_type(shop: Subscription, receiver: Receiver) -> None:
    broker.publish_bodies(shop.event_type, b"1", headers=[("content-type", "application/json"), ("X-Trace", "t")])
    end_open()
    edit = {"body_base64": base64.b64encode(b"2").decode(), "content_type": "application/json; v=2"}
    assert post_resubmit(client_of(), Delivery.objects.get(), **edit).status_code == 201
    broker.run_worker_until_done()
    (last,) = receiver.of("/hook")
    assert (last.body, last.headers["content-type"], last.headers["x-trace"]) == (b"2", "application/json; v=2", "t")


@pytest.mark.parametrize(
    ("edit", "answered"),
    [
        ({"body": "{"}, (400, "malformed_payload")),
        ({"body": '{"n": "one"}'}, (422, "schema_violated")),
        ({"body": "1", "content_type": "text/plain"}, (415, "unsuitable_content_type")),
        ({"body": "1", "body_base64": "MQ=="}, (400, "invalid")),
        ({"body_base64": "%"}, (400, "invalid")),
        ({"content_type": "application/json"}, (400, "invalid")),
        ({"body": 1}, (400, "invalid")),
        ({"bodies": "1"}, (400, "invalid")),
    ],
)
def test_an_edited_body_is_judged_like_a_publish(
    rejected: Delivery, shop: Subscription, edit: dict[str, Any], answered: tuple[int, str]
) -> None:
    assert shop.event_type
    shop.event_type.schema = {"properties": {"n": {"type": "integer"}}}
    shop.event_type.save()
    assert problem_of(post_resubmit(client_of(), rejected, **edit)) == answered
    assert (Delivery.objects.count(), Message.objects.count()) == (1, 1)


def test_a_body_that_is_too_large_is_refused(rejected: Delivery) -> None:
    for body in (b'"1234567"', b'"12345678"'):
        with contextlib.suppress(PayloadTooLarge):
            resubmit(rejected.pk, publish_terms(), edit=Edit(body), max_bytes=9)
    assert [bytes(one.body) for one in Message.objects.order_by("id")] == [BODY, b'"1234567"']


def test_unfinished_and_delivered_deliveries_are_refused(shop: Subscription) -> None:
    broker.publish_bodies(shop.event_type, b"1")
    waiting = Delivery.objects.get()
    refused = post_resubmit(client_of(), waiting)
    assert problem_of(refused) == (409, "not_resubmittable")
    assert refused.json()["detail"].startswith("It is PENDING, and will be sent. Wait for that, or cancel all")
    broker.run_worker_until_done()
    assert "a replay sends it again" in post_resubmit(client_of(), waiting).json()["detail"]


@pytest.mark.behaviour("1.6")
@pytest.mark.parametrize("whole", [True, False])
def test_nothing_is_resubmitted_to_an_inactive_owner(rejected: Delivery, shop: Subscription, whole: bool) -> None:
    broker.inactivate(shop.subscriber if whole else shop)
    refused = post_resubmit(client_of(), rejected)
    assert (problem_of(refused), Delivery.objects.count()) == ((409, "not_resubmittable"), 1)
    assert "INACTIVE: activate that first" in refused.json()["detail"]


def test_deliveries_of_a_deleted_subscription_are_refused(rejected: Delivery, shop: Subscription) -> None:
    shop.delete()
    assert "deleted" in post_resubmit(client_of(), rejected).json()["detail"]


@pytest.mark.behaviour("11.4")
@pytest.mark.parametrize("edit", [{}, {"body": "2"}])
def test_a_message_that_is_no_longer_kept_is_gone(rejected: Delivery, edit: dict[str, str]) -> None:
    Message.objects.all().delete()
    assert problem_of(post_resubmit(client_of(), rejected, **edit)) == (410, "no_longer_kept")
    assert not Message.objects.exists()


@pytest.mark.behaviour("11.4")
def test_the_day_of_its_message_is_locked(rejected: Delivery, elsewhere: "psycopg.Connection[Any]") -> None:
    elsewhere.execute("SET lock_timeout = '50ms'")
    elsewhere.commit()
    with transaction.atomic():
        resubmit(rejected.pk, publish_terms(), edit=None, max_bytes=MOST)
        # What drops a whole day, and what deletes the row alone.
        for statement in (
            b"LOCK TABLE ONLY %s IN EXCLUSIVE MODE" % leaf_of("delivery_message", today()).encode(),
            b"DELETE FROM delivery_message",
        ):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                elsewhere.execute(statement)
            elsewhere.rollback()


@pytest.mark.behaviour("6.3")
def test_a_resubmitted_queue_delivery_is_its_own_group(storage: None, receiver: Receiver) -> None:
    queue = factories.event_type(kind=EventKind.QUEUE)
    asked = factories.subscription(event_type=queue, endpoint=receiver.url("/job"))
    broker.publish_bodies(queue, b"1")
    end_open()
    QueueGroup.objects.all().delete()
    old = Delivery.objects.get()
    new_id = post_resubmit(client_of(), old).json()["id"]
    new, group = Delivery.objects.get(pk=new_id), QueueGroup.objects.get()
    assert (new.group_id, group.pk, group.delivery_ids) == (new_id, new_id, [new_id])
    assert new.line
    assert new.line.lane == Lane.QUEUE
    broker.run_worker_until_done()
    assert (broker.statuses(asked), QueueGroup.objects.exists()) == (["REJECTED", "DELIVERED"], False)
    assert receiver.bodies("/job") == [b"1"]


@pytest.fixture
def unheard_publisher(storage: None) -> Publisher:
    """Return a publisher whose message nobody wanted."""
    factories.event_type(EVENT)
    shop = factories.publisher("shop")
    publish(client_of(shop), b'{"n": 1.0}', X_Trace="t", FILTER_STRING="blue")
    return shop


def post_republish(client: Client) -> Any:
    return republish(client, Message.objects.earliest("id").pk)


@pytest.mark.behaviour("2.14")
def test_an_unrouted_message_goes_to_those_of_today(unheard_publisher: Publisher, receiver: Receiver) -> None:
    old = Message.objects.get()
    wanted = factories.subscription(
        event_type=old.event_type, endpoint=receiver.url("/hook"), header_filter_string="blue"
    )
    answered = post_republish(client_of(unheard_publisher))
    copy = Message.objects.latest("id")
    copied = {"id": copy.pk, "outcome": "ROUTED", "deliveries": 1, "copy_of": old.pk}
    assert (answered.status_code, answered.json()) == (202, copied)
    shown = {one["id"]: one["copy_of"] for one in client_of(unheard_publisher).get("/api/v1/messages").json()["items"]}
    assert shown == {old.pk: None, copy.pk: old.pk}
    assert answered["Location"] == f"/api/v1/messages/{copy.pk}"
    assert (copy.copy_of, copy.publisher_id, bytes(copy.body)) == (old.pk, unheard_publisher.pk, b'{"n": 1.0}')
    broker.run_worker_until_done()
    (request,) = receiver.of("/hook")
    assert (request.body, request.headers["x-trace"]) == (b'{"n": 1.0}', "t")
    assert broker.statuses(wanted) == ["DELIVERED"]
    old.refresh_from_db()
    assert (old.outcome, old.deliveries_count) == ("UNROUTED", 0)


@pytest.mark.behaviour("2.14")
def test_a_republished_message_may_be_unrouted_again(unheard_publisher: Publisher) -> None:
    assert post_republish(client_of()).json()["outcome"] == "UNROUTED"
    assert post_republish(client_of()).json()["outcome"] == "UNROUTED"
    first, *copies = Message.objects.order_by("id")
    assert [one.copy_of for one in copies] == [first.pk] * 2


@pytest.mark.behaviour("2.14")
def test_a_message_with_a_routed_copy_is_not_published_again(unheard_publisher: Publisher) -> None:
    assert post_republish(client_of()).status_code == 202
    old, unrouted = Message.objects.order_by("id")
    admin, page = client_of_admin(), f"/admin/delivery/message/{old.pk}/"
    wanted = factories.subscription(event_type=old.event_type)
    assert post_republish(client_of()).json()["outcome"] == "ROUTED"
    for pk in (old.pk, unrouted.pk):
        assert problem_of(republish(client_of(), pk)) == (409, "not_resubmittable")
    assert f"{page}resubmit/" not in admin.get(f"{page}change/").content.decode()
    assert broker.statuses(wanted) == ["PENDING"]


@pytest.mark.behaviour("2.14")
def test_a_copy_that_a_backfill_undoes_which_began_meanwhile_is_not_logged(
    unheard_publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = factories.subscription(event_type=Message.objects.get().event_type, status=Status.INACTIVE)

    def publish_and_begin(*arguments: Any) -> list[Accepted]:
        accepted = publishing.publish(*arguments)
        in_parallel(1, lambda: begin(late.pk, since=None, created_by="test"))
        return accepted

    monkeypatch.setattr("delivery.replay.resubmit.publish", publish_and_begin)
    monkeypatch.setattr(logging.getLogger("messages"), "isEnabledFor", lambda _: True)
    with capture_logs() as logged:
        assert problem_of(post_republish(client_of())) == (409, "not_resubmittable")
    assert "message.published" not in {one["event"] for one in logged}


@pytest.mark.behaviour("2.14", "1.2")
def test_a_message_that_its_publisher_may_no_longer_publish_is_refused(unheard_publisher: Publisher) -> None:
    unheard_publisher.event_types.add(factories.event_type("Other"))
    for client in (client_of(unheard_publisher), client_of()):
        assert problem_of(post_republish(client)) == (403, "event_type_not_allowed")
    page = f"/admin/delivery/message/{Message.objects.get().pk}/resubmit/"
    refused = client_of_admin().post(page, {"_form_submitted": "on"}, follow=True).content.decode()
    assert "may not publish" in refused
    assert Message.objects.count() == 1


@pytest.mark.behaviour("2.14")
def test_a_destination_that_was_unknown_is_tried_again(storage: None) -> None:
    event_type = factories.event_type()
    broker.publish_bodies(event_type, b"1", destination="later")
    assert Message.objects.get().outcome == "DEAD_LETTERED"
    later = factories.subscription(factories.subscriber("later"), event_type)
    other = factories.subscription(event_type=event_type)
    assert post_republish(client_of()).json()["outcome"] == "ROUTED"
    assert (broker.statuses(later), broker.statuses(other)) == (["PENDING"], [])


@pytest.mark.behaviour("2.14")
def test_in_the_admin_it_is_published_again_from_its_page(unheard_publisher: Publisher, receiver: Receiver) -> None:
    admin, old = client_of_admin(), Message.objects.get()
    page = f"/admin/delivery/message/{old.pk}/"
    assert f"{page}resubmit/" in admin.get(f"{page}change/").content.decode()
    factories.subscription(event_type=old.event_type, endpoint=receiver.url("/hook"))
    shown = admin.post(f"{page}resubmit/", {"_form_submitted": "on"}, follow=True).content.decode()
    copy = Message.objects.latest("id")
    assert (copy.copy_of, copy.outcome) == (old.pk, "ROUTED")
    assert f"This message is a copy of msg_{old.pk}." in shown
    assert f'href="{page}change/"' in shown
    taken = f"/admin/delivery/message/{copy.pk}/"
    assert f"{taken}resubmit/" not in admin.get(f"{taken}change/").content.decode()
    refused = admin.post(f"{taken}resubmit/", {"_form_submitted": "on"}, follow=True).content.decode()
    assert "was received" in refused
    assert Message.objects.count() == 2
