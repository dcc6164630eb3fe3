"""What a script is given of a delivery, and what is sent after it (contract 8.1)."""

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from urllib.parse import unquote, urlsplit

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from delivery.statuses import DeliveryStatus
from delivery.webhook.content import Content
from delivery.webhook.request import Outgoing
from delivery.webhook.transform import TransformRefused, job_for, sent_record, transformed, with_param, withheld
from subscriptions.endpoints import parse_endpoint
from subscriptions.scripting.jobs import Failed, Job, Lost, Made
from tests.support.factories import DESTINATION, outgoing


def scripted(url: str = "https://host/a?b=c") -> Outgoing:
    content = Content(
        message_id=1,
        event_type="Test.Event",
        body=b'{"a": 1}',
        headers=(("X-Tag", "one"), ("Content-Type", "application/json")),
        content_type="application/json",
        stored_headers='[["X-Tag", "zero"], ["x-tag", "one"], ["FILTER_STRING", "q"]]',
        published_ms=1_700_000_000_123,
    )
    return replace(outgoing(7), content=content, destination=replace(DESTINATION, url=url, script="$param = 1"))


def job_of(delivery: Outgoing) -> Job:
    return job_for(delivery.id, delivery.content, delivery.destination)


def test_a_script_gets_the_filters_view_and_a_seed_from_its_delivery() -> None:
    job = job_of(scripted())
    headers = {"x-tag": ["zero", "one"], "filter_string": ["q"]}
    assert job == Job(
        "$param = 1", 1, b'{"a": 1}', is_json=True, headers=headers, now_ms=1_700_000_000_123, seed=job.seed
    )
    assert job.seed == job_of(scripted()).seed != job_of(replace(scripted(), id=8)).seed


@pytest.mark.behaviour("8.1")
def test_a_scripts_output_is_sent() -> None:
    made = Made(b"x" * 10, {"x-tag": "two", "X-More": "3"}, "/5")
    sent = transformed(scripted(), made)
    headers = (("x-tag", "two"), ("Content-Type", "application/json"), ("X-More", "3"))
    assert (sent.content.body, sent.content.headers, sent.content.url) == (b"x" * 10, headers, "https://host/a/5?b=c")
    assert sent.size == 10, "the larger of what came in and what goes out"


@pytest.mark.behaviour("10.4")
def test_what_a_script_made_is_kept_without_credentials() -> None:
    headers = {"Authorization": "Bearer tell-nobody", "X-Tenant": "acme"}
    of_url = replace(scripted().destination, headers=headers, signing_key=b"nobody-either, at all")
    made = Made(
        b"acme tell-nobody " + b64encode(of_url.signing_key),
        {"X-A": "of tell-nobody", "X-Key": "k"},
        "/tell-nobody?a=c&api_key=d&%74oken=e",
    )
    sent = transformed(replace(scripted(), destination=of_url), made)
    record = json.loads(sent_record(sent) or b"")
    assert record | {"body": b64decode(record["body"])} == {
        "url": "https://host/a/***?b=c&a=c&api_key=***&%74oken=***",
        "headers": [["X-A", "of ***"], ["X-Key", "***"]],
        "body": b"acme *** ***",
        "bytes": len(made.body or b""),
    }


@pytest.mark.behaviour("8.1")
def test_a_script_without_output_leaves_the_message_unchanged() -> None:
    sent = transformed(scripted(), Made())
    assert sent.content == replace(scripted().content, script_headers=())


@pytest.mark.behaviour("8.1")
@pytest.mark.parametrize(
    ("url", "param", "longer"),
    [
        ("https://host/a", "/5", "https://host/a/5"),
        ("https://host/a/", "5", "https://host/a/5"),
        ("https://host/a?b=c", "/5", "https://host/a/5?b=c"),
        ("https://host/a?b=c", "/5?d=e", "https://host/a/5?b=c&d=e"),
        ("https://host/a", "?d=e", "https://host/a?d=e"),
        ("https://host", "5", "https://host/5"),
        ("https://host", "@other.example/", "https://host/@other.example/"),
        ("https://host", ":81/", "https://host/:81/"),
        ("https://host", ".other.example", "https://host/.other.example"),
        ("https://host/", "/other.example", "https://host//other.example"),
        ("https://host/a", "/b c#d", "https://host/a/b%20c%23d"),
        ("https://host/a", "/b%2Fc%zz", "https://host/a/b%2Fc%25zz"),
        ("https://host/a", "/é", "https://host/a/%C3%A9"),
        ("https://host/a", "\\b", "https://host/a%5Cb"),
    ],
)
def test_a_parameter_is_appended_to_the_path(url: str, param: str, longer: str) -> None:
    assert with_param(url, param) == longer


@pytest.mark.behaviour("8.1")
@pytest.mark.parametrize(
    ("param", "says"),
    [
        ("/../b", "step"),
        ("/%2e%2E/b", "step"),
        ("/.%2e", "step"),
        ("/./b", "step"),
        ("\\..\\b", "step"),
        ("/%2e%2e%2fb", "step"),
        ("/..;/b", "step"),
        ("/.%2E%3Bc=d/b", "step"),
        ("/b\r\nX-A: b", "control"),
        ("/b\0", "control"),
        ("/" + "b" * 2048, "characters"),
    ],
)
def test_a_parameter_that_leaves_the_path_is_refused(param: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        with_param("https://host/a", param)


@given(st.text(max_size=30), st.sampled_from(["https://host", "https://host:8443/a/b", "http://host/a?b=c"]))
def test_no_parameter_changes_where_the_request_goes(param: str, url: str) -> None:
    try:
        longer = with_param(url, param)
    except ValidationError:
        return
    before, after = urlsplit(url), urlsplit(longer)
    assert (after.scheme, after.netloc, after.fragment) == (before.scheme, before.netloc, "")
    assert after.path.startswith(before.path)
    assert ".." not in unquote(after.path).replace("\\", "/").split("/")
    assert parse_endpoint(longer).url == longer


@pytest.mark.behaviour("8.1")
@pytest.mark.parametrize(
    "headers", [{"webhook-id": "1"}, {"Host": "other"}, {"X A": "b"}, {"X-A": "b\r\nX-B: c"}, {"X-A": "é"}]
)
def test_scripts_cannot_set_reserved_headers(headers: dict[str, str]) -> None:
    with pytest.raises(TransformRefused):
        transformed(scripted(), Made(headers=headers))


@pytest.mark.behaviour("8.3")
def test_a_failed_script_holds_its_delivery_and_a_lost_one_defers_it() -> None:
    delivery = replace(scripted(), times_deferred=2)
    held, deferred = withheld(3, delivery, Failed("it threw")), withheld(3, delivery, Lost("it is gone"))
    assert (held.status, held.pause, held.reason) == (DeliveryStatus.HELD, None, "script failed: it threw")
    assert (deferred.status, deferred.pause) == (DeliveryStatus.PENDING, 4.0)
    assert deferred.reason == "script lost: it is gone"


@pytest.mark.parametrize(
    ("result", "logged"), [(Failed("a secret"), "script failed"), (Lost("a secret"), "script lost")]
)
def test_a_scripts_error_is_stored_on_the_delivery_and_never_logged(result: Failed | Lost, logged: str) -> None:
    made = withheld(1, outgoing(7), result)
    assert (made.reason, made.log_reason) == (f"{logged}: a secret", logged)
