"""What a session knows, and what the admin site opens to it: nothing before the second factor."""

import time
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.models import User
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode

from broker_project.accounts.models import SecondFactor, second_factor_of

BEGAN: Final = "began"
SEEN: Final = "seen"
PROVED: Final = "proved"

SEEN_EVERY_SECONDS: Final = 60
"""Storing at each page that somebody is there would cost a write each."""

GetResponse = Callable[[HttpRequest], HttpResponseBase]

ADMIN: Final = "/admin/"
"""All that people use; everything else is asked with keys and has no session."""
ALWAYS_OPEN: Final = ("admin:login", "admin:logout")
TO_ENROL: Final = ("accounts:second-factor", "accounts:begin", "accounts:confirm")
TO_PROVE: Final = "accounts:code"


def is_over(session: SessionBase, *, now: float, max_seconds: int) -> bool:
    """Tell whether it has lasted for as long as one may, however much was done in it."""
    return now - float(session.get(BEGAN, now)) > max_seconds


def see(session: SessionBase, *, now: float) -> None:
    """Note that somebody is there."""
    session.setdefault(BEGAN, now)
    if now - float(session.get(SEEN, 0)) > SEEN_EVERY_SECONDS:
        session[SEEN] = now


def prove(session: SessionBase, factor: SecondFactor) -> None:
    """Note that this very second factor was proved in it, under a new key."""
    session[PROVED] = _name_of(factor)
    session.cycle_key()


def has_proved(session: SessionBase, factor: SecondFactor) -> bool:
    """Tell whether this second factor, and not a former one, was proved in it."""
    return session.get(PROVED) == _name_of(factor)


def _name_of(factor: SecondFactor) -> str:
    return str(factor.confirmed_at)


def guarded(get_response: GetResponse) -> GetResponse:
    """Lead whoever has logged in to what is still missing, or out."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        if not request.path.startswith(ADMIN):
            return get_response(request)
        now = time.time()
        if is_over(request.session, now=now, max_seconds=settings.SESSION_MAX_SECONDS):
            logout(request)
        elsewhere = _led_to(request)
        response = HttpResponseRedirect(elsewhere) if elsewhere else get_response(request)
        if request.user.is_authenticated:
            see(request.session, now=now)
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
    if has_proved(request.session, factor) or request.path == reverse(TO_PROVE):
        return None
    return f"{reverse(TO_PROVE)}?{urlencode({'next': request.get_full_path()})}"
