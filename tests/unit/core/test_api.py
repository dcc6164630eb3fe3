"""Problem documents, strict JSON and `If-Match`."""

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied, RequestDataTooBig, ValidationError
from django.db import DataError, IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, UnreadablePostError
from django.test import RequestFactory
from rest_framework import exceptions
from rest_framework.request import Request

from broker_project import urls as urls
from broker_project.core.api import problems
from broker_project.core.api.bodies import BodyTooLarge, EncodedBody, LengthRequired
from broker_project.core.api.problems import BAD_REQUEST, FAILED, InvalidQuery, ProblemType, problem_response, register
from broker_project.core.api.records import expected_versions
from broker_project.core.json import strict_json
from broker_project.stack.folders import ROOT
from delivery.api.receipts import REFUSALS
from delivery.mailbox.acknowledge import ReceiptCode
from subscriptions import edit

ROW = re.compile(r"^\| `(\w+)` \| (\d{3}) \|", re.MULTILINE)
REFUSAL = re.compile(r"refusal\(\s*(\d{3}),\s*\"(\w+)\"")
"""How the web server's side refuses what Django never hears of."""


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (exceptions.ParseError("x"), 400, "malformed_body"),
        (exceptions.ValidationError("x"), 400, "invalid"),
        (ValidationError("x"), 400, "invalid"),
        (InvalidQuery({"limit": "x"}), 400, "invalid_query"),
        (exceptions.NotAuthenticated(), 401, "unauthenticated"),
        (exceptions.AuthenticationFailed(), 401, "unauthenticated"),
        (exceptions.PermissionDenied(), 403, "forbidden"),
        (PermissionDenied(), 403, "forbidden"),
        (exceptions.NotFound(), 404, "not_found"),
        (Http404(), 404, "not_found"),
        (ObjectDoesNotExist(), 404, "not_found"),
        (exceptions.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (edit.NameTaken("x"), 409, "name_taken"),
        (edit.StillInUse("x"), 409, "still_in_use"),
        (IntegrityError("secret"), 409, "conflict"),
        (LengthRequired("x"), 411, "length_required"),
        (edit.VersionMismatch("x"), 412, "version_mismatch"),
        (BodyTooLarge("x"), 413, "body_too_large"),
        (RequestDataTooBig("x"), 413, "body_too_large"),
        (exceptions.UnsupportedMediaType("text/plain"), 415, "unsupported_media_type"),
        (EncodedBody("x"), 415, "encoded_body"),
        (exceptions.Throttled(7), 429, "throttled"),
        (UnreadablePostError("x"), 400, "incomplete_body"),
        (DataError("secret"), 400, "unstorable_value"),
        (OperationalError("secret"), 503, "database_unavailable"),
        (InterfaceError("secret"), 503, "database_unavailable"),
    ],
)
def test_an_exception_is_answered_with_one_problem(error: Exception, status: int, code: str) -> None:
    answer = problem_response(error)
    assert answer is not None
    assert (answer.status_code, answer.data["status"], answer.data["code"]) == (status, status, code)
    assert answer.data["type"] == f"/api/docs/problems#{code}"
    assert answer.content_type == "application/problem+json"
    assert "secret" not in answer.data["detail"]


@pytest.mark.parametrize("error", [ZeroDivisionError(), InternalError("cached plan must not change")])
def test_an_unexpected_exception_stays_an_error(error: Exception) -> None:
    assert problem_response(error) is None


def test_another_media_type_is_answered_with_the_one_to_send() -> None:
    answer = problem_response(exceptions.UnsupportedMediaType("application/x-www-form-urlencoded"))
    assert answer is not None
    assert "Content-Type: application/json" in answer.data["detail"]


def test_waiting_times_are_in_retry_after() -> None:
    answers = [problem_response(exceptions.Throttled(7)), problem_response(OperationalError())]
    assert [answer and answer["Retry-After"] for answer in answers] == ["7", "1"]


def test_an_app_can_register_its_own_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "_TYPES", problems._TYPES.copy())

    class Sold(Exception):
        pass

    class SoldTwice(Sold):
        pass

    register({Sold: ProblemType(410, "sold", "Sold", members=lambda error: {"to": error.args[0]})})
    answer = problem_response(SoldTwice("Ada"))
    assert answer is not None
    problem = {"type": "/api/docs/problems#sold", "code": "sold", "title": "Sold", "status": 410}
    assert answer.data == {**problem, "detail": "Ada", "to": "Ada"}


@pytest.mark.parametrize(
    ("error", "errors"),
    [
        (exceptions.ValidationError({"headers": {"X/Y~Z": ["bad"]}}), [("#/headers/X~1Y~0Z", "invalid", "bad")]),
        (exceptions.ValidationError({"list": [{}, {"name": ["bad"]}]}), [("#/list/1/name", "invalid", "bad")]),
        (
            exceptions.ValidationError({"name": ["bad"], "non_field_errors": ["worse"]}),
            [("#/name", "invalid", "bad"), ("#", "invalid", "worse")],
        ),
        (ValidationError("bad", code="worse"), [("#", "worse", "bad")]),
        (ValidationError({"name": "bad"}), [("#/name", "invalid", "bad")]),
    ],
)
def test_errors_of_serializers_and_of_rules_point_into_the_body(error: Exception, errors: list[Any]) -> None:
    answer = problem_response(error)
    assert answer is not None
    assert answer.data["errors"] == [{"pointer": at, "code": code, "detail": said} for at, code, said in errors]


def existing() -> Iterator[tuple[str, int]]:
    """Return code and status of every problem."""
    yield from ((kind.code, kind.status) for kind in (*problems._TYPES.values(), BAD_REQUEST, FAILED))
    for code in {*REFUSALS, ReceiptCode.ENDED}:
        yield str(code), int(HTTPStatus.NOT_FOUND if code is ReceiptCode.UNKNOWN else HTTPStatus.CONFLICT)
    for file in (ROOT / "broker_project" / "server").glob("*.py"):
        yield from ((code, int(status)) for status, code in REFUSAL.findall(file.read_text()))


def test_every_problem_is_documented_and_none_besides() -> None:
    rows = ROW.findall((ROOT / "docs" / "reference" / "problems.md").read_text())
    assert {(code, int(status)) for code, status in rows} == {*existing()}
    assert [code for code, _ in rows] == sorted({code for code, _ in rows})


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": [1, 2.5, null, true, "\xc3\xa4"]}', {"a": [1, 2.5, None, True, "ä"]}),
        (b' \n"text" ', "text"),
        (b'"\\u0000"', "\0"),
        (b'"\\ud83d\\ude00"', "😀"),
        (b"12345678901234567890123", 12345678901234567890123),
        (b"[" * 100 + b"]" * 100, None),
    ],
)
def test_json_is_read(body: bytes, value: object) -> None:
    read = strict_json(body)
    assert value is None or read == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b'{"a": ',
        b'{"a": 1}x',
        b'{"a": 1} {"b": 2}',
        b"{'a': 1}",
        b'{"a": 1,}',
        b"NaN",
        b"[Infinity]",
        b"[-Infinity]",
        b"1e400",
        b"9" * 5000,
        b'"\\ud800"',
        b'"\xff\xfe"',
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        b"[" * 2000 + b"]" * 2000,
        b"[" * 1000 + b"]" * 1000 + b"]",
        b'{"a":' * 1020 + b"1" + b"}" * 1020,
        b'{"name": "a", "name": "b"}',
        b'{"outer": [{"x": 1, "x": 1}]}',
    ],
)
def test_anything_but_strict_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        strict_json(body)


def test_the_refusal_of_a_duplicate_key_names_it() -> None:
    with pytest.raises(ValueError, match="the key 'name' occurs twice in an object"):
        strict_json(b'{"name": "a", "name": "b"}')


@pytest.mark.parametrize(
    ("header", "versions"),
    [
        ('"7"', {7}),
        ('"7", "12"', {7, 12}),
        ("*", None),
        ('W/"7"', set()),
        ("7", set()),
        ('"seven"', set()),
        ('"\u0667"', set()),
        ("", set()),
        ('"-1"', set()),
        (None, None),
    ],
)
def test_if_match_names_versions(header: str | None, versions: set[int] | None) -> None:
    request = Request(RequestFactory().get("/", headers={} if header is None else {"If-Match": header}))
    assert expected_versions(request) == versions
