"""Try filters in the admin, and scripts over the API."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags

from delivery.models import Delivery, Message
from delivery.playground import trials
from subscriptions.filters import document, parse_filter
from subscriptions.models import EventKind, EventType, Subscription
from subscriptions.scripting import runner
from subscriptions.scripting.jobs import Job, Made
from tests.support import factories
from tests.support.admin import form_shown, save_form
from tests.support.api import JSON, Answer, client_of, publish

pytestmark = pytest.mark.django_db

OPEN = "$$->'Body'->>'state' = 'open'"
LAB = "/admin/delivery/message/filter-lab/"

SCRIPT = """$outmessage = {id: $inmessage.id};
$outheader = {'X-Team': $inheader['X-Team'][0], 'Content-Type': 'application/vnd.team+json'};
$param = '/' + $inmessage.id;"""
GIVEN = {"body": '{"id": "a b"}', "headers": {"x-team": "blue", "Authorization": "secret", "Accept": "none"}}


@pytest.fixture
def filtered(event_type: EventType) -> Subscription:
    return factories.subscription(event_type=event_type, filter=OPEN, header_filter_string="eu")


def shown(answer: Answer) -> str:
    """Return the page's text, blanks joined."""
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_a_filter_lab_opens_with_the_newest_message(admin: Client, client: Client, filtered: Subscription) -> None:
    publish(client, b'{"state": "shut"}', FILTER_STRING="eu")
    publish(client, b'{"state": "open"}', FILTER_STRING="eu")
    action = reverse("admin:subscriptions_subscription_test_filter", args=[filtered.pk])
    page = admin.get(action, follow=True)
    newest = Message.objects.order_by("-pk")[0]
    assert (page.context["message"].pk, page.context["verdict"].qualifies) == (newest.pk, True)
    assert "<strong>1</strong> matches, header filter included." in shown(page)
    assert f'href="/admin/subscriptions/subscription/{filtered.pk}/change/">Back to' in shown(page)
    assert "newest 2 messages" in shown(page)


def test_an_edited_filter_is_tried_on_a_chosen_message(admin: Client, client: Client, event_type: EventType) -> None:
    publish(client, b'{"state": "<b>shut</b>"}')
    chosen = Message.objects.get()
    publish(client, b'{"state": "open"}')
    page = admin.post(LAB, {"message": chosen.pk, "filter": f"{OPEN} or $$->'Body'->>'nothing' = '1'"})
    assert [term.result for term in page.context["verdict"].filter.terms] == ["false", "null"]
    assert "&lt;b&gt;shut&lt;/b&gt;" in shown(page)
    assert "<b>shut</b>" not in shown(page)
    assert "<em>nothing</em>" in shown(page)


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"filter": "$$->>'Body' == 'b'"}, "filter", "line 1, column 14"),
        ({"filter": OPEN}, "message", "Choose an event type"),
        ({"filter": OPEN, "message": "5"}, "message", "no such message"),
        ({"filter": OPEN, "message": "x"}, "message", "Enter the id of a message, such as msg_"),
        ({"filter": OPEN, "message": "9" * 30}, "message", "Enter the id of a message"),
    ],
)
def test_the_lab_says_what_it_cannot_try(admin: Client, fields: dict[str, str], field: str, said: str) -> None:
    errors = admin.post(LAB, fields).context["form"].errors
    assert said in " ".join(errors[field])


def test_a_pattern_subscription_leads_to_a_lab_without_errors(admin: Client, event_type: EventType) -> None:
    made = factories.subscription(event_pattern="Test.*", filter=OPEN)
    page = admin.get(LAB, {"subscription": made.pk})
    assert (page.context["form"].errors, page.context["form"]["filter"].value()) == ({}, OPEN)
    assert "choose one of its event types" in shown(page)


def test_a_message_of_another_type_than_chosen_is_refused(admin: Client, client: Client, event_type: EventType) -> None:
    publish(client, b"1")
    fields = {"event_type": factories.event_type().pk, "message": Message.objects.get().pk}
    (error,) = admin.post(LAB, fields).context["form"].errors["message"]
    assert error == f"This message has the event type {event_type}; choose that, or none."


def test_the_header_filter_counts(client: Client, event_type: EventType) -> None:
    for place in ("eu", "us", "eu"):
        publish(client, b'{"state": "open"}', FILTER_STRING=place)
    for wanted in (None, parse_filter(OPEN)):
        trial = trials.try_filters(wanted, event_type, header_filter_string="eu")
        assert trial == trials.Trial(tried=3, matching=2, failing=0)


def test_the_lab_needs_a_stored_message(admin: Client, filtered: Subscription) -> None:
    page = admin.get(LAB, {"subscription": filtered.pk})
    assert page.context["form"].errors == {"message": ["No message of this event type is stored yet."]}


@pytest.mark.parametrize("query", [{}, {"subscription": "x"}, {"message": "9" * 30}, {"event_type": "x"}])
def test_the_lab_opens_with_any_query(admin: Client, query: dict[str, str]) -> None:
    assert "Try it" in shown(admin.get(LAB, query))


def test_trials_have_limited_size(client: Client, event_type: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIED_BYTES", 45)
    monkeypatch.setattr(trials, "AT_ONCE", 1)
    for state in ("open", "shut", "open"):
        publish(client, b'{"state": "%s"}' % state.encode())
    trial = trials.try_filters(parse_filter(OPEN), event_type)
    assert trial == trials.Trial(tried=2, matching=1, failing=0)


def test_trials_have_limited_work(client: Client, event_type: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        publish(client, b'{"state": "open", "huge": 1e999999}')
    costly = parse_filter("$$->'Body'->>'state' like '_%'")
    monkeypatch.setattr(document, "MAX_WORK", 15)
    assert trials.try_filters(costly, event_type) == trials.Trial(tried=2, matching=2, failing=0)
    failing = parse_filter("$$->'Body'->'huge' = '1'")
    assert trials.try_filters(failing, event_type) == trials.Trial(tried=3, matching=0, failing=3)


@pytest.mark.parametrize(
    ("address", "way"),
    [
        (LAB, ["Messages", "Filter lab"]),
        ("/admin/subscriptions/eventtype/import/", ["Event types", "Import event types"]),
    ],
)
def test_a_page_says_where_it_is(admin: Client, address: str, way: list[str]) -> None:
    text = strip_tags(shown(admin.get(address)))
    assert " chevron_right ".join(way) in " ".join(text.split())


def test_message_pages_explain_the_routing(admin: Client, client: Client, filtered: Subscription) -> None:
    endpoint, failing = "PUT:https://tracker.example:8443/hook?a=b", "$$->'Body'->'huge' = '1'"
    made = factories.subscription(event_type=filtered.event_type, filter=failing, endpoint=endpoint)
    publish(client, b'{"state": "<i>shut</i>", "huge": 1e999999}', FILTER_STRING="eu")
    page = shown(admin.get(f"/admin/delivery/message/{Message.objects.get().pk}/change/"))
    said = ("does not", "The filter is false.", "held", "The filter fails: the delivery is HELD.", "131072 digits")
    assert [one for one in (*said, "by today&#x27;s configuration") if one not in page] == []
    assert page.count(f">{made.pk}: {made}, tracker.example:8443</a>") == 3
    assert "&lt;i&gt;shut&lt;/i&gt;" in page
    assert "<i>shut</i>" not in page


def test_a_broken_filter_is_not_saved_in_the_admin(admin: Client, filtered: Subscription) -> None:
    form = form_shown(admin, filtered)
    page = save_form(admin, filtered, form | {"filter": "$$->>'a"})
    assert "line 1, column 6" in " ".join(page.context["adminform"].form.errors["filter"])
    save_form(admin, filtered, form | {"filter": f"NOT {OPEN}"})
    filtered.refresh_from_db()
    assert filtered.filter == f"NOT {OPEN}"


@pytest.fixture
def scripted(event_type: EventType) -> Subscription:
    own = {"X-Own": "1", "X-Team": "red"}
    return factories.subscription(
        event_type=event_type, endpoint="PUT:https://tracker.example/issues?all=1", headers=own, script=SCRIPT
    )


def ask(client: Client, path: str, **fields: object) -> Answer:
    return client.post(f"/api/v1/{path}", fields)


@pytest.mark.behaviour("8.1")
def test_a_script_is_tried_without_sending(management: Client, scripted: Subscription) -> None:
    answer = ask(management, f"subscriptions/{scripted.pk}/test-script", **GIVEN)
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


def test_another_script_is_tried_before_it_is_saved(management: Client, scripted: Subscription) -> None:
    path = f"subscriptions/{scripted.pk}/test-script"
    another = "$outmessage = 'as ' + $inheader['Filter-String'][0]"
    tried = ask(management, path, script=another, body="1", filter_string="eu").json()
    assert (tried["body"], tried["path"]) == ("as eu", "/issues?all=1")
    scripted.refresh_from_db()
    assert scripted.script == SCRIPT


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


def test_script_trials_need_access(client: Client, management: Client, scripted: Subscription) -> None:
    other = factories.subscription()
    publish(client, b'{"id": 7}', X_TEAM="blue")
    tests = {"script": SCRIPT, "message_id": Message.objects.get().pk}
    clients = [management, client_of(scripted.subscriber), client_of(other.subscriber), client]
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
def test_a_bad_trial_is_refused(management: Client, fields: dict[str, object], pointer: str, detail: str) -> None:
    answer = ask(management, "scripts/test", **fields)
    error = answer.json()["errors"][0]
    assert (answer.status_code, error["pointer"], detail in error["detail"]) == (400, pointer, True)


def test_waiting_script_trials_are_limited(management: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_waiting_threads", threading.BoundedSemaphore(1))
    with runner._waiting_threads:
        answer = ask(management, "scripts/test", script="1", body="1")
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "scripts_busy", "1")
    with ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(runner, "_waiting_threads", threading.BoundedSemaphore(4))
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
    said = (answered["status_code"], answered["headers"], answered["body"])
    assert said == (200, {"Content-Type": JSON}, '{"cents":5}')
    other = ask(management, path, script="$statuscode = 404; $outheader = {'Content-Type': 'a/b'}", body="1").json()
    assert (other["status_code"], other["headers"], other["body"]) == (404, {"Content-Type": "a/b"}, "")
    refused = ask(management, path, script="$statuscode = 99", body="1").json()
    assert (refused["is_sent"], refused["status_code"]) == (False, None)
    assert "$statuscode must be from 200 to 599" in refused["reason"]


def test_a_script_without_subscription_shows_its_status(management: Client) -> None:
    scripts = ["$statuscode = 404", "1", "$statuscode = 'none'"]
    tried = [ask(management, "scripts/test", script=script, body="1").json() for script in scripts]
    assert [(one["is_sent"], one["status_code"]) for one in tried] == [(True, 404), (True, 200), (True, None)]


def test_scripts_of_queue_subscriptions_are_not_tried(management: Client) -> None:
    queue = factories.subscription(event_type=factories.event_type(kind=EventKind.QUEUE))
    answer = ask(management, f"subscriptions/{queue.pk}/test-script", script="1", body="1")
    assert (answer.status_code, "TOPIC" in answer.content.decode()) == (400, True)
