"""Callbacks made at publish: one for each group, to the publisher's URL or to another callback of ours."""

import json
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from broker_project.core.egress import EgressPolicy
from broker_project.core.keyring import CALLBACK_TOKEN, Keyring
from delivery.callbacks.address import CallbackTerms, hash_of, token_in
from delivery.models import Callback, Message
from subscriptions.models import EventKind, EventType, Publisher
from tests import factories
from tests.calling_back import JOB, REPLY_TO, address_of, called_back, job_type, post, publish_job
from tests.clients import client_of
from tests.publishing import batch, problem, publish


@pytest.fixture
def job(publisher: Publisher) -> EventType:
    made = job_type()
    factories.subscription(event_type=made)
    return made


@pytest.mark.behaviour("6.7")
def test_each_group_gets_a_callback_of_its_own(client: Client, job: EventType, publisher: Publisher) -> None:
    factories.subscription(event_type=job, filter="$$->'Body'->>'x' is null")
    answer = publish_job(client)
    assert answer.status_code == 202
    callbacks = Callback.objects.order_by("group_id")
    assert [(one.message_id, one.url, one.parent_id, one.depth) for one in callbacks] == [
        (answer.json()["id"], REPLY_TO, None, 1)
    ] * 2
    assert {(one.publisher_id, one.event_type_id) for one in callbacks} == {(publisher.pk, job.pk)}
    addresses = {address_of(one) for one in callbacks}
    assert len(addresses) == 2
    assert all(one.startswith(f"{settings.PUBLIC_URL}/api/v1/callbacks/") for one in addresses)
    assert {hash_of(token_in(one) or "") for one in addresses} == {bytes(one.token_hash) for one in callbacks}


@pytest.mark.behaviour("6.8")
def test_a_callback_lives_for_fourteen_days(client: Client, job: EventType) -> None:
    publish_job(client)
    callback = Callback.objects.get()
    assert (callback.expires_at - callback.created_at).total_seconds() == pytest.approx(14 * 86400, abs=5)


def test_without_a_callback_url_none_is_made(client: Client, job: EventType) -> None:
    assert publish(client, b"{}", event=JOB).status_code == 202
    assert not Callback.objects.exists()


def test_a_message_that_nobody_takes_has_no_callback(client: Client, publisher: Publisher) -> None:
    factories.event_type(JOB, EventKind.QUEUE)
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
def test_a_url_no_reply_can_be_sent_to_is_refused(client: Client, job: EventType, url: str, says: str) -> None:
    answer = publish_job(client, url)
    assert problem(answer) == (400, "unsuitable_callback")
    assert says in answer.json()["detail"]
    assert not Message.objects.exists()


@pytest.mark.parametrize("url", ["https://me@shop.example.org/?at=b", "http://shop.example.org/a@b?c@d", REPLY_TO])
def test_an_at_sign_is_a_login_in_the_authority_only(client: Client, job: EventType, url: str) -> None:
    assert publish_job(client, url).status_code == (400 if "//me@" in url else 202)


@pytest.mark.behaviour("6.7")
@pytest.mark.parametrize("kind", [EventKind.TOPIC, EventKind.SYNC])
def test_only_a_queue_message_takes_a_callback_url(client: Client, job: EventType, kind: EventKind) -> None:
    other = factories.event_type(kind=kind)
    answer = publish(client, b"{}", event=other.name, CallbackURL=REPLY_TO)
    assert answer.status_code == 400
    assert not Message.objects.exists()


def test_in_a_batch_each_item_has_its_own(client: Client, job: EventType) -> None:
    def item(**more: Any) -> dict[str, Any]:
        return {"event": JOB, "body": {}, **more}

    urls = ["https://a.example.org/", None, "https://b.example.org/"]
    items = [item(callback_url=url) if url else item() for url in urls]
    answer = batch(client, json.dumps({"events": items}))
    assert answer.status_code == 202
    ids = [one["id"] for one in answer.json()["results"]]
    assert {(one.message_id, one.url) for one in Callback.objects.all()} == {(ids[0], urls[0]), (ids[2], urls[2])}
    refused = batch(client, json.dumps({"events": [item(), item(callback_url="nowhere")]}))
    assert problem(refused) == (422, "invalid_items")
    assert [one.get("code") for one in refused.json()["results"]] == [None, "unsuitable_callback"]
    assert Message.objects.count() == 3


@pytest.mark.behaviour("2.6", "6.7")
def test_the_callback_url_is_part_of_what_makes_two_publishes_the_same(client: Client, job: EventType) -> None:
    first = publish_job(client, Idempotency_Key="k")
    again = publish_job(client, Idempotency_Key="k")
    assert (again.json()["id"], again["Idempotency-Replayed"]) == (first.json()["id"], "true")
    other = publish_job(client, "https://shop.example.org/other", Idempotency_Key="k")
    assert problem(other) == (422, "idempotency_key_reused")
    assert Callback.objects.count() == 1


@pytest.mark.behaviour("2.6", "6.9")
def test_a_repeated_publish_is_answered_as_before_though_its_callback_has_expired(
    client: Client, job: EventType
) -> None:
    publish_job(client)
    ours = address_of(Callback.objects.get())
    first = publish_job(client, ours, Idempotency_Key="k")
    Callback.objects.update(expires_at=Now())
    assert publish_job(client, ours, Idempotency_Key="k").json()["id"] == first.json()["id"]


@pytest.mark.behaviour("6.9")
def test_one_of_our_own_addresses_is_resolved_when_publishing(client: Client, job: EventType) -> None:
    publish_job(client)
    first = Callback.objects.get()
    by_another_name = address_of(first).replace(settings.PUBLIC_URL, "http://broker.internal:8080")
    for url in (address_of(first), by_another_name):
        assert publish_job(client_of(), url).status_code == 202
    passed_on = Callback.objects.exclude(pk=first.pk)
    assert [(one.url, one.parent_id, one.depth) for one in passed_on] == [("", first.pk, 2)] * 2
    assert {one.expires_at for one in passed_on} == {first.expires_at}, "it lives no longer than its parent"


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
def test_one_of_our_own_addresses_is_resolved_in_any_disguise(
    client: Client, job: EventType, written: str, instead: str
) -> None:
    publish_job(client)
    first = Callback.objects.get()
    token = token_in(address_of(first)) or ""
    disguised = "http://127.0.0.1:8000/api/v1/callbacks/TOKEN".replace(written, instead).replace("TOKEN", token)
    assert publish_job(client, disguised).status_code == 202
    passed_on = Callback.objects.latest("id")
    assert (passed_on.url, passed_on.parent_id, passed_on.depth) == ("", first.pk, 2)


@pytest.mark.behaviour("6.9")
def test_a_callback_address_of_another_broker_is_an_address_like_any(client: Client, job: EventType) -> None:
    elsewhere = f"https://other.example.org/api/v1/callbacks/{'A' * 43}"
    assert publish_job(client, elsewhere).status_code == 202
    assert Callback.objects.get().url == elsewhere


@pytest.mark.behaviour("6.9")
def test_a_chain_has_at_most_ten_callbacks(client: Client, job: EventType) -> None:
    publish_job(client)
    for _ in range(9):
        deepest = Callback.objects.latest("depth")
        assert publish_job(client, address_of(deepest)).status_code == 202
    answer = publish_job(client, address_of(Callback.objects.get(depth=10)))
    assert problem(answer) == (400, "unsuitable_callback")
    assert "more than 10" in answer.json()["detail"]


def test_an_expired_callback_is_refused(client: Client, job: EventType) -> None:
    publish_job(client)
    callback = Callback.objects.get()
    Callback.objects.update(expires_at=timezone.now())
    answer = publish_job(client, address_of(callback))
    assert problem(answer) == (400, "unsuitable_callback")
    assert "expired" in answer.json()["detail"]


@pytest.mark.behaviour("6.9")
@pytest.mark.parametrize("chained", [False, True])
def test_a_callback_whose_result_is_there_is_refused(client: Client, job: EventType, chained: bool) -> None:
    first = called_back(client)
    last = called_back(client, address_of(first)) if chained else first
    assert post(first).status_code == 201
    messages = Message.objects.count()
    answer = publish_job(client, address_of(last))
    assert problem(answer) == (400, "unsuitable_callback")
    assert "has had its reply" in answer.json()["detail"]
    assert Message.objects.count() == messages


def test_a_broker_that_does_not_know_its_address_says_so(client: Client, job: EventType, settings: Any) -> None:
    settings.PUBLIC_URL = ""
    answer = publish_job(client)
    assert problem(answer) == (501, "not_served")
    assert "BROKER_PUBLIC_URL" in answer.json()["detail"]
    assert not Message.objects.exists()


def test_an_address_survives_a_rotation_of_the_secret(client: Client, job: EventType, settings: Any) -> None:
    publish_job(client)
    callback = Callback.objects.get()
    before = address_of(callback)
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a new secret" * 5
    assert address_of(callback) == before
    settings.SECRET_KEY_FALLBACKS = []
    assert address_of(callback) == "", "not to be sent"


def test_an_address_is_made_by_the_terms_of_whoever_sends_it(client: Client, job: EventType) -> None:
    publish_job(client)
    keys = Keyring([settings.SECRET_KEY], CALLBACK_TOKEN)
    address = address_of(Callback.objects.get(), CallbackTerms("https://broker.example.org/b", keys, 1, EgressPolicy()))
    assert address.startswith("https://broker.example.org/b/api/v1/callbacks/")
