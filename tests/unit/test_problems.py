"""What exceptions mean over HTTP."""

from typing import Any

import pytest
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied, RequestDataTooBig, ValidationError
from django.db import DataError, IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, UnreadablePostError
from psycopg.errors import IdleInTransactionSessionTimeout
from rest_framework import exceptions

from broker_project.core.api import problems
from broker_project.core.api.errors import InvalidQuery
from broker_project.core.api.parsing import BodyTooLarge, EncodedBody, LengthRequired
from broker_project.core.api.problems import ProblemType, problem_response, register
from subscriptions import edit, remove
from subscriptions.api import resources as resources  # registers what the use cases raise


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
        (remove.StillInUse("x"), 409, "still_in_use"),
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
def test_an_exception_has_one_meaning(error: Exception, status: int, code: str) -> None:
    answer = problem_response(error)
    assert answer is not None
    assert (answer.status_code, answer.data["status"], answer.data["code"]) == (status, status, code)
    assert answer.data["type"] == f"urn:broker:{code}"
    assert answer.content_type == "application/problem+json"
    assert "secret" not in answer.data["detail"]


@pytest.mark.parametrize("error", [ZeroDivisionError(), InternalError("cached plan must not change")])
def test_what_nobody_expected_stays_an_error(error: Exception) -> None:
    assert problem_response(error) is None


def test_a_transaction_that_was_idle_for_too_long_may_be_tried_again() -> None:
    error = InternalError("secret")
    error.__cause__ = IdleInTransactionSessionTimeout("secret")
    answer = problem_response(error)
    assert answer is not None
    assert (answer.status_code, answer.data["code"]) == (503, "database_unavailable")


def test_waiting_is_said_in_a_header() -> None:
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
    assert answer.data == {
        "type": "urn:broker:sold",
        "code": "sold",
        "title": "Sold",
        "status": 410,
        "detail": "Ada",
        "to": "Ada",
    }


def test_errors_of_a_body_point_into_it() -> None:
    nested: Any = {"headers": {"X/Y~Z": ["bad"]}, "list": [{}, {"name": ["worse"]}], "non_field_errors": ["all wrong"]}
    answer = problem_response(exceptions.ValidationError(nested))
    assert answer is not None
    assert answer.data["errors"] == [
        {"pointer": "#/headers/X~1Y~0Z", "code": "invalid", "detail": "bad"},
        {"pointer": "#/list/1/name", "code": "invalid", "detail": "worse"},
        {"pointer": "#", "code": "invalid", "detail": "all wrong"},
    ]


@pytest.mark.parametrize(
    ("error", "errors"),
    [
        (ValidationError("bad", code="worse"), [{"pointer": "#", "code": "worse", "detail": "bad"}]),
        (ValidationError({"name": "bad"}), [{"pointer": "#/name", "code": "invalid", "detail": "bad"}]),
    ],
)
def test_errors_of_rules_are_told_as_those_of_serializers(error: ValidationError, errors: object) -> None:
    answer = problem_response(error)
    assert answer is not None
    assert answer.data["errors"] == errors
