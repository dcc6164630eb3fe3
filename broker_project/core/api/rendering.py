"""Answers where no API view was reached or one failed: problem documents below `/api/`, Django's pages elsewhere."""

from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views import defaults

from broker_project.core.api.problems import PROBLEM_JSON, UNKNOWN, ProblemType, type_of
from broker_project.core.api.rendering_ import to_json

API: Final = "/api/"
BAD_REQUEST: Final = ProblemType(400, "bad_request", "Bad request", "The request is malformed.")
FORBIDDEN: Final = ProblemType(403, "forbidden", "Forbidden")
FAILED: Final = ProblemType(500, "internal_error", "Internal error", "The broker failed; the log says why.")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer what Django refused before any view: an unknown host, too much of something."""
    if not request.path.startswith(API):
        return defaults.bad_request(request, exception)
    return _answer(type_of(exception) or BAD_REQUEST)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer a refusal outside API views."""
    return _answer(FORBIDDEN) if request.path.startswith(API) else defaults.permission_denied(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer an unknown address."""
    return _answer(UNKNOWN) if request.path.startswith(API) else defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Answer what nobody expected; Django has logged it."""
    return _answer(FAILED) if request.path.startswith(API) else defaults.server_error(request)


def _answer(kind: ProblemType) -> HttpResponse:
    return HttpResponse(to_json(kind.document()), status=kind.status, content_type=PROBLEM_JSON)
