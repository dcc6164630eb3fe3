"""Trying a script on a message over the API: what would be sent, or why nothing would."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.test import Client

from delivery.models import Delivery, Message
from subscriptions.models import EventKind, EventType, Subscription
from subscriptions.scripting import runner
from subscriptions.scripting.jobs import Job, Made
from tests import factories
from tests.clients import Answer, client_of
from tests.publishing import JSON, publish

pytestmark = pytest.mark.django_db

SCRIPT = """$outmessage = {id: $inmessage.id};
$outheader = {'X-Team': $inheader['X-Team'][0], 'Content-Type': 'application/vnd.team+json'};
$param = '/' + $inmessage.id;"""
GIVEN = {"body": '{"id": "a b"}', "headers": {"x-team": "blue", "Authorization": "secret", "Accept": "none"}}


@pytest.fixture
def subscription(event_type: EventType) -> Subscription:
    own = {"X-Own": "1", "X-Team": "red"}
    return factories.subscription(
        event_type=event_type, endpoint="PUT:https://tracker.example/issues?all=1", headers=own, script=SCRIPT
    )


def ask(client: Client, path: str, **fields: object) -> Answer:
    return client.post(f"/api/v1/{path}", fields, content_type=JSON)


@pytest.mark.behaviour("8.1")
def test_a_subscriptions_script_is_tried_and_nothing_is_sent(management: Client, subscription: Subscription) -> None:
    answer = ask(management, f"subscriptions/{subscription.pk}/test-script", **GIVEN)
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "is_sent": True,
            "reason": "",
            "method": "PUT",
            "path": "/issues/a%20b?all=1",
            "status_code": None,
            "headers": {
                "X-Team": "***",
                "Content-Type": "application/vnd.team+json",
                "X-Own": "***",
                "User-Agent": "broker/0.1",
            },
            "body": '{"id":"a b"}',
            "body_base64": "eyJpZCI6ImEgYiJ9",
        },
    )
    assert (Message.objects.count(), Delivery.objects.count()) == (0, 0)


def test_another_script_is_tried_before_it_is_saved(management: Client, subscription: Subscription) -> None:
    path = f"subscriptions/{subscription.pk}/test-script"
    tried = ask(
        management, path, script="$outmessage = 'as ' + $inheader['Filter-String'][0]", body="1", filter_string="eu"
    )
    assert (tried.json()["body"], tried.json()["path"]) == ("as eu", "/issues?all=1")
    subscription.refresh_from_db()
    assert subscription.script == SCRIPT


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("1;\n\n$inmessage.issue.id", "TypeError: cannot read property 'id' of undefined (line 3)"),
        ("\na b", "SyntaxError: expecting ';' (line 2)"),
        ("$outmessage=", "(line 1)"),
        ("$param = '/../x'", "$param must not step up the path with '..' or '.'."),
        ("$outheader = {'Host': 'x'}", "Host"),
    ],
)
def test_a_script_that_fails_says_why_and_where(management: Client, script: str, reason: str) -> None:
    tried = ask(management, "scripts/test", script=script, body="{}").json()
    assert (tried["is_sent"], tried["path"], tried["body"]) == (False, None, None)
    assert reason in tried["reason"]


def test_a_script_is_tried_on_a_stored_message_by_whoever_may_see_it(
    client: Client, management: Client, subscription: Subscription
) -> None:
    other = factories.subscription()
    publish(client, b'{"id": 7}', X_TEAM="blue")
    tests = {"script": SCRIPT, "message_id": Message.objects.get().pk}
    clients = [management, client_of(subscription.subscriber), client_of(other.subscriber), client]
    assert [ask(one, "scripts/test", **tests).status_code for one in clients] == [200, 200, 404, 403]
    tried = ask(management, "scripts/test", **tests).json()
    assert (tried["method"], tried["path"], tried["headers"]["X-Team"]) == ("POST", "/endpoint/7", "blue")
    path = f"subscriptions/{other.pk}/test-script"
    assert [ask(one, path, body="1").status_code for one in clients] == [200, 404, 200, 403]


@pytest.mark.parametrize(
    ("fields", "pointer", "detail"),
    [
        ({"body": "1"}, "#/script", "required"),
        ({"script": "1"}, "#", "Give a message"),
        ({"script": "x" * 65_537, "body": "1"}, "#/script", "at most 64 KiB"),
        ({"script": "1", "body": "{"}, "#/body", "not JSON"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_the_place(
    management: Client, fields: dict[str, object], pointer: str, detail: str
) -> None:
    answer = ask(management, "scripts/test", **fields)
    error = answer.json()["errors"][0]
    assert (answer.status_code, error["pointer"], detail in error["detail"]) == (400, pointer, True)


def test_those_who_try_scripts_wait_for_each_other_and_not_too_many_do(
    management: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_places", threading.BoundedSemaphore(1))
    with runner._places:
        answer = ask(management, "scripts/test", script="1", body="1")
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "scripts_busy", "1")
    with ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(runner, "_places", threading.BoundedSemaphore(4))
        made = list(pool.map(runner.run_once, [Job(f"$outmessage = '{number}'") for number in range(4)]))
    assert [one.body for one in made if isinstance(one, Made)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.behaviour("8.2")
def test_the_script_that_answers_calls_is_tried_too(management: Client) -> None:
    sync = factories.subscription(
        event_type=factories.event_type(kind=EventKind.SYNC), endpoint="webr://price", script="$outmessage = {cents: 5}"
    )
    path = f"subscriptions/{sync.pk}/test-script"
    answered = ask(management, path, body="1").json()
    assert (answered["is_sent"], answered["method"], answered["path"]) == (True, None, None)
    assert (answered["status_code"], answered["headers"], answered["body"]) == (
        200,
        {"Content-Type": JSON},
        '{"cents":5}',
    )
    other = ask(management, path, script="$statuscode = 404; $outheader = {'Content-Type': 'a/b'}", body="1").json()
    assert (other["status_code"], other["headers"], other["body"]) == (404, {"Content-Type": "a/b"}, "")
    refused = ask(management, path, script="$statuscode = 99", body="1").json()
    assert (refused["is_sent"], refused["status_code"]) == (False, None)
    assert "$statuscode must be from 200 to 599" in refused["reason"]


def test_a_script_of_nobodys_shows_the_status_that_it_sets(management: Client) -> None:
    scripts = ["$statuscode = 404", "1", "$statuscode = 'none'"]
    tried = [ask(management, "scripts/test", script=script, body="1").json() for script in scripts]
    assert [(one["is_sent"], one["status_code"]) for one in tried] == [(True, 404), (True, 200), (True, None)]


def test_only_what_makes_a_request_is_tried(management: Client) -> None:
    queue = factories.subscription(event_type=factories.event_type(kind=EventKind.QUEUE))
    answer = ask(management, f"subscriptions/{queue.pk}/test-script", script="1", body="1")
    assert (answer.status_code, "TOPIC" in answer.content.decode()) == (400, True)
