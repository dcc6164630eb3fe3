"""Whom requests are addressed to: another host than this broker's is refused before anything looks at the request.

Django itself asks only where a view does, which those of the API need not.
"""

from collections.abc import Callable
from typing import Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase

PROBED: Final = frozenset({"/livez", "/readyz"})
"""Asked by machines that know the process by its address alone."""


def own_host(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Let nothing through that is meant for a host that `ALLOWED_HOSTS` does not name: Django's `DisallowedHost`."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        if request.path not in PROBED:
            request.get_host()
        return get_response(request)

    return answer
