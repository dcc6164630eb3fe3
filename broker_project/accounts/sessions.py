"""What of the admin is open: all of it only after the second factor, and to a session that has not lasted too long."""

import time
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode

from broker_project.accounts import sessions_
from broker_project.accounts.models import second_factor_of

GetResponse = Callable[[HttpRequest], HttpResponseBase]

ADMIN: Final = "/admin/"
"""All that people use; everything else is asked with keys and has no session."""
ALWAYS_OPEN: Final = ("admin:login", "admin:logout")
TO_ENROL: Final = ("accounts:second-factor", "accounts:begin", "accounts:confirm")
TO_PROVE: Final = "accounts:code"


def guarded(get_response: GetResponse) -> GetResponse:
    """Lead whoever has logged in to what is still missing, or out."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        if not request.path.startswith(ADMIN):
            return get_response(request)
        now = time.time()
        if sessions_.is_over(request.session, now=now, most_seconds=settings.SESSION_MOST_SECONDS):
            logout(request)
        elsewhere = _led_to(request)
        response = HttpResponseRedirect(elsewhere) if elsewhere else get_response(request)
        if request.user.is_authenticated:
            sessions_.see(request.session, now=now)
        return response

    return answer


def _led_to(request: HttpRequest) -> str | None:
    """Return where a request leads instead; None: where it was sent."""
    if not isinstance(request.user, User) or request.path in map(reverse, ALWAYS_OPEN):
        return None
    factor = second_factor_of(request.user)
    if factor is None:
        open_to_all = not settings.SECOND_FACTOR_REQUIRED or request.path in map(reverse, TO_ENROL)
        return None if open_to_all else reverse(TO_ENROL[0])
    if sessions_.has_proved(request.session, factor) or request.path == reverse(TO_PROVE):
        return None
    return f"{reverse(TO_PROVE)}?{urlencode({'next': request.get_full_path()})}"
