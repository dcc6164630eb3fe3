"""Test events: an endpoint is sent a sample at once, and nothing is stored of it, also if it fails."""

import asyncio
from typing import Any, cast

import pytest
from django.db import connection
from django.test import Client
from standardwebhooks import Webhook

from broker_project.core.egress import EgressPolicy
from broker_project.stack.load.receiver import Received, Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery.models import Attempt, Delivery, Message
from subscriptions.models import EventKind, EventType, Publisher, Subscription
from tests.support import factories
from tests.support.admin import browser_with
from tests.support.api import Answer, client_of, problem_of
from tests.support.behaviours import close

pytestmark = pytest.mark.usefixtures("calls")

SAMPLE = '{"order": 7,\n "total": 12.50}'


@pytest.fixture
def order(storage: None) -> EventType:
    return factories.event_type("Order.Paid", sample=SAMPLE)


@pytest.fixture
def wanted(order: EventType, receiver: Receiver) -> Subscription:
    return factories.subscription(event_type=order, endpoint=f"PUT:{receiver.url('/hook')}", headers={"X-Team": "blue"})


def send(subscription: Subscription, client: Client | None = None) -> Answer:
    return (client or client_of()).post(f"/api/v1/subscriptions/{subscription.pk}/send-test-event")


def only(receiver: Receiver) -> Received:
    (request,) = receiver.log
    return request


def test_the_sample_is_sent_as_a_test_and_not_stored(wanted: Subscription, receiver: Receiver) -> None:
    before = (wanted.version, wanted.status)
    receiver.on("/hook", answer(202, b"thanks", X_Queue="7"))
    came = send(wanted)
    said = came.json()
    assert (came.status_code, said["status_code"], said["reason"], said["answer_excerpt"]) == (200, 202, "", "thanks")
    assert "X-Queue: 7" in said["answer_headers"]
    assert 0 <= said["duration_ms"] < 5000
    request = only(receiver)
    headers = request.headers
    assert (request.method, request.body.decode(), headers["content-type"]) == ("PUT", SAMPLE, "application/json")
    assert (headers["webhook-test"], headers["x-team"], headers["broker-event-type"]) == ("true", "blue", "Order.Paid")
    assert headers["webhook-id"].startswith("test_")
    assert not {"webhook-sequence", "broker-message-id", "webhook-possible-duplicate"} & headers.keys()
    Webhook(wanted.signing_secret).verify(request.body, dict(headers))
    wanted.refresh_from_db()
    assert [model.objects.count() for model in (Message, Delivery, Attempt)] == [0, 0, 0]
    assert (wanted.version, wanted.status) == before


@pytest.mark.parametrize("fields", [{"status": "INACTIVE"}, {"event_pattern": "Order.*"}, {"sample": ""}])
def test_a_test_event_ignores_the_status(order: EventType, receiver: Receiver, fields: dict[str, Any]) -> None:
    if "sample" in fields:
        EventType.objects.update(**fields)
        fields = {"event_type": order}
    body = SAMPLE if "status" in fields else '{"test": true}'
    kind = {} if "event_pattern" in fields else {"event_type": order}
    assert send(factories.subscription(endpoint=receiver.url("/"), **kind | fields)).json()["status_code"] == 200
    assert only(receiver).body.decode() == body


@pytest.mark.parametrize("kind", [EventKind.QUEUE, EventKind.SYNC])
def test_of_every_kind(receiver: Receiver, storage: None, kind: EventKind) -> None:
    wanted = factories.subscription(event_type=factories.event_type(kind=kind), endpoint=receiver.url("/"))
    assert send(wanted).json()["status_code"] == 200


@pytest.mark.parametrize(
    ("behaviour", "status", "reason"),
    [
        (answer(500, b"x" * 3000), 500, ""),
        (answer(302, Location="/"), 302, ""),
        (close, None, "Empty reply from server"),
    ],
)
def test_a_test_event_reports_each_answer(
    wanted: Subscription, receiver: Receiver, behaviour: Any, status: int | None, reason: str
) -> None:
    receiver.on("/hook", behaviour)
    said = send(wanted).json()
    assert (said["status_code"], said["reason"], len(said["answer_excerpt"]) in {0, 1024}) == (status, reason, True)
    assert len(receiver.log) == 1


def test_a_test_event_times_out(wanted: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.playground.test_events.DEADLINE_SECONDS", 0.2)
    pool = cast("Any", connection).pool
    given_back: list[bool] = []

    def is_given_back() -> bool:
        stats = pool.get_stats()
        return bool(stats["pool_size"] == stats["pool_available"])

    async def note_and_hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.to_thread(wait_until, is_given_back, 1.0)
        given_back.append(True)
        return await hang(reader, writer)

    receiver.on("/hook", note_and_hang)
    said = send(wanted).json()
    assert (said["status_code"], said["reason"][:19]) == (None, "Operation timed out")
    assert given_back == [True], "the database connection, while the endpoint was waited for"


def test_denied_addresses_are_not_sent_to(wanted: Subscription, receiver: Receiver, settings: Any) -> None:
    settings.EGRESS_POLICY = EgressPolicy()
    said = send(wanted).json()
    assert (said["status_code"], said["reason"], receiver.log) == (None, "Address not allowed (loopback)", [])


@pytest.mark.behaviour("8.1")
@pytest.mark.parametrize(
    ("script", "body", "reason"),
    [
        ("$outmessage = {id: $inmessage.order};", [b'{"id":7}'], ""),
        ("throw 'not today';", [], "the script brought nothing to send: "),
        ("$outheader = {'Webhook-Test': 'false'};", [], "the script brought nothing to send: "),
    ],
)
def test_test_events_use_the_script(
    wanted: Subscription, receiver: Receiver, script: str, body: list[bytes], reason: str
) -> None:
    Subscription.objects.update(script=script)
    assert send(wanted).json()["reason"].startswith(reason)
    assert receiver.bodies("/hook") == body


def test_an_invalid_endpoint_runs_no_script(wanted: Subscription, receiver: Receiver) -> None:
    Subscription.objects.update(script="throw 'it was run';", endpoint="ftp://example.org/")
    said = send(wanted).json()
    reason = said["reason"].partition(",")[0]
    assert (said["status_code"], reason, receiver.log) == (None, "Give an absolute http:// or https:// URL", [])


@pytest.mark.parametrize("fields", [{"delivery_mode": "PULL", "endpoint": ""}, {"endpoint": "webr://price"}])
def test_a_subscription_without_endpoint_gets_no_test_event(storage: None, fields: dict[str, Any]) -> None:
    kind = EventKind.SYNC if fields["endpoint"] else EventKind.TOPIC
    wanted = factories.subscription(event_type=factories.event_type(kind=kind), script="1;", **fields)
    assert problem_of(send(wanted)) == (400, "nothing_to_send_to")


def test_subscribers_test_their_own_only(wanted: Subscription, publisher: Publisher, receiver: Receiver) -> None:
    stranger = factories.subscription()
    assert send(wanted, client_of(wanted.subscriber)).status_code == 200
    assert send(wanted, client_of(stranger.subscriber)).status_code == 404
    assert send(wanted, client_of(publisher)).status_code == 403
    assert send(wanted, Client()).status_code == 401
    assert len(receiver.log) == 1


def test_too_many_at_a_time(wanted: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.playground.test_events.MAX_WAITING", 0)
    assert problem_of(send(wanted)) == (503, "too_many_calls")
    assert receiver.log == []


def test_the_admin_shows_the_answer_to_a_test_event(admin: Client, wanted: Subscription, receiver: Receiver) -> None:
    receiver.on("/hook", answer(200, b"<b>fine</b>"), answer(503))
    page = f"/admin/subscriptions/subscription/{wanted.pk}/send_test_event/"
    assert "Answered" not in admin.get(page).text
    sent = admin.post(page).text
    assert "Answered 200 after " in sent
    assert "&lt;b&gt;fine&lt;/b&gt;" in sent
    assert "<b>fine</b>" not in sent
    assert "Answered 503 after " in admin.post(page).text
    assert page in admin.get(page.replace("send_test_event", "change")).text
    assert len(receiver.log) == 2, "looking at the question sends nothing"
    may_not_read = browser_with("subscriptions.change_subscription", "subscriptions.view_subscription")
    receiver.on("/hook", answer(200, b"<b>fine</b>"))
    assert "fine&lt;" not in may_not_read.post(page).text
