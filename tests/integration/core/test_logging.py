"""Errors as they are logged: what was refused, and not with which values, nor on which way where nothing failed."""

import logging
from collections.abc import Callable

import pytest
from django.db import DatabaseError, OperationalError
from django.http import HttpResponse
from django.test import Client
from django.utils.log import log_response
from structlog.testing import capture_logs

from broker_project.stack.load.receiver import Receiver, answer
from delivery.models import Delivery
from subscriptions.models import Subscriber, Subscription
from tests.support import broker
from tests.support.admin import admin_user
from tests.support.api import client_of
from tests.support.database import execute

SECRET = "confidential-0123456789"
LINES = f"first\nTraceback (most recent call last):\n\nDETAIL: {SECRET}\n{SECRET}"
"""What could be taken for another part of what is logged."""


def constraint() -> None:
    Subscriber.objects.create(name="café", description=SECRET, concurrency=-1)


def duplicate() -> None:
    for _ in range(2):
        Subscriber.objects.create(name=SECRET)


def wrong_number() -> None:
    execute("SELECT %s::int", [SECRET])


def constraint_of_lines() -> None:
    Subscriber.objects.create(name="café", description=LINES, concurrency=-1)


def wrong_lines() -> None:
    execute("SELECT %s::int", [LINES])


def out_of_range() -> None:
    execute("SELECT %s::date", [f"9-9-9\n{SECRET}"])


def in_another_language() -> None:
    """Fail with a text that nothing is found in."""
    execute(f"DO $$ BEGIN RAISE EXCEPTION 'Zeile\nDÉTAIL : {SECRET}'; END $$")


def wrong_json() -> None:
    execute("SELECT %s::jsonb", [f'{{"key": {SECRET}}}'])


FAILING = [
    *(constraint, constraint_of_lines, duplicate, wrong_number, wrong_lines),
    *(wrong_json, out_of_range, in_another_language),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", FAILING)
def test_logged_database_error_has_no_values(fails: Callable[[], None]) -> None:
    logged = formatted("Server Error", raised=(failure := failure_of(fails)))
    assert logged.count("Traceback") == 2, "that of the event loop and that of Django"
    assert f"django.db.utils.{type(failure).__name__}: {type(failure.__cause__).__name__} (" in logged
    assert SECRET not in logged


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", FAILING)
def test_redacted_database_error_has_no_values(fails: Callable[[], None]) -> None:
    failure = failure_of(fails)
    events: list[dict[str, object]] = [{"reason": failure}, {"more": {"reasons": [failure, {"one": failure}]}}]
    assert [SECRET in formatted({"event": "x", **event}) for event in events] == [False, False]
    assert type(failure.__cause__).__name__ in formatted({"event": "x", **events[0]})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [constraint, constraint_of_lines, duplicate, wrong_number, wrong_lines, wrong_json])
@pytest.mark.parametrize("write", [str, repr])
def test_text_with_a_database_error_has_no_values(fails: Callable[[], None], write: Callable[[object], str]) -> None:
    text = write(failure_of(fails))
    assert SECRET not in formatted({"event": "x", "reason": text})
    assert SECRET not in formatted(f"Task failed: {text}")
    assert SECRET not in formatted({"event": "x", "reasons": [text]})


@pytest.mark.django_db(transaction=True)
def test_refused_constraint_is_named() -> None:
    logged = formatted({"event": "x", "reason": failure_of(constraint)})
    assert "CheckViolation (23514) new row for relation" in logged
    assert "subscriber_concurrency" in logged


def test_connection_failure_has_its_reason() -> None:
    assert "connection refused" in formatted({"event": "x", "reason": OperationalError("connection refused")})


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "host", "status", "told"),
    [
        ("/admin/auth/user/", "testserver", 403, "Permission denied"),
        ("/admin/second-factor/code/", "somebody.example", 400, "Invalid HTTP_HOST header"),
    ],
)
def test_refusals_log_a_line(caplog: pytest.LogCaptureFixture, path: str, host: str, status: int, told: str) -> None:
    browser = Client()
    browser.force_login(admin_user(is_superuser=False))
    assert browser.get(path, headers={"Host": host}).status_code == status
    (line,) = [formatter().format(record) for record in caplog.records]
    assert told in line
    assert "Traceback" not in line


def test_failed_request_logs_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError) as bug:
        divmod(1, 0)
    log_response("Server Error", response=HttpResponse(status=500), exception=bug.value)
    (line,) = [formatter().format(record) for record in caplog.records]
    assert "Traceback" in line


def failure_of(fails: Callable[[], None]) -> DatabaseError:
    try:
        fails()
    except DatabaseError as failure:
        return failure
    raise AssertionError("it did not fail")


def formatted(event: dict[str, object] | str, *, raised: BaseException | None = None) -> str:
    """Return a line of the log, of our own event or of what a library says."""
    exc_info = (type(raised), raised, raised.__traceback__) if raised else None
    record = logging.LogRecord("django.request", logging.ERROR, "", 0, event, (), exc_info)
    if isinstance(event, dict):
        vars(record).update(_logger=None, _name="info")  # as structlog has it
    return formatter().format(record)


def formatter() -> logging.Formatter:
    """Return what makes lines of the log."""
    return next(handler.formatter for handler in logging.getLogger().handlers if handler.formatter)


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_way_of_a_message_is_logged_if_it_is_wanted(
    receiver: Receiver, wanted: Subscription, monkeypatch: pytest.MonkeyPatch, *, is_complete: bool
) -> None:
    level = logging.INFO if is_complete else logging.WARNING
    monkeypatch.setattr(logging.getLogger("messages"), "isEnabledFor", lambda asked: asked >= level)
    receiver.on("/a", answer(500), answer(200))
    with capture_logs() as logged:
        client_of().post(f"/api/v1/events/{wanted.event_type}", b"{}", "application/json")
        with broker.running_worker():
            broker.cut_pauses_until_done()
    one = Delivery.objects.get()
    events = [(line["event"], line["message_id"]) for line in logged if "message_id" in line]
    expected = (
        ["message.published", "delivery.not_taken", "delivery.delivered"] if is_complete else ["delivery.not_taken"]
    )
    assert events == [(event, one.message_id) for event in expected]
    assert {line["subscriber"] for line in logged if "subscriber" in line} == {wanted.subscriber.name}
