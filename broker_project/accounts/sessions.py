"""Sessions of the admin site: how long they last, and that nothing is open before the second factor."""

import time
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode

from broker_project.accounts.models import SecondFactor, second_factor_of

STARTED: Final = "started"
SEEN: Final = "seen"
VERIFIED: Final = "verified"

SEEN_EVERY_SECONDS: Final = 60
"""Activity is stored at most this often: at every page it would cost a write each."""

GetResponse = Callable[[HttpRequest], HttpResponseBase]

ADMIN: Final = "/admin/"
"""The only pages with sessions; the API takes keys."""
ALWAYS_OPEN: Final = ("admin:login", "admin:logout")
SET_UP_PAGES: Final = ("accounts:second-factor", "accounts:begin", "accounts:confirm")
CODE_PAGE: Final = "accounts:code"


class SecondFactorBackend(ModelBackend):
    """Django's backend of users, which reads the second factor of a session's user in the same query."""

    def get_user(self, user_id: int) -> User | None:
        """Return the user with this id who may log in."""
        user = User.objects.select_related("second_factor").filter(pk=user_id).first()
        return user if user is not None and self.user_can_authenticate(user) else None


def touch(session: SessionBase, *, now: float) -> None:
    """Note activity."""
    session.setdefault(STARTED, now)
    if now - float(session.get(SEEN, 0)) > SEEN_EVERY_SECONDS:
        session[SEEN] = now


def mark_verified(session: SessionBase, factor: SecondFactor) -> None:
    """Note that this second factor, and not an earlier one, was proved; give the session a new key."""
    session[VERIFIED] = str(factor.confirmed_at)
    session.cycle_key()


def is_verified(session: SessionBase, factor: SecondFactor) -> bool:
    """Tell whether this second factor was proved in the session."""
    return session.get(VERIFIED) == str(factor.confirmed_at)


def guarded(get_response: GetResponse) -> GetResponse:
    """Return the middleware that ends old sessions and redirects to what a login still lacks."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        if not request.path.startswith(ADMIN):
            return get_response(request)
        now = time.time()
        if now - float(request.session.get(STARTED, now)) > settings.SESSION_MAX_SECONDS:
            logout(request)
        missing, is_htmx = _missing_step(request), "HX-Request" in request.headers
        if is_htmx and (missing or not request.user.is_authenticated):
            # It would follow a redirect, and show nothing of where that leads. So it loads the whole page again.
            return HttpResponse(headers={"HX-Refresh": "true"})
        response = HttpResponseRedirect(missing) if missing else get_response(request)
        # A page that refreshes itself is no activity: its session ends although nobody closes it.
        if request.user.is_authenticated and not (request.method == "GET" and is_htmx):
            touch(request.session, now=now)
        return response

    return answer


def _missing_step(request: HttpRequest) -> str | None:
    """Return the page that a request is redirected to, to set up or prove the second factor; None if nothing lacks."""
    if not isinstance(request.user, User) or request.path in map(reverse, ALWAYS_OPEN):
        return None
    factor = second_factor_of(request.user)
    if factor is None:
        is_open = not settings.SECOND_FACTOR_REQUIRED or request.path in map(reverse, SET_UP_PAGES)
        return None if is_open else reverse(SET_UP_PAGES[0])
    if is_verified(request.session, factor) or request.path == reverse(CODE_PAGE):
        return None
    return f"{reverse(CODE_PAGE)}?{urlencode({'next': request.get_full_path()})}"
