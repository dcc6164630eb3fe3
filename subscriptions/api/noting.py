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
    """A view whose changes are told: of every call that changes what is configured, or steps in."""

    is_dry_run = False
    """Whether the call was only asked what it would do."""

    def note_dry_run(self, asked: Mapping[str, Any]) -> bool:
        """Return whether that is all that was asked; it is not told."""
        self.is_dry_run = bool(asked["dry_run"])
        return self.is_dry_run

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Tell of what was done, once it is done."""
        answer = super().finalize_response(request, response, *args, **kwargs)
        is_done = answer.status_code < 400  # noqa: PLR2004 - where errors begin
        if is_done and request.method not in SAFE_METHODS and not self.is_dry_run:
            _tell(request, answer)
        return answer


def _tell(request: Request, answer: Response) -> None:
    key = request.auth
    given = request.data if isinstance(request.data, Mapping) else {}
    made = {"made": answer["Location"].rpartition("/")[2]} if "Location" in answer else {}
    log.info(
        "api.changed",
        key=key.prefix if isinstance(key, ApiKey) else "",
        method=request.method,
        path=request.get_full_path(),
        fields=sorted(map(str, given)),
        **made,
    )
