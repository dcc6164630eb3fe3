"""The address that endpoints reply to: its token is the key, and one reply counts (contract 6.8 to 6.10)."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db.models.functions import Now
from django.test import Client

from broker_project.logging import without_tokens
from broker_project.stack.load.wait import wait_until
from delivery.callbacks.address import callback_terms
from delivery.models import Callback, ClockJump, Delivery, Lane, Line, Message
from subscriptions.models import EventType
from tests.support.api import (
    RESULT_BODY,
    Answer,
    callback_address,
    callback_path,
    create_callback,
    post_reply,
    problem_of,
)
from tests.support.database import do_and_disconnect, lock_waiters


@pytest.mark.behaviour("6.8")
def test_a_reply_is_stored_and_lined_up_for_the_original_url(callback: Callback, job: EventType) -> None:
    answer = post_reply(callback, X_Trace="7", Authorization="Basic c2VjcmV0")
    assert answer.status_code == 201
    reply = Message.objects.get(pk=answer.json()["id"])
    assert (bytes(reply.body), reply.content_type) == (RESULT_BODY, "application/json")
    assert reply.answers == callback.message_id
    assert (reply.publisher_id, reply.event_type_id) == (callback.publisher_id, job.pk)
    names = {name for name, _ in reply.headers}
    assert "X-Trace" in names
    assert "Authorization" not in names
    line = Line.objects.get(lane=Lane.CALLBACK)
    delivery = Delivery.objects.get(message=reply)
    assert (line.callback_id, line.queue, line.holds.get().delivery_id) == (callback.pk, "callbacks", delivery.pk)
    assert (delivery.line_id, delivery.subscription_id, delivery.status) == (line.pk, None, "PENDING")
    callback.refresh_from_db()
    assert (callback.reply_id, callback.delivery_id) == (reply.pk, delivery.pk)


@pytest.mark.behaviour("6.10")
def test_the_same_reply_again_gets_the_same_id_and_another_is_refused(callback: Callback) -> None:
    first = post_reply(callback)
    again = post_reply(callback)
    assert (again.status_code, again.json()) == (200, first.json())
    for other in (
        post_reply(callback, RESULT_BODY + b" "),
        post_reply(callback, RESULT_BODY, "text/plain"),
        post_reply(callback, b""),
    ):
        assert problem_of(other) == (409, "callback_answered")
    assert Message.objects.filter(answers__isnull=False).count() == 1
    assert Delivery.objects.filter(subscription=None).count() == 1


def test_the_same_reply_again_is_known_even_when_the_time_is_over(callback: Callback) -> None:
    first = post_reply(callback)
    Callback.objects.update(expires_at=Now())
    assert (post_reply(callback).status_code, post_reply(callback).json()) == (200, first.json())


@pytest.mark.behaviour("6.10")
@pytest.mark.parametrize("token", ["A" * 43, "x", "A" * 5000, "%00", "\N{SNOWMAN}", "a%2Fb", "1", "9" * 30])
def test_an_unknown_token_is_not_found(callback: Callback, token: str) -> None:
    answer = Client().post(f"/api/v1/callbacks/{token}", RESULT_BODY, content_type="application/json")
    assert answer.status_code == 404
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.behaviour("6.10")
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_only_post_is_allowed(callback: Callback, method: str) -> None:
    answer = Client().generic(method, callback_path(callback), b"")
    assert problem_of(answer) == (405, "method_not_allowed")
    assert "POST" in answer["Allow"]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"", "text/plain"), (b"\x00\xff" * 100, "application/octet-stream"), (b"<a/>", "text/xml"), (b"no json", "")],
)
def test_a_reply_may_be_anything(callback: Callback, body: bytes, content_type: str) -> None:
    reply = Message.objects.get(pk=post_reply(callback, body, content_type).json()["id"])
    assert (bytes(reply.body), reply.content_type) == (body, content_type or "application/octet-stream")


def test_a_reply_is_no_larger_than_a_message(callback: Callback, settings: Any) -> None:
    assert problem_of(post_reply(callback, b"x" * (settings.MAX_BODY_BYTES + 1))) == (413, "body_too_large")
    assert post_reply(callback, b"x" * settings.MAX_BODY_BYTES).status_code == 201


def test_a_content_type_that_cannot_be_sent_on_is_refused(callback: Callback) -> None:
    assert problem_of(post_reply(callback, content_type="x" * 300)) == (400, "invalid_metadata")


@pytest.mark.parametrize("key", ["Bearer brk_wrong", "Basic x", ""])
def test_a_reply_needs_no_api_key_and_ignores_one(callback: Callback, key: str) -> None:
    assert post_reply(callback, Authorization=key).status_code == 201


def at_once(
    calls: list[Callable[[], Answer]], callback: Callback, elsewhere: "psycopg.Connection[Any]"
) -> list[Answer]:
    """Make all the calls, none of which gets beyond the callback before all have come to it."""
    elsewhere.execute("SELECT FROM delivery_callback WHERE id = %s FOR UPDATE", [callback.pk])
    with ThreadPoolExecutor(len(calls)) as threads:
        answers = [threads.submit(do_and_disconnect, one) for one in calls]
        wait_until(lambda: lock_waiters() >= len(calls))
        elsewhere.commit()
    return [one.result() for one in answers]


@pytest.mark.behaviour("6.10")
def test_simultaneous_equal_replies(storage: None, callback: Callback, elsewhere: "psycopg.Connection[Any]") -> None:
    answers = at_once([lambda: post_reply(callback)] * 15, callback, elsewhere)
    assert sorted(answer.status_code for answer in answers) == [200] * 14 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Message.objects.filter(answers__isnull=False).count() == 1
    assert Line.objects.filter(lane=Lane.CALLBACK).count() == 1


@pytest.mark.behaviour("6.9")
def test_a_reply_is_passed_on_inside_to_the_original_url(client: Client, callback: Callback) -> None:
    middle = create_callback(client, callback_address(callback))
    last = create_callback(client, callback_address(middle))
    reply_id = post_reply(last).json()["id"]
    assert {one.reply_id for one in Callback.objects.all()} == {reply_id}
    assert Message.objects.get(pk=reply_id).answers == callback.message_id
    callback.refresh_from_db()
    assert Delivery.objects.get(subscription=None).pk == callback.delivery_id
    assert [*Callback.objects.exclude(pk=callback.pk).values_list("delivery_id", flat=True)] == [None, None]


@pytest.mark.behaviour("6.9")
def test_a_reply_is_refused_if_the_chain_has_another_reply(client: Client, callback: Callback) -> None:
    child = create_callback(client, callback_address(callback))
    post_reply(callback, b"first")
    assert problem_of(post_reply(child, b"second")) == (409, "callback_answered")
    child.refresh_from_db()
    assert child.reply_id is None
    assert Message.objects.filter(answers__isnull=False).count() == 1


@pytest.mark.behaviour("6.9")
def test_two_children_with_the_same_result_are_one_reply(client: Client, callback: Callback) -> None:
    children = [create_callback(client, callback_address(callback)) for _ in range(2)]
    first, second = (post_reply(child) for child in children)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert {one.reply_id for one in Callback.objects.all()} == {first.json()["id"]}
    assert Delivery.objects.filter(subscription=None).count() == 1


@pytest.mark.behaviour("6.9", "6.10")
@pytest.mark.parametrize("children", [0, 6])
def test_one_of_several_simultaneous_replies_counts(
    storage: None, client: Client, callback: Callback, elsewhere: "psycopg.Connection[Any]", children: int
) -> None:
    asked = [create_callback(client, callback_address(callback)) for _ in range(children)] or [callback] * 6
    calls = [partial(post_reply, one, b"%d" % number) for number, one in enumerate(asked)]
    answers = at_once([*calls], callback, elsewhere)
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 5
    assert Callback.objects.exclude(reply=None).count() == (2 if children else 1), "the parent and the first child"
    assert Message.objects.filter(answers__isnull=False).count() == 1


@pytest.mark.behaviour("6.9")
def test_each_callback_of_a_chain_has_its_own_time(client: Client, callback: Callback) -> None:
    late, child = (create_callback(client, callback_address(callback)) for _ in range(2))
    Callback.objects.filter(pk__in=[callback.pk, late.pk]).update(expires_at=Now())
    for expired in (callback, late):
        assert problem_of(post_reply(expired)) == (410, "callback_expired")
    reply_id = post_reply(child).json()["id"]
    assert {*Callback.objects.exclude(pk=late.pk).values_list("reply_id", flat=True)} == {reply_id}


@pytest.mark.behaviour("6.8", "11.7")
def test_no_callback_expires_by_a_clock_that_is_not_believed(client: Client, callback: Callback) -> None:
    other = create_callback(client)
    Callback.objects.update(expires_at=Now())
    jump = ClockJump.objects.create(id=1, seconds=7200.0, believed_at=Now() + timedelta(minutes=5))
    assert create_callback(client, callback_address(callback)).parent == callback
    assert post_reply(callback).status_code == 201
    jump.delete()
    assert problem_of(post_reply(other)) == (410, "callback_expired")


@pytest.mark.behaviour("6.10")
def test_no_log_has_a_token(callback: Callback, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    Callback.objects.update(expires_at=Now())
    post_reply(callback)
    token = callback_path(callback).rpartition("/")[2]
    (record,) = [one for one in caplog.records if one.name == "django.request"]
    event = without_tokens(
        None, "", {"event": record.getMessage(), "exception": f"at {callback_address(callback)} line 7"}
    )
    gone = f"at {callback_terms().public_url}/api/v1/callbacks/… line 7"
    assert event == {"event": "Gone: /api/v1/callbacks/…", "exception": gone}
    assert token not in capsys.readouterr().err


@pytest.mark.behaviour("6.10")
@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/api/v1//callbacks/TOKEN", "/api/v1//callbacks/…"),
        ("/api/v1/callbacks//TOKEN/more", "/api/v1/callbacks/…"),
        ("/API/v1/Callbacks/./TOKEN", "/API/v1/Callbacks/…"),
    ],
)
def test_tokens_are_never_logged(callback: Callback, caplog: pytest.LogCaptureFixture, path: str, logged: str) -> None:
    token = callback_path(callback).rpartition("/")[2]
    assert Client().post(path.replace("TOKEN", token)).status_code == 404
    (record,) = [one for one in caplog.records if one.name == "django.request"]
    assert without_tokens(None, "", {"event": record.getMessage()}) == {"event": f"Not Found: {logged}"}


def test_openapi_says_that_no_key_is_needed(client: Client) -> None:
    operation = json.loads(client.get("/api/v1/openapi.json").content)["paths"]["/api/v1/callbacks/{token}"]["post"]
    assert operation.get("security", []) == [] or {} in operation["security"]
    assert {"200", "201", "default"} <= operation["responses"].keys()
