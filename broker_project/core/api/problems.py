"""Problem documents (RFC 9457): the one place where an exception becomes an answer.

A use case raises an exception named for the fact. The API module that calls it registers what the fact means in HTTP.
Errors of bodies and queries, which DRF and Django nest, become one flat list.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from django.core.exceptions import (
    DisallowedHost,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    ValidationError,
)
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, UnreadablePostError
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.settings import api_settings

PROBLEM_JSON: Final = "application/problem+json"
API: Final = "/api/"

Path = tuple[str, ...]


class InvalidQuery(exceptions.ValidationError):
    """Query parameters that are unknown, malformed or out of range."""


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of problem; clients can rely on `status` and `code`."""

    status: int
    code: str
    title: str = ""
    """Empty: the code in words."""
    detail: str | None = None
    """None: the exception's own text, which must then be fit for clients."""
    members: Callable[[Any], Mapping[str, object]] = field(default=lambda _: {})
    """Returns the problem's other members from the exception."""
    retry_after: int | None = None

    def document(self, detail: str = "", **members: object) -> dict[str, object]:
        """Return the problem's JSON object."""
        title = self.title or self.code.replace("_", " ").capitalize()
        head = {"type": f"/api/docs/problems#{self.code}", "code": self.code, "title": title, "status": self.status}
        return {**head, "detail": detail or self.detail or title, **members}


UNAVAILABLE: Final = ProblemType(
    503, "database_unavailable", detail="The database does not answer. Try again.", retry_after=1
)
UNKNOWN: Final = ProblemType(404, "not_found", detail="There is nothing here, or not for this key.")
UNSTORABLE: Final = ProblemType(
    400, "unstorable_value", detail="A value cannot be stored: NUL characters or numbers out of range."
)
BAD_REQUEST: Final = ProblemType(400, "bad_request", detail="The request is malformed.")
FORBIDDEN: Final = ProblemType(403, "forbidden")
FAILED: Final = ProblemType(500, "internal_error", detail="The broker failed. Its log says why.")


def body_errors(detail: Any) -> list[dict[str, str]]:
    """Return `{pointer, code, detail}` for each of DRF's errors; the pointer is a JSON pointer (RFC 6901) fragment."""
    return [
        {"pointer": "#" + "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in path), **rest}
        for path, rest in _flat(detail)
    ]


def _query_errors(detail: Any) -> list[dict[str, str]]:
    return [{"parameter": "".join(path[:1]), **rest} for path, rest in _flat(detail)]


def _django_errors(error: ValidationError) -> list[dict[str, str]]:
    """Return the errors of rules and models as those of DRF."""
    if hasattr(error, "error_dict"):
        detail: Any = {name: list(texts) for name, texts in error.message_dict.items()}
    else:
        detail = [exceptions.ErrorDetail(text, code=error.code or "invalid") for text in error.messages]
    return body_errors(exceptions.ValidationError(detail).detail)


def _flat(detail: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the leaves of DRF's nested errors, each with its path."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            own = (api_settings.NON_FIELD_ERRORS_KEY, "__all__")
            yield from _flat(inner, path if name in own else (*path, str(name)))
    elif isinstance(detail, Sequence) and not isinstance(detail, str):
        for index, inner in enumerate(detail):
            yield from _flat(inner, path if isinstance(inner, str) else (*path, str(index)))
    else:
        yield path, {"code": getattr(detail, "code", "invalid"), "detail": str(detail)}


_TYPES: dict[type[BaseException], ProblemType] = {
    exceptions.ParseError: ProblemType(400, "malformed_body"),
    exceptions.ValidationError: ProblemType(
        400, "invalid", "Invalid input", "See errors.", lambda error: {"errors": body_errors(error.detail)}
    ),
    InvalidQuery: ProblemType(
        400, "invalid_query", detail="See errors.", members=lambda error: {"errors": _query_errors(error.detail)}
    ),
    ValidationError: ProblemType(
        400, "invalid", "Invalid input", "See errors.", lambda error: {"errors": _django_errors(error)}
    ),
    exceptions.NotAuthenticated: ProblemType(
        401, "unauthenticated", detail="There is no API key: authenticate with 'Authorization: Bearer' and an API key."
    ),
    exceptions.AuthenticationFailed: ProblemType(401, "unauthenticated"),
    exceptions.PermissionDenied: FORBIDDEN,
    PermissionDenied: ProblemType(403, "forbidden", detail="This key may not do that."),
    exceptions.NotFound: UNKNOWN,
    Http404: UNKNOWN,
    exceptions.MethodNotAllowed: ProblemType(405, "method_not_allowed"),
    exceptions.UnsupportedMediaType: ProblemType(
        415, "unsupported_media_type", detail="Send the body as JSON, with 'Content-Type: application/json'."
    ),
    exceptions.Throttled: ProblemType(429, "throttled", "Too many requests"),
    UnreadablePostError: ProblemType(400, "incomplete_body", detail="The body ended early."),
    RequestDataTooBig: ProblemType(413, "body_too_large"),
    DisallowedHost: ProblemType(
        400, "unknown_host", detail="The Host of the request is not a name of this broker. Send one of its names."
    ),
    SuspiciousOperation: BAD_REQUEST,
    DataError: UNSTORABLE,
    UnicodeEncodeError: UNSTORABLE,
    IntegrityError: ProblemType(
        409, "conflict", detail="Something that this depends on has changed, or it breaks a rule of the database."
    ),
    OperationalError: UNAVAILABLE,
    InterfaceError: UNAVAILABLE,
}


def register(types: Mapping[type[BaseException], ProblemType]) -> None:
    """Register what exceptions mean in HTTP; called once, by the API module that calls the use cases raising them."""
    _TYPES.update(types)


def type_of(error: BaseException) -> ProblemType | None:
    """Return the problem of `error`, by its nearest registered class; None: it is unexpected."""
    return next((_TYPES[cls] for cls in type(error).__mro__ if cls in _TYPES), None)


def problem_response(error: Exception, context: Mapping[str, Any] | None = None) -> Response | None:  # noqa: ARG001
    """Return the answer to an exception in a view; None (a 500, logged) if it is unexpected. DRF's hook."""
    kind = type_of(error)
    if kind is None:
        return None
    headers = {}
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    detail = kind.detail or str(getattr(error, "detail", error))
    return problem(kind, detail, headers=headers, **kind.members(error))


def problem(
    kind: ProblemType, detail: str = "", headers: Mapping[str, str] | None = None, **members: object
) -> Response:
    """Return an answer that is a problem document."""
    retry = {} if kind.retry_after is None else {"Retry-After": str(kind.retry_after)}
    document = kind.document(detail, **members)
    return Response(document, kind.status, headers={**retry, **(headers or {})}, content_type=PROBLEM_JSON)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer what Django refuses before any view: an unknown host, too much of something."""
    return _answer(request, type_of(exception) or BAD_REQUEST) or defaults.bad_request(request, exception)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer a refusal outside API views."""
    return _answer(request, FORBIDDEN) or defaults.permission_denied(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer an unknown address."""
    return _answer(request, UNKNOWN) or defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Answer an unexpected error, which Django has logged."""
    return _answer(request, FAILED) or defaults.server_error(request)


def _answer(request: HttpRequest, kind: ProblemType) -> HttpResponse | None:
    """Return a problem document for addresses of the API; None elsewhere: people get pages."""
    if not request.path.startswith(API):
        return None
    return HttpResponse(orjson.dumps(kind.document()), status=kind.status, content_type=PROBLEM_JSON)
