"""Callbacks over the API: what a publisher sees of them, and what nobody does."""

import pytest
from django.db.models.functions import Now
from django.test import Client

from delivery.maintenance.partitions import today
from delivery.models import Callback, Delivery, Line, Message
from subscriptions.models import EventType, Publisher
from tests import factories
from tests.calling_back import REPLY_TO, RESULT, address_of, called_back, job_type, path_of, post
from tests.clients import client_of, client_of_admin
from tests.publishing import problem


@pytest.fixture
def job(publisher: Publisher) -> EventType:
    return job_type()


@pytest.fixture
def callback(client: Client, job: EventType) -> Callback:
    return called_back(client)


def test_a_callback_shows_where_it_goes_and_how_it_stands(client: Client, callback: Callback) -> None:
    (shown,) = client.get(f"/api/v1/callbacks?message={callback.message_id}").json()["items"]
    assert shown == client.get(f"/api/v1/callbacks/{callback.pk}").json()
    assert {name: value for name, value in shown.items() if not name.endswith("_at")} == {
        "id": callback.pk,
        "message_id": callback.message_id,
        "state": "WAITING",
        "url": REPLY_TO,
        "parent_id": None,
        "depth": 1,
        "reply_id": None,
        "delivery": None,
    }
    assert (shown["created_at"] < shown["expires_at"], shown["replied_at"]) == (True, None)


def test_a_message_shows_its_callbacks_and_their_replies(client: Client, callback: Callback) -> None:
    reply_id = post(callback).json()["id"]
    (shown,) = client.get(f"/api/v1/messages/{callback.message_id}").json()["callbacks"]
    assert (shown["id"], shown["state"], shown["reply_id"]) == (callback.pk, "REPLIED", reply_id)
    assert shown["delivery"]["status"] == "PENDING"
    reply = client.get(f"/api/v1/messages/{reply_id}").json()
    assert (reply["answers"], reply["body"].encode(), reply["callbacks"]) == (callback.message_id, RESULT, [])


def test_a_publisher_reads_why_its_own_address_did_not_take_a_reply(client: Client, callback: Callback) -> None:
    reply_id, why = post(callback).json()["id"], "no answer: Could not resolve host: mine.example"
    Delivery.objects.filter(message_id=reply_id).update(reason=why)
    (shown,) = client.get(f"/api/v1/messages/{reply_id}").json()["deliveries"]
    assert shown["reason"] == why


@pytest.mark.parametrize(("replied", "state"), [(False, "EXPIRED"), (True, "REPLIED")])
def test_a_callback_nobody_replied_to_shows_that_it_has_expired(
    client: Client, callback: Callback, replied: bool, state: str
) -> None:
    if replied:
        post(callback)
    Callback.objects.update(expires_at=Now())
    assert client.get(f"/api/v1/callbacks/{callback.pk}").json()["state"] == state


def test_a_chain_shows_what_is_passed_on_to_whom(client: Client, callback: Callback) -> None:
    child = called_back(client, address_of(callback))
    post(child)
    shown = client.get("/api/v1/callbacks").json()["items"]
    assert [(one["id"], one["parent_id"], one["depth"], one["state"]) for one in shown] == [
        (child.pk, callback.pk, 2, "PASSED_ON"),
        (callback.pk, None, 1, "REPLIED"),
    ]


@pytest.mark.behaviour("1.2")
def test_a_publisher_sees_the_callbacks_of_its_own_messages_only(callback: Callback) -> None:
    reply_id = post(callback).json()["id"]
    other = client_of(factories.publisher())
    assert other.get("/api/v1/callbacks").json()["items"] == []
    assert other.get(f"/api/v1/callbacks?message={callback.message_id}").json()["items"] == []
    assert problem(other.get(f"/api/v1/callbacks/{callback.pk}")) == (404, "not_found")
    assert problem(other.get(f"/api/v1/messages/{reply_id}")) == (404, "not_found")
    assert len(client_of().get("/api/v1/callbacks").json()["items"]) == 1


def test_callbacks_are_listed_by_their_state(client: Client, job: EventType) -> None:
    names = ["waiting", "missed", "replied", "refused", "expired", "delivered", "ended"]
    of = {name: called_back(client) for name in names}
    of["passed_on"] = called_back(client, address_of(of["replied"]))
    for name in names[3:]:
        post(of[name])
    post(of["passed_on"])
    Callback.objects.filter(pk=of["missed"].pk).update(expires_at=Now())
    ends = {"refused": "REJECTED", "expired": "EXPIRED", "delivered": "DELIVERED"}
    for name, status in ends.items():
        of[name].refresh_from_db()
        of_reply = Delivery.objects.filter(message=of[name].reply)
        Line.objects.filter(callback=of[name]).update(head_id=None)
        of_reply.update(status="IN_FLIGHT")
        of_reply.update(status=status, closed_on=today(), finished_at=Now())
    Line.objects.filter(callback=of["ended"]).update(head_id=None)
    Callback.objects.filter(pk=of["ended"].pk).update(delivery_id=1)
    wanted = {
        "WAITING": {"waiting"},
        "REPLIED": {"replied"},
        "PASSED_ON": {"passed_on"},
        "DELIVERED": {"delivered"},
        "REFUSED": {"refused"},
        "EXPIRED": {"missed", "expired"},
        "ENDED": {"ended"},
    }
    for state, expected in wanted.items():
        listed = client.get(f"/api/v1/callbacks?state={state}").json()["items"]
        assert {one["id"] for one in listed} == {of[name].pk for name in expected}
        assert {one["state"] for one in listed} == {state}
    admin = client_of_admin()
    for query in ("stage=refused", f"q={of['refused'].message_id}", f"q={of['refused'].pk}"):
        assert [*admin.get(f"/admin/delivery/callback/?{query}").context["cl"].result_list] == [of["refused"]]


def test_a_subscriber_sees_no_callbacks(callback: Callback) -> None:
    assert problem(client_of(factories.subscriber()).get("/api/v1/callbacks")) == (403, "forbidden")


@pytest.mark.behaviour("6.10")
def test_nobody_sees_a_token(client: Client, callback: Callback) -> None:
    token = path_of(callback).rpartition("/")[2].encode()
    passed_on = called_back(client, address_of(callback))
    reply_id = post(callback).json()["id"]
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


def test_replies_are_not_among_what_was_published(client: Client, callback: Callback) -> None:
    post(callback)
    assert Message.objects.count() == 2
    for query in ("", "?outcome=ROUTED", f"?event_type={callback.event_type}"):
        listed = client.get(f"/api/v1/messages{query}").json()["items"]
        assert [one["id"] for one in listed] == [callback.message_id]
