"""Callbacks from end to end: a job, its endpoint's reply, and the publisher who hears of it (behaviour 6.7 to 6.9)."""

import asyncio
from dataclasses import replace

import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.test import Client

from broker_project.core.keyring import CALLBACK_TOKEN, Keyring
from delivery.callbacks.address import callback_terms
from delivery.models import Attempt, Callback, Delivery, QueueGroup
from delivery.worker.topic import KEPT_BODY_BYTES
from subscriptions.models import EventKind, EventType, Publisher
from tests import factories
from tests.calling_back import JOB, RESULT, publish_job
from tests.clients import Answer, client_of
from tests.driving import Worker, make_due, working
from tests.publishing import JSON, publish
from tests.receiver import Receiver, answer, wait_until

WORK, DONE = "/work", "/done"


@pytest.fixture
def job(storage: None, publisher: Publisher, receiver: Receiver) -> EventType:
    made = factories.event_type(JOB, EventKind.QUEUE)
    factories.subscription(event_type=made, endpoint=receiver.url(WORK))
    return made


def address_in(receiver: Receiver, path: str = WORK) -> str:
    """Wait for a job; return the address that its endpoint was given, the same in all requests."""
    wait_until(lambda: receiver.of(path))
    (address,) = {request.headers["callbackurl"] for request in receiver.of(path)}
    return address


def reply(address: str, body: bytes = RESULT) -> Answer:
    return Client().post(address.removeprefix(settings.PUBLIC_URL), body, content_type=JSON)


def hurried(receiver: Receiver, path: str, count: int = 1) -> list[bytes]:
    """Wait, cutting every pause short, until the path has had so many requests; return their bodies."""

    def there() -> bool:
        make_due()
        return len(receiver.of(path)) >= count

    wait_until(there, saying=lambda: receiver.log)
    return receiver.bodies(path)


@pytest.mark.behaviour("6.7", "6.8")
@pytest.mark.parametrize("before_its_own_answer", [True, False])
def test_an_endpoint_replies_to_the_brokers_address_and_the_publisher_hears_of_it(
    client: Client, job: EventType, receiver: Receiver, worker: Worker, before_its_own_answer: bool
) -> None:
    gate = receiver.gate(WORK)
    message_id = publish_job(client, receiver.url(DONE)).json()["id"]
    address = address_in(receiver)
    assert address.startswith(f"{settings.PUBLIC_URL}/api/v1/callbacks/")
    if before_its_own_answer:
        assert reply(address).status_code == 201
        assert hurried(receiver, DONE) == [RESULT]
        gate.open()
    else:
        gate.open()
        wait_until(lambda: not Delivery.objects.open().exists())
        assert reply(address).status_code == 201
        assert hurried(receiver, DONE) == [RESULT]
    wait_until(lambda: not Delivery.objects.open().exists())
    (shown,) = client.get(f"/api/v1/callbacks?message={message_id}").json()["items"]
    assert (shown["state"], len(receiver.of(WORK)), len(receiver.of(DONE))) == ("DELIVERED", 1, 1)


@pytest.mark.behaviour("6.7")
def test_a_repeated_request_bears_the_same_address(
    client: Client, job: EventType, receiver: Receiver, worker: Worker
) -> None:
    receiver.on(WORK, answer(500), answer(503), answer(200))
    publish_job(client, receiver.url(DONE))
    hurried(receiver, WORK, 3)
    assert reply(address_in(receiver)).status_code == 201


@pytest.mark.behaviour("6.7")
def test_each_group_has_an_address_and_a_reply_of_its_own(
    client: Client, job: EventType, receiver: Receiver, worker: Worker
) -> None:
    factories.subscription(event_type=job, endpoint=receiver.url("/other"), filter="$$->'Body'->>'x' is null")
    publish_job(client, receiver.url(DONE))
    addresses = [address_in(receiver, path) for path in (WORK, "/other")]
    assert len({*addresses}) == 2
    for address in addresses:
        assert reply(address, address.encode()).status_code == 201
    assert {*hurried(receiver, DONE, 2)} == {address.encode() for address in addresses}


def test_a_job_without_a_callback_url_has_no_such_header(
    client: Client, job: EventType, receiver: Receiver, worker: Worker
) -> None:
    publish(client, b"{}", event=JOB)
    hurried(receiver, WORK)
    assert "callbackurl" not in receiver.of(WORK)[0].headers


@pytest.mark.behaviour("6.10")
def test_what_is_kept_of_an_answer_has_no_token_though_the_endpoint_echoes_it(
    client: Client, job: EventType, receiver: Receiver, worker: Worker
) -> None:
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
def test_an_endpoint_may_hand_its_address_on_to_a_job_of_its_own(
    client: Client, job: EventType, receiver: Receiver, worker: Worker
) -> None:
    part = factories.event_type("Shop.Invoice.Part", EventKind.QUEUE)
    factories.subscription(event_type=part, endpoint=receiver.url("/part"))
    message_id = publish_job(client, receiver.url(DONE)).json()["id"]
    handed_on = address_in(receiver)
    endpoint = client_of(factories.publisher("printer"))
    assert publish(endpoint, b"{}", event=part.name, CallbackURL=handed_on).status_code == 202
    last = address_in(receiver, "/part")
    assert last != handed_on
    assert reply(last).status_code == 201
    assert hurried(receiver, DONE) == [RESULT]
    assert reply(handed_on, b"mine").status_code == 409
    (shown,) = client.get(f"/api/v1/callbacks?message={message_id}").json()["items"]
    assert (shown["depth"], Callback.objects.count()) == (1, 2)
    assert [one["state"] for one in endpoint.get("/api/v1/callbacks").json()["items"]] == ["PASSED_ON"]


def test_a_group_whose_address_cannot_be_made_is_not_sent_until_its_secret_is_back(
    client: Client, job: EventType, receiver: Receiver
) -> None:
    publish_job(client, receiver.url(DONE))
    terms = callback_terms()
    with working(terms=replace(terms, keys=Keyring(["another secret"], CALLBACK_TOKEN))):
        wait_until(lambda: QueueGroup.objects.filter(due_at__gt=Now()).exists())
    assert not receiver.of(WORK)
    QueueGroup.objects.update(due_at=None)
    rotated = Keyring(["another secret", settings.SECRET_KEY], CALLBACK_TOKEN)
    with working(terms=replace(terms, keys=rotated)):
        address = address_in(receiver)
    assert reply(address).status_code == 201
