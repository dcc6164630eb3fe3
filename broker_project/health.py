"""Health checks: `/livez` (the process answers) and `/readyz` (it can do its work)."""

from typing import Final

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from broker_project.diagnosis import findings

OK: Final = "ok"


@never_cache
@require_safe
def livez(_: HttpRequest) -> JsonResponse:
    """Answer 200."""
    return JsonResponse({"status": OK})


@never_cache
@require_safe
def readyz(_: HttpRequest) -> JsonResponse:
    """Answer 200 if the database answers, is migrated and can be worked with, else 503; the rest is only reported."""
    found = [*findings()]
    ready = not any(one.problem and one.is_essential for one in found)
    document = {"status": OK if ready else "unavailable", **{one.part: one.problem or OK for one in found}}
    return JsonResponse(document, status=200 if ready else 503)
