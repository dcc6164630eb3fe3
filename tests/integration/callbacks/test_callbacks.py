"""Callbacks from end to end, and in the admin (contract 6.7 to 6.10)."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.dateparse import parse_datetime

from broker_project.core.encryption import CALLBACK_TOKEN, Keyring
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.callbacks.address import callback_terms
from delivery.limits import KEPT_BODY_BYTES
from delivery.models import Attempt, Callback, Delivery, Hold, Line, QueueGroup
from subscriptions.models import EventKind, EventType, Publisher
from tests.support import factories
from tests.support.admin import browser_with, view_permissions
from tests.support.api import (
    JOB_EVENT,
    JSON,
    REPLY_URL,
    RESULT_BODY,
    Answer,
    callback_address,
    callback_path,
    client_of,
    create_callback,
    post_reply,
    publish,
    publish_job,
)
from tests.support.broker import Worker, make_due, running_worker

WORK, DONE = "/work", "/done"

LIST = "/admin/delivery/callback/"
LATER = datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def delivered_job(storage: None, publisher: Publisher, receiver: Receiver) -> EventType:
    made = factories.event_type(JOB_EVENT, EventKind.QUEUE)
    factories.subscription(event_type=made, endpoint=receiver.url(WORK))
    return made


def address_in(receiver: Receiver, path: str = WORK) -> str:
    """Wait for a job; return the address that its endpoint was given, the same in all requests."""
    wait_until(lambda: receiver.of(path))
    (address,) = {request.headers["callbackurl"] for request in receiver.of(path)}
    return address


def reply(address: str, body: bytes = RESULT_BODY) -> Answer:
    return Client().post(address.removeprefix(settings.PUBLIC_URL), body, content_type=JSON)


def hurried(receiver: Receiver, path: str, count: int = 1) -> list[bytes]:
    """Wait, cutting every pause short, until the path has had `count` requests; return their bodies."""

    def there() -> bool:
        make_due()
        return len(receiver.of(path)) >= count

    wait_until(there, saying=lambda: receiver.log)
    return receiver.bodies(path)


@pytest.mark.behaviour("6.7", "6.8")
@pytest.mark.parametrize("before_its_own_answer", [True, False])
def test_reply_reaches_the_publisher(
    client: Client, delivered_job: EventType, receiver: Receiver, worker: Worker, before_its_own_answer: bool
) -> None:
    gate = receiver.gate(WORK)
    message_id = publish_job(client, receiver.url(DONE)).json()["id"]
    address = address_in(receiver)
    assert address.startswith(f"{settings.PUBLIC_URL}/api/v1/callbacks/")
    if before_its_own_answer:
        assert reply(address).status_code == 201
        assert hurried(receiver, DONE) == [RESULT_BODY]
        gate.open()
    else:
        gate.open()
        wait_until(lambda: not Delivery.objects.open().exists())
        assert reply(address).status_code == 201
        assert hurried(receiver, DONE) == [RESULT_BODY]
    wait_until(lambda: not Delivery.objects.open().exists())
    (shown,) = client.get(f"/api/v1/callbacks?message={message_id}").json()["items"]
    assert (shown["state"], len(receiver.of(WORK)), len(receiver.of(DONE))) == ("DELIVERED", 1, 1)


@pytest.mark.behaviour("6.7")
def test_retries_keep_the_address(client: Client, delivered_job: EventType, receiver: Receiver, worker: Worker) -> None:
    receiver.on(WORK, answer(500), answer(503), answer(200))
    publish_job(client, receiver.url(DONE))
    hurried(receiver, WORK, 3)
    assert reply(address_in(receiver)).status_code == 201


@pytest.mark.behaviour("6.7")
def test_groups_have_addresses(client: Client, delivered_job: EventType, receiver: Receiver, worker: Worker) -> None:
    factories.subscription(event_type=delivered_job, endpoint=receiver.url("/other"), filter="$$->'Body'->>'x' is null")
    publish_job(client, receiver.url(DONE))
    addresses = [address_in(receiver, path) for path in (WORK, "/other")]
    assert len({*addresses}) == 2
    for address in addresses:
        assert reply(address, address.encode()).status_code == 201
    assert {*hurried(receiver, DONE, 2)} == {address.encode() for address in addresses}


def test_no_url_means_no_header(client: Client, delivered_job: EventType, receiver: Receiver, worker: Worker) -> None:
    publish(client, b"{}", event=JOB_EVENT)
    hurried(receiver, WORK)
    assert ("callbackurl" in receiver.of(WORK)[0].headers, Callback.objects.count()) == (False, 0)


@pytest.mark.behaviour("6.10")
def test_echoed_token_is_removed(client: Client, delivered_job: EventType, receiver: Receiver, worker: Worker) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        address = receiver.of(WORK)[0].headers["callbackurl"]
        body = f"{address} {address.rpartition('/')[2]}".rjust(KEPT_BODY_BYTES + 20, "-")
        return await answer(404, body.encode(), X_Echo=address)(reader, writer)

    receiver.on(WORK, echo)
    publish_job(client, receiver.url(DONE))
    wait_until(lambda: not Delivery.objects.open().exists())
    ours = f"{settings.PUBLIC_URL}/api/v1/callbacks/…".encode()
    attempt = Attempt.objects.get()
    token = address_in(receiver).rpartition("/")[2].encode()
    assert bytes(attempt.answer_headers).endswith(b"\r\nX-Echo: " + ours + b"\r\n\r\n")
    assert bytes(attempt.answer_excerpt).endswith(b"---" + ours + b" \xe2\x80\xa6")
    assert token[:10] not in bytes(attempt.answer_excerpt)


@pytest.mark.behaviour("6.9")
def test_address_may_be_handed_on(client: Client, delivered_job: EventType, receiver: Receiver, worker: Worker) -> None:
    part = factories.event_type("Shop.Invoice.Part", EventKind.QUEUE)
    factories.subscription(event_type=part, endpoint=receiver.url("/part"))
    message_id = publish_job(client, receiver.url(DONE)).json()["id"]
    handed_on = address_in(receiver)
    endpoint = client_of(factories.publisher("printer"))
    assert publish(endpoint, b"{}", event=part.name, CallbackURL=handed_on).status_code == 202
    last = address_in(receiver, "/part")
    assert last != handed_on
    assert reply(last).status_code == 201
    assert hurried(receiver, DONE) == [RESULT_BODY]
    assert reply(handed_on, b"mine").status_code == 409
    (shown,) = client.get(f"/api/v1/callbacks?message={message_id}").json()["items"]
    assert (shown["depth"], Callback.objects.count()) == (1, 2)
    assert [one["state"] for one in endpoint.get("/api/v1/callbacks").json()["items"]] == ["PASSED_ON"]


def test_undecryptable_token_waits_for_the_key(client: Client, delivered_job: EventType, receiver: Receiver) -> None:
    publish_job(client, receiver.url(DONE))
    terms = callback_terms()
    with running_worker(terms=replace(terms, keys=Keyring(["another secret"], CALLBACK_TOKEN))):
        wait_until(lambda: QueueGroup.objects.filter(due_at__gt=Now()).exists())
    assert not receiver.of(WORK)
    QueueGroup.objects.update(waits_for="TURN", due_at=None)
    rotated = Keyring(["another secret", settings.SECRET_KEY], CALLBACK_TOKEN)
    with running_worker(terms=replace(terms, keys=rotated)):
        address = address_in(receiver)
    assert reply(address).status_code == 201


def text_of(admin: Client, path: str) -> str:
    answer = admin.get(path, follow=False)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def test_the_list_shows_how_each_callback_stands(admin: Client, client: Client, callback: Callback) -> None:
    child = create_callback(client, callback_address(callback))
    assert text_of(admin, LIST).count("WAITING") == 2
    post_reply(child)
    page = text_of(admin, LIST)
    assert ("PASSED_ON" in page, "REPLIED" in page, "WAITING" in page) == (True, True, False)
    assert ("https://shop.example.org" in page, "/done" in page) == (True, False)


def test_the_original_address_is_shown_to_those_who_may_see_contents(callback: Callback) -> None:
    pages = (LIST, f"{LIST}{callback.pk}/change/", f"/admin/delivery/message/{callback.message_id}/change/")
    without = [text_of(browser_with(*view_permissions()), page) for page in pages]
    assert [("https://shop.example.org" in page, "job=7" in page) for page in without] == [(True, False)] * 3
    assert REPLY_URL in text_of(browser_with(*view_permissions(), "delivery.view_payload"), pages[1])


def test_a_list_takes_the_same_number_of_queries_at_any_size(admin: Client, client: Client, callback: Callback) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            text_of(admin, LIST)
        return len(queries)

    post_reply(callback)
    first = cost()
    for _ in range(5):
        post_reply(create_callback(client))
    assert cost() == first


def test_a_page_leads_to_the_message_the_reply_and_its_delivery(admin: Client, callback: Callback) -> None:
    assert REPLY_URL in text_of(admin, f"{LIST}{callback.pk}/change/")
    reply_id = post_reply(callback, b'{"printed": true}').json()["id"]
    delivery = Delivery.objects.get(message=reply_id)
    Line.objects.filter(callback=callback).update(due_at=Now())
    page = text_of(admin, f"{LIST}{callback.pk}/change/")
    for model, pk in (("message", callback.message_id), ("message", reply_id), ("delivery", delivery.pk)):
        assert f"/admin/delivery/{model}/{pk}/change/" in page
    assert "{&quot;printed&quot;: true}" in page
    assert "PENDING" in page


def test_a_message_shows_its_callbacks_and_a_reply_what_it_answers(admin: Client, callback: Callback) -> None:
    reply_id = post_reply(callback).json()["id"]
    message = text_of(admin, f"/admin/delivery/message/{callback.message_id}/change/")
    assert f"{LIST}{callback.pk}/change/" in message
    assert "REPLIED" in message
    reply = text_of(admin, f"/admin/delivery/message/{reply_id}/change/")
    assert f"/admin/delivery/message/{callback.message_id}/change/" in reply
    assert "who gets it, and why" not in reply.lower()


def test_callback_lines_are_listed_until_the_reply_ends(admin: Client, client: Client, callback: Callback) -> None:
    ended = create_callback(client)
    for one in (callback, ended):
        post_reply(one)
    Hold.objects.filter(line__callback=ended).delete()
    Hold.objects.filter(line__callback=callback).update(reason="answered 503")

    def listed(query: str = "") -> list[Line]:
        return [*admin.get(f"/admin/delivery/line/{query}").context["cl"].result_list]

    assert listed()[0].callback == callback  # what is held comes first
    assert {one.callback for one in listed()} == {None, callback}
    assert {one.callback for one in listed("?lane__exact=callback")} == {callback, ended}


def test_replies_are_not_listed_as_published(admin: Client, callback: Callback) -> None:
    reply_id = post_reply(callback).json()["id"]
    link = f"/admin/delivery/message/{reply_id}/change/"
    assert link not in text_of(admin, "/admin/delivery/message/")
    assert link in text_of(admin, f"/admin/delivery/message/?q={reply_id}")


def test_reply_deliveries_show_callback_and_next_try(admin: Client, management: Client, callback: Callback) -> None:
    delivery = Delivery.objects.get(message=post_reply(callback).json()["id"])
    attempt = Attempt.objects.create(delivery=delivery, number=1, started_at=callback.created_at, duration_ms=1)
    Attempt.objects.create(delivery=delivery, number=2, started_at=callback.created_at, duration_ms=1)
    Hold.objects.update(due_at=LATER)
    for path in (f"delivery/{delivery.pk}/change/", "delivery/", "attempt/", f"attempt/{attempt.pk}/change/"):
        text = text_of(admin, f"/admin/delivery/{path}")
        assert f"callback {callback.pk}" in text
        assert ("2999-01-02" in text) == path.startswith("delivery")
    assert str(callback.event_type) in text_of(admin, "/admin/delivery/delivery/")
    shown = management.get(f"/api/v1/deliveries/{delivery.pk}").json()
    assert shown["due_at"] == management.get(f"/api/v1/callbacks/{callback.pk}").json()["delivery"]["due_at"]
    assert parse_datetime(shown["due_at"]) == LATER
    Line.objects.filter(callback=callback).delete()
    assert f"callback {callback.pk}" in text_of(admin, "/admin/delivery/delivery/")


@pytest.mark.behaviour("6.10")
def test_no_page_has_a_token(admin: Client, callback: Callback) -> None:
    token = callback_path(callback).rpartition("/")[2]
    reply_id = post_reply(callback).json()["id"]
    delivery, line = Delivery.objects.get(message=reply_id), Line.objects.get(callback=callback)
    pages = [LIST, f"{LIST}{callback.pk}/change/", *(f"/admin/delivery/{model}/" for model in ("message", "line"))]
    for model, pk in (("message", reply_id), ("delivery", delivery.pk), ("line", line.pk)):
        pages.append(f"/admin/delivery/{model}/{pk}/change/")
    for page in pages:
        text = text_of(admin, page)
        assert token not in text
        assert bytes(callback.token_hash).hex() not in text


def test_callbacks_cannot_be_edited(admin: Client, callback: Callback) -> None:
    assert admin.get(f"{LIST}add/").status_code == 403
    assert admin.post(f"{LIST}{callback.pk}/delete/").status_code == 403
