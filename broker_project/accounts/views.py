"""The second factor of whoever has logged in: seen, set up, asked for, taken away; and what they are refused."""

import secrets
from collections.abc import Callable
from typing import Final, cast

from django.contrib import messages
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme

from broker_project.accounts import mfa, pages, sessions
from broker_project.accounts.audit_log import note
from broker_project.accounts.login_throttle import tries_of
from broker_project.accounts.mfa import RANDOM_BYTES, SEED_BYTES, Proved, TooOften, prove
from broker_project.accounts.models import SecondFactor, second_factor_of
from broker_project.accounts.pages import CodeForm, FirstCodeForm, PasswordForm
from broker_project.core.api import rendering

WRONG: Final = "This code is wrong, or was used before."
AGAIN: Final = "This code is wrong. Look at the clock of your telephone, or begin anew."


def second_factor(request: HttpRequest) -> HttpResponse:
    """Show whether there is one."""
    return pages.standing(request, _person(request))


def begin(request: HttpRequest) -> HttpResponse:
    """Show a new seed to whoever has the password."""
    form = PasswordForm(request.POST)
    user = _person(request)
    if request.method != "POST":
        return _to_standing()
    if not form.is_valid() or not _has_password(request, user, form):
        form.add_error("password", "This is not your password.")
        return pages.standing(request, user, password=form)
    try:
        seed = mfa.begin(user, random_bytes=secrets.token_bytes(SEED_BYTES))
    except mfa.HasOne:
        return _to_standing()
    return pages.seed(request, user, seed)


def confirm(request: HttpRequest) -> HttpResponse:
    """Let the seed count once a code shows that an app has it; show the recovery codes."""
    form = FirstCodeForm(request.POST)
    user = _person(request)
    if request.method != "POST":
        return _to_standing()
    code = form.cleaned_data["code"] if form.is_valid() else ""
    codes = mfa.confirm(user, code, recovery=secrets.token_bytes(RANDOM_BYTES), now=timezone.now())
    if codes is None:
        form.add_error("code", AGAIN)
        return pages.first_code(request, form)
    sessions.prove(request.session, SecondFactor.objects.get(user=user))
    note(request, user, "Set up a second factor.")
    return pages.recovery_codes(request, codes)


def code(request: HttpRequest) -> HttpResponse:
    """Ask for a code between the password and the admin."""
    onward = _onward(request)
    factor = second_factor_of(_person(request))
    if factor is None or sessions.has_proved(request.session, factor):
        return HttpResponseRedirect(onward)
    if request.method != "POST":
        return pages.code(request, CodeForm(), onward)

    def go_on() -> HttpResponse:
        sessions.prove(request.session, factor)
        return HttpResponseRedirect(onward)

    return _with_code(request, go_on, lambda form: pages.code(request, form, onward))


def renew_recovery_codes(request: HttpRequest) -> HttpResponse:
    """Show new recovery codes to whoever has a code."""
    user = _person(request)

    def renew() -> HttpResponse:
        codes = mfa.renew_recovery_codes(user, recovery=secrets.token_bytes(RANDOM_BYTES))
        note(request, user, "Made new recovery codes.")
        return pages.recovery_codes(request, codes)

    return _with_code(request, renew, lambda _: _to_standing(request, WRONG))


def remove(request: HttpRequest) -> HttpResponse:
    """Take it away from whoever has a code."""
    user = _person(request)

    def take_away() -> HttpResponse:
        mfa.remove(user)
        note(request, user, "Removed the second factor.")
        return _to_standing()

    return _with_code(request, take_away, lambda _: _to_standing(request, WRONG))


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer a refusal: to people who have logged in on a page that leads them back."""
    if request.path.startswith(rendering.API) or not request.user.is_authenticated:
        return rendering.permission_denied(request, exception)
    return pages.not_permitted(request)


def _with_code(
    request: HttpRequest, act: Callable[[], HttpResponse], refuse: Callable[[CodeForm], HttpResponse]
) -> HttpResponse:
    """Do something if the code that was sent is right."""
    form = CodeForm(request.POST)
    user = _person(request)
    if request.method != "POST":
        return _to_standing()
    if not form.is_valid():
        return refuse(form)
    match prove(user, form.cleaned_data["code"], now=timezone.now()):
        case Proved(with_recovery_code=True):
            note(request, user, "Used a recovery code.")
            return act()
        case Proved():
            return act()
        case TooOften(free_at):
            return pages.too_many(request, free_at)
    form.add_error("code", WRONG)
    return refuse(form)


def _person(request: HttpRequest) -> User:
    return cast("User", request.user)  # the admin lets nobody else through


def _has_password(request: HttpRequest, user: User, form: PasswordForm) -> bool:
    """Tell whether this is the person's password; wrong ones count as failed logins."""
    credentials = {"username": user.get_username()}
    is_right = authenticate(request, password=form.cleaned_data["password"], **credentials) == user
    if is_right:
        tries_of(request, credentials).take_back()
    return is_right


def _onward(request: HttpRequest) -> str:
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    is_here = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if is_here else reverse("admin:index")


def _to_standing(request: HttpRequest | None = None, problem: str = "") -> HttpResponse:
    if request is not None and problem:
        messages.error(request, problem)
    return HttpResponseRedirect(reverse("accounts:second-factor"))
