"""Problem documents (RFC 9457): the one place where an exception becomes an answer.

A use case raises an exception named for the fact; the API module that calls it registers what the fact means over
HTTP. Nothing here decides anything else.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.core.exceptions import (
    DisallowedHost,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    ValidationError,
)
from django.db import DataError, IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, UnreadablePostError
from psycopg.errors import IdleInTransactionSessionTimeout
from rest_framework import exceptions
from rest_framework.response import Response

from broker_project.core.api.errors import InvalidQuery, body_errors, django_errors, query_errors

PROBLEM_JSON: Final = "application/problem+json"


def _no_members(_: Any) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True)
class ProblemType:
    """What one kind of problem looks like; `code` is stable, `members` adds what the exception knows."""

    status: int
    code: str
    title: str
    detail: str | None = None
    """None: the exception's own text, which must then be fit for strangers."""
    members: Callable[[Any], Mapping[str, object]] = field(default=_no_members)
    retry_after: int | None = None

    def document(self, detail: str = "", **members: object) -> dict[str, object]:
        """Return the problem's JSON object."""
        head = {"type": f"urn:broker:{self.code}", "code": self.code, "title": self.title, "status": self.status}
        return {**head, "detail": detail or self.detail or self.title, **members}


UNAVAILABLE: Final = ProblemType(
    503, "database_unavailable", "Database unavailable", "The database does not answer; try again.", retry_after=1
)
UNKNOWN: Final = ProblemType(404, "not_found", "Not found", "There is nothing here, or not for this key.")
UNSTORABLE: Final = ProblemType(
    400, "unstorable_value", "Unstorable value", "A value cannot be stored: NUL characters or numbers out of range."
)

_TYPES: dict[type[BaseException], ProblemType] = {
    exceptions.ParseError: ProblemType(400, "malformed_body", "Malformed body"),
    exceptions.ValidationError: ProblemType(
        400, "invalid", "Invalid input", "See errors.", lambda error: {"errors": body_errors(error.detail)}
    ),
    InvalidQuery: ProblemType(
        400, "invalid_query", "Invalid query", "See errors.", lambda error: {"errors": query_errors(error.detail)}
    ),
    ValidationError: ProblemType(
        400, "invalid", "Invalid input", "See errors.", lambda error: {"errors": django_errors(error)}
    ),
    exceptions.NotAuthenticated: ProblemType(401, "unauthenticated", "Unauthenticated"),
    exceptions.AuthenticationFailed: ProblemType(401, "unauthenticated", "Unauthenticated"),
    exceptions.PermissionDenied: ProblemType(403, "forbidden", "Forbidden"),
    PermissionDenied: ProblemType(403, "forbidden", "Forbidden", "This key may not do that."),
    exceptions.NotFound: UNKNOWN,
    Http404: UNKNOWN,
    exceptions.MethodNotAllowed: ProblemType(405, "method_not_allowed", "Method not allowed"),
    exceptions.UnsupportedMediaType: ProblemType(415, "unsupported_media_type", "Unsupported media type"),
    exceptions.Throttled: ProblemType(429, "throttled", "Too many requests"),
    UnreadablePostError: ProblemType(400, "incomplete_body", "Incomplete body", "The body ended early."),
    RequestDataTooBig: ProblemType(413, "body_too_large", "Body too large"),
    DisallowedHost: ProblemType(
        400, "unknown_host", "Unknown host", "This broker has another name than the Host you sent: send one of its own."
    ),
    SuspiciousOperation: ProblemType(400, "bad_request", "Bad request", "The request is malformed."),
    DataError: UNSTORABLE,
    UnicodeEncodeError: UNSTORABLE,
    IntegrityError: ProblemType(
        409, "conflict", "Conflict", "Somebody else changed what this depends on, or it breaks a rule of the database."
    ),
    OperationalError: UNAVAILABLE,
    IdleInTransactionSessionTimeout: UNAVAILABLE,
    InterfaceError: UNAVAILABLE,
}


def register(types: Mapping[type[BaseException], ProblemType]) -> None:
    """Say what exceptions mean over HTTP; called once, by the API module that calls the use cases raising them."""
    _TYPES.update(types)


def registered() -> Collection[ProblemType]:
    """Return what exceptions mean over HTTP, as far as it has been said."""
    return _TYPES.values()


def type_of(error: BaseException) -> ProblemType | None:
    """Return the problem that `error` is, by its nearest registered class; None: we did not expect it.

    Django's `InternalError` can be anything; what it was to PostgreSQL is its cause.
    """
    known = error.__cause__ if isinstance(error, InternalError) else error
    return next((_TYPES[cls] for cls in type(known).__mro__ if cls in _TYPES), None)


def problem_response(error: Exception, context: Mapping[str, Any] | None = None) -> Response | None:  # noqa: ARG001
    """Return the answer to an exception in a view; None (a 500, logged) for what nobody expected. DRF's hook."""
    kind = type_of(error)
    if kind is None:
        return None
    detail = kind.detail or str(getattr(error, "detail", error))
    return problem(kind, detail, headers=_headers_of(error), **kind.members(error))


def problem(
    kind: ProblemType, detail: str = "", headers: Mapping[str, str] | None = None, **members: object
) -> Response:
    """Return an answer that is a problem document."""
    retry = {} if kind.retry_after is None else {"Retry-After": str(kind.retry_after)}
    document = kind.document(detail, **members)
    return Response(document, kind.status, headers={**retry, **(headers or {})}, content_type=PROBLEM_JSON)


def _headers_of(error: Exception) -> dict[str, str]:
    """Return what DRF's exceptions ask to be said in headers."""
    wait = getattr(error, "wait", None)
    challenge = getattr(error, "auth_header", None)
    return {
        **({"Retry-After": str(int(wait))} if wait else {}),
        **({"WWW-Authenticate": challenge} if challenge else {}),
    }
