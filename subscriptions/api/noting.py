"""What changes through the API is told in the log: which key, what, and which fields, never what they say.

The admin's history is of people; a key is none.
"""

from collections.abc import Mapping
from typing import Any

import structlog
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from subscriptions.models import ApiKey

log = structlog.get_logger(__name__)


class Noted(APIView):
    """A view whose changes are told."""

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Tell of what was done, once it is done."""
        answer = super().finalize_response(request, response, *args, **kwargs)
        if request.method not in SAFE_METHODS and answer.status_code < 400:  # noqa: PLR2004 - where errors begin
            _tell(request)
        return answer


def _tell(request: Request) -> None:
    key = request.auth
    given = request.data if isinstance(request.data, Mapping) else {}
    log.info(
        "api.changed",
        key=key.prefix if isinstance(key, ApiKey) else "",
        method=request.method,
        path=request.get_full_path(),
        fields=sorted(map(str, given)),
    )
