"""Callbacks: created at publish, shown over the API, and from end to end (contract 6.7 to 6.10)."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from broker_project.core.egress import EgressPolicy
from broker_project.core.encryption import CALLBACK_TOKEN, Keyring
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.callbacks.address import CallbackTerms, callback_terms, hash_of, token_in
from delivery.limits import KEPT_BODY_BYTES
from delivery.maintenance.partitions import today
from delivery.models import Attempt, Callback, Delivery, Hold, Message, QueueGroup
from subscriptions.models import EventKind, EventType, Publisher
from tests.support import factories
from tests.support.api import (
    JOB_EVENT,
    JSON,
    REPLY_URL,
    RESULT_BODY,
    Answer,
    callback_address,
    callback_path,
    client_of,
    client_of_admin,
    create_callback,
    job_type,
    post_reply,
    problem_of,
    publish,
    publish_batch,
    publish_job,
)
from tests.support.broker import Worker, make_due, running_worker

WORK, DONE = "/work", "/done"


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


@pytest.fixture
def wanted_job(publisher: Publisher) -> EventType:
    made = job_type()
    factories.subscription(event_type=made)
    return made


def assert_refused(answer: Answer, says: str, *, messages: int = 0) -> None:
    assert problem_of(answer) == (400, "unsuitable_callback")
    assert says in answer.json()["detail"]
    assert Message.objects.count() == messages


@pytest.mark.behaviour("6.7")
def test_each_group_gets_a_callback_of_its_own(client: Client, wanted_job: EventType, publisher: Publisher) -> None:
    factories.subscription(event_type=wanted_job, filter="$$->'Body'->>'x' is null")
    answer = publish_job(client)
    assert answer.status_code == 202
    callbacks = Callback.objects.order_by("group_id")
    assert [(one.message_id, one.url, one.parent_id, one.depth) for one in callbacks] == [
        (answer.json()["id"], REPLY_URL, None, 1)
    ] * 2
    assert {(one.publisher_id, one.event_type_id) for one in callbacks} == {(publisher.pk, wanted_job.pk)}
    addresses = {callback_address(one) for one in callbacks}
    assert len(addresses) == 2
    assert all(one.startswith(f"{settings.PUBLIC_URL}/api/v1/callbacks/") for one in addresses)
    assert {hash_of(token_in(one) or "") for one in addresses} == {bytes(one.token_hash) for one in callbacks}


def test_a_message_without_subscriptions_has_no_callback(client: Client, publisher: Publisher) -> None:
    factories.event_type(JOB_EVENT, EventKind.QUEUE)
    assert publish_job(client).json()["outcome"] == "UNROUTED"
    assert not Callback.objects.exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("shop.example.org/done", "http:// or https://"),
        ("/done", "http:// or https://"),
        ("ftp://shop.example.org/", "http:// or https://"),
        ("webr://script", "http:// or https://"),
        ("PUT:https://shop.example.org/", "sent with POST"),
        ("https://me:secret@shop.example.org/", "has a login"),
        ("https://me@shop.example.org/", "has a login"),
        ("https://shop.example.org/#there", "#fragment"),
        ("https://shop.example.org:0/", "port from 1"),
        ("https://shop.example.org/" + "x" * 2048, "at most 2048"),
        ("https://", "http:// or https://"),
        (f"{settings.PUBLIC_URL}/api/v1/callbacks/{'A' * 43}", "no callback has it"),
        (f"{settings.PUBLIC_URL.upper()}/api/v1/callbacks/x", "no callback has it"),
        (f"{settings.PUBLIC_URL}/api/v1/x/..//%63allbacks/x?y", "no callback has it"),
    ],
)
def test_a_url_no_reply_can_be_sent_to_is_refused(client: Client, wanted_job: EventType, url: str, says: str) -> None:
    assert_refused(publish_job(client, url), says)


@pytest.mark.parametrize("url", ["https://me@shop.example.org/?at=b", "http://shop.example.org/a@b?c@d", REPLY_URL])
def test_an_at_sign_is_a_login_in_the_authority_only(client: Client, wanted_job: EventType, url: str) -> None:
    assert publish_job(client, url).status_code == (400 if "//me@" in url else 202)


@pytest.mark.behaviour("6.7")
@pytest.mark.parametrize("kind", [EventKind.TOPIC, EventKind.SYNC])
def test_only_a_queue_message_takes_a_callback_url(client: Client, wanted_job: EventType, kind: EventKind) -> None:
    other = factories.event_type(kind=kind)
    answer = publish(client, b"{}", event=other.name, CallbackURL=REPLY_URL)
    assert answer.status_code == 400
    assert not Message.objects.exists()


def test_in_a_batch_each_item_has_its_own(client: Client, wanted_job: EventType) -> None:
    def item(**more: Any) -> dict[str, Any]:
        return {"event": JOB_EVENT, "body": {}, **more}

    urls = ["https://a.example.org/", None, "https://b.example.org/"]
    items = [item(callback_url=url) if url else item() for url in urls]
    answer = publish_batch(client, json.dumps({"events": items}))
    assert answer.status_code == 202
    ids = [one["id"] for one in answer.json()["results"]]
    assert {(one.message_id, one.url) for one in Callback.objects.all()} == {(ids[0], urls[0]), (ids[2], urls[2])}
    refused = publish_batch(client, json.dumps({"events": [item(), item(callback_url="nowhere")]}))
    assert problem_of(refused) == (422, "invalid_items")
    assert [one.get("code") for one in refused.json()["results"]] == [None, "unsuitable_callback"]
    assert Message.objects.count() == 3


@pytest.mark.behaviour("2.6", "6.7")
def test_publishes_with_different_callback_urls_differ(client: Client, wanted_job: EventType) -> None:
    first = publish_job(client, Idempotency_Key="k")
    again = publish_job(client, Idempotency_Key="k")
    assert (again.json()["id"], again["Idempotency-Replayed"]) == (first.json()["id"], "true")
    another = publish_job(client, "https://shop.example.org/other", Idempotency_Key="k")
    others = [another, publish(client, b"{}", event=JOB_EVENT, Idempotency_Key="k")]
    assert [problem_of(other) for other in others] == [(422, "idempotency_key_reused")] * 2
    assert Callback.objects.count() == 1


@pytest.mark.behaviour("2.6", "6.9")
def test_repeated_publish_has_the_same_answer_after_expiry(client: Client, wanted_job: EventType) -> None:
    ours = callback_address(create_callback(client))
    first = publish_job(client, ours, Idempotency_Key="k")
    Callback.objects.update(expires_at=Now())
    assert publish_job(client, ours, Idempotency_Key="k").json()["id"] == first.json()["id"]


@pytest.mark.behaviour("6.9", "6.10")
@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("/callbacks/", "/../v1//%63allbacks/./"),
        ("http:", "HTTP:"),
        ("127.0.0.1", "localhost"),
        ("TOKEN", "TOKEN/?x=1"),
        ("TOKEN", "TOKEN#"),
    ],
)
def test_own_address_is_recognised(client: Client, wanted_job: EventType, written: str, instead: str) -> None:
    first = create_callback(client)
    token = token_in(callback_address(first)) or ""
    disguised = "http://127.0.0.1:8000/api/v1/callbacks/TOKEN".replace(written, instead).replace("TOKEN", token)
    assert publish_job(client, disguised).status_code == 202
    passed_on = Callback.objects.latest("id")
    assert (passed_on.url, passed_on.parent_id, passed_on.depth) == ("", first.pk, 2)


@pytest.mark.behaviour("6.9")
def test_a_callback_address_of_another_broker_is_an_address_like_any(client: Client, wanted_job: EventType) -> None:
    elsewhere = f"https://other.example.org/api/v1/callbacks/{'A' * 43}"
    assert publish_job(client, elsewhere).status_code == 202
    assert Callback.objects.get().url == elsewhere


@pytest.mark.behaviour("6.9")
def test_a_chain_has_at_most_ten_callbacks(client: Client, wanted_job: EventType) -> None:
    publish_job(client)
    for _ in range(9):
        deepest = Callback.objects.latest("depth")
        assert publish_job(client, callback_address(deepest)).status_code == 202
    answer = publish_job(client, callback_address(Callback.objects.get(depth=10)))
    assert_refused(answer, "more than 10", messages=10)


def test_an_expired_callback_is_refused(client: Client, wanted_job: EventType) -> None:
    callback = create_callback(client)
    Callback.objects.update(expires_at=timezone.now())
    assert_refused(publish_job(client, callback_address(callback)), "expired", messages=1)


@pytest.mark.behaviour("6.9")
@pytest.mark.parametrize("chained", [False, True])
def test_a_callback_url_that_has_its_reply_is_refused(client: Client, wanted_job: EventType, chained: bool) -> None:
    first = create_callback(client)
    last = create_callback(client, callback_address(first)) if chained else first
    assert post_reply(first).status_code == 201
    assert_refused(publish_job(client, callback_address(last)), "has had its reply", messages=Message.objects.count())


def test_a_broker_that_does_not_know_its_address_says_so(client: Client, wanted_job: EventType, settings: Any) -> None:
    settings.PUBLIC_URL = ""
    answer = publish_job(client)
    assert problem_of(answer) == (501, "not_served")
    assert "BROKER_PUBLIC_URL" in answer.json()["detail"]
    assert not Message.objects.exists()


def test_an_address_survives_a_rotation_of_the_secret(client: Client, wanted_job: EventType, settings: Any) -> None:
    callback = create_callback(client)
    before = callback_address(callback)
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a new secret" * 5
    assert callback_address(callback) == before
    settings.SECRET_KEY_FALLBACKS = []
    assert callback_address(callback) == "", "not to be sent"


def test_a_callback_address_uses_the_senders_public_url(client: Client, wanted_job: EventType) -> None:
    publish_job(client)
    keys = Keyring([settings.SECRET_KEY], CALLBACK_TOKEN)
    terms = CallbackTerms("https://broker.example.org/b", keys, 1, EgressPolicy())
    address = callback_address(Callback.objects.get(), terms)
    assert address.startswith("https://broker.example.org/b/api/v1/callbacks/")


def test_a_callback_shows_its_url_and_status(client: Client, callback: Callback) -> None:
    (shown,) = client.get(f"/api/v1/callbacks?message={callback.message_id}").json()["items"]
    assert shown == client.get(f"/api/v1/callbacks/{callback.pk}").json()
    first = {"url": REPLY_URL, "parent_id": None, "depth": 1, "reply_id": None, "delivery": None}
    told = {"id": callback.pk, "message_id": callback.message_id, "state": "WAITING", **first}
    assert {name: value for name, value in shown.items() if not name.endswith("_at")} == told
    assert (shown["expires_at"], shown["replied_at"]) == (None, None), "an endpoint may still get the job"


def test_a_message_shows_its_callbacks_and_their_replies(client: Client, callback: Callback) -> None:
    reply_id = post_reply(callback).json()["id"]
    (shown,) = client.get(f"/api/v1/messages/{callback.message_id}").json()["callbacks"]
    assert (shown["id"], shown["state"], shown["reply_id"]) == (callback.pk, "REPLIED", reply_id)
    assert shown["delivery"]["status"] == "PENDING"
    reply = client.get(f"/api/v1/messages/{reply_id}").json()
    assert (reply["reply_to"], reply["body"].encode(), reply["callbacks"]) == (callback.message_id, RESULT_BODY, [])


def test_a_publisher_reads_why_its_own_address_did_not_take_a_reply(client: Client, callback: Callback) -> None:
    reply_id, why = post_reply(callback).json()["id"], "no answer: Could not resolve host: mine.example"
    Delivery.objects.filter(message_id=reply_id).update(reason=why)
    (shown,) = client.get(f"/api/v1/messages/{reply_id}").json()["deliveries"]
    assert shown["reason"] == why


@pytest.mark.parametrize(("replied", "state"), [(False, "EXPIRED"), (True, "REPLIED")])
def test_callback_without_reply_expires(client: Client, callback: Callback, replied: bool, state: str) -> None:
    if replied:
        post_reply(callback)
    Callback.objects.update(expires_at=Now())
    assert client.get(f"/api/v1/callbacks/{callback.pk}").json()["state"] == state


def test_a_chain_shows_which_callback_is_passed_on_to_which(client: Client, callback: Callback) -> None:
    child = create_callback(client, callback_address(callback))
    post_reply(child)
    shown = client.get("/api/v1/callbacks").json()["items"]
    chain = [(one["id"], one["parent_id"], one["depth"], one["state"]) for one in shown]
    assert chain == [(child.pk, callback.pk, 2, "PASSED_ON"), (callback.pk, None, 1, "REPLIED")]


@pytest.mark.behaviour("1.2")
def test_a_publisher_sees_the_callbacks_of_its_own_messages_only(callback: Callback) -> None:
    reply_id = post_reply(callback).json()["id"]
    other = client_of(factories.publisher())
    assert other.get("/api/v1/callbacks").json()["items"] == []
    assert other.get(f"/api/v1/callbacks?message={callback.message_id}").json()["items"] == []
    assert problem_of(other.get(f"/api/v1/callbacks/{callback.pk}")) == (404, "not_found")
    assert problem_of(other.get(f"/api/v1/messages/{reply_id}")) == (404, "not_found")
    assert len(client_of().get("/api/v1/callbacks").json()["items"]) == 1


def test_callbacks_are_listed_by_their_state(client: Client, job: EventType) -> None:
    names = ["waiting", "missed", "replied", "refused", "failed", "expired", "delivered", "ended"]
    of = {name: create_callback(client) for name in names}
    of["passed_on"] = create_callback(client, callback_address(of["replied"]))
    for name in names[3:]:
        post_reply(of[name])
    post_reply(of["passed_on"])
    Callback.objects.filter(pk=of["missed"].pk).update(expires_at=Now())
    ends = {"refused": "REJECTED", "failed": "FAILED", "expired": "EXPIRED", "delivered": "DELIVERED"}
    for name, status in ends.items():
        of[name].refresh_from_db()
        of_reply = Delivery.objects.filter(message=of[name].reply)
        Hold.objects.filter(line__callback=of[name]).delete()
        of_reply.update(status="IN_FLIGHT")
        of_reply.update(status=status, closed_on=today(), finished_at=Now())
    Hold.objects.filter(line__callback=of["ended"]).delete()
    Callback.objects.filter(pk=of["ended"].pk).update(delivery_id=1)
    states = ("WAITING", "REPLIED", "PASSED_ON", "DELIVERED", "REFUSED", "FAILED", "ENDED")
    wanted = {state: {state.lower()} for state in states} | {"EXPIRED": {"missed", "expired"}}
    for state, expected in wanted.items():
        listed = client.get(f"/api/v1/callbacks?state={state}").json()["items"]
        assert {one["id"] for one in listed} == {of[name].pk for name in expected}
        assert {one["state"] for one in listed} == {state}
    admin = client_of_admin()
    shown = {
        "stage=waiting": "waiting",
        "stage=in_flight": "replied",
        "stage=missed": "missed",
        "stage=failed": "failed",
    }
    shown |= dict.fromkeys(("stage=refused", f"q={of['refused'].message_id}", f"q={of['refused'].pk}"), "refused")
    for query, name in shown.items():
        assert [*admin.get(f"/admin/delivery/callback/?{query}").context["cl"].result_list] == [of[name]]


def test_a_subscriber_sees_no_callbacks(callback: Callback) -> None:
    assert problem_of(client_of(factories.subscriber()).get("/api/v1/callbacks")) == (403, "forbidden")


@pytest.mark.behaviour("6.10")
def test_tokens_are_never_shown(client: Client, callback: Callback) -> None:
    token = callback_path(callback).rpartition("/")[2].encode()
    passed_on = create_callback(client, callback_address(callback))
    reply_id = post_reply(callback).json()["id"]
    manager = client_of()
    pages = [
        *("callbacks", f"callbacks/{callback.pk}", f"callbacks/{passed_on.pk}", "messages", "deliveries"),
        *(f"messages/{one}" for one in (callback.message_id, passed_on.message_id, reply_id)),
    ]
    for page in pages:
        answer = manager.get(f"/api/v1/{page}")
        assert answer.status_code == 200
        assert token not in answer.content
        assert bytes(callback.token_hash).hex().encode() not in answer.content


def test_replies_do_not_count_as_published(client: Client, callback: Callback) -> None:
    post_reply(callback)
    assert Message.objects.count() == 2
    for query in ("", "?outcome=ROUTED", f"?event_type={callback.event_type}"):
        listed = client.get(f"/api/v1/messages{query}").json()["items"]
        assert [one["id"] for one in listed] == [callback.message_id]
