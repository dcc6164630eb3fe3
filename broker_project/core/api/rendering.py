"""JSON out, and problem documents where no API view was reached."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views import defaults
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from broker_project.core.api.problems import PROBLEM_JSON, UNKNOWN, ProblemType, type_of

API: Final = "/api/"
BAD_REQUEST: Final = ProblemType(400, "bad_request", "Bad request", "The request is malformed.")
FORBIDDEN: Final = ProblemType(403, "forbidden", "Forbidden")
FAILED: Final = ProblemType(500, "internal_error", "Internal error", "The broker failed; the log says why.")


class JsonRenderer(BaseRenderer):
    """Writes JSON with orjson; times in UTC end in Z."""

    media_type = "application/json"
    format = "json"
    charset = None
    render_style = "binary"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,  # noqa: ARG002 - DRF's signature
        renderer_context: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> bytes:
        """Return `data` as JSON; nothing for an answer without a body."""
        return b"" if data is None else to_json(data)


def to_json(data: object) -> bytes:
    """Return `data` as JSON bytes."""
    return orjson.dumps(data, default=str, option=orjson.OPT_UTC_Z)


class AlwaysJson(DefaultContentNegotiation):
    """Answers with the view's first renderer whatever `Accept` says: a webhook client with odd defaults gets JSON."""

    def select_renderer(
        self,
        request: Request,  # noqa: ARG002 - DRF's signature
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,  # noqa: ARG002
    ) -> tuple[BaseRenderer, str]:
        """Return the first renderer and its media type."""
        first = next(iter(renderers))
        return first, first.media_type


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
