"""Pages of the second factor, of lock-outs and of missing permissions; browsers store none of them."""

import datetime as dt
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

import segno
from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import authenticate
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import mark_safe

from broker_project.accounts import mfa, sessions
from broker_project.accounts.login_throttle import tries_of
from broker_project.accounts.models import SecondFactor, second_factor_of
from broker_project.core.admin.theme import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget
from broker_project.core.api import problems

MAX_CODE_LENGTH: Final = 40
MAX_PASSWORD_LENGTH: Final = 4096
"""As Django's own forms have it: hashing more would take long."""
CODE_ATTRIBUTES: Final = {"autocomplete": "one-time-code", "spellcheck": "false"}
WRONG_CODE: Final = "This code is wrong, or was used before."
PAGES: Final = {"changelist": "view", "change": "view", "history": "view", "add": "add", "delete": "delete"}
"""What it takes to see the pages of a model that Django makes, by the end of their address's name."""
POSTED: Final = {"change": "change", "add": "add", "delete": "delete"}
"""What their forms take. A list has several actions, which take this or that."""


class CodeForm(forms.Form):
    """A code of the app, or a recovery code."""

    code = forms.CharField(
        max_length=MAX_CODE_LENGTH,
        help_text="The six digits that your app shows now, or a recovery code.",
        widget=UnfoldAdminTextInputWidget(attrs={**CODE_ATTRIBUTES, "autofocus": True}),
    )


class FirstCodeForm(forms.Form):
    """The first code of a new app."""

    code = forms.CharField(
        max_length=MAX_CODE_LENGTH,
        help_text="The six digits that the app shows now.",
        widget=UnfoldAdminTextInputWidget(attrs={**CODE_ATTRIBUTES, "inputmode": "numeric"}),
    )


class PasswordForm(forms.Form):
    """The password again: an unattended screen is not enough."""

    password = forms.CharField(
        max_length=MAX_PASSWORD_LENGTH,
        strip=False,
        label="Your password",
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "current-password"}),
    )


def account_page(request: HttpRequest, template: str, title: str, *, status: int = 200, **more: Any) -> HttpResponse:
    """Return a page that no browser stores."""
    context = {**admin.site.each_context(request), "title": title, **more}
    headers = {"Cache-Control": "no-store"}
    return TemplateResponse(request, f"accounts/{template}", context, status=status, headers=headers)


def second_factor(request: HttpRequest, password_form: PasswordForm | None = None) -> HttpResponse:
    """Show whether there is a second factor, and the forms that change it."""
    factor = second_factor_of(_user(request))
    return account_page(
        request,
        "second_factor.html",
        "Second factor",
        factor=factor,
        codes_left=factor.recovery_codes.count() if factor else 0,
        is_required=settings.SECOND_FACTOR_REQUIRED,
        code_form=CodeForm(),
        password_form=password_form or PasswordForm(),
    )


def begin(request: HttpRequest) -> HttpResponse:
    """Show a new seed once, after the password; wrong passwords count as failed logins."""
    if request.method != "POST":
        return _to_second_factor()
    form, user = PasswordForm(request.POST), _user(request)
    if not (form.is_valid() and _is_password(request, form.cleaned_data["password"])):
        form.add_error("password", "This is not your password.")
        return second_factor(request, form)
    try:
        seed = mfa.begin(user)
    except mfa.AlreadySetUp:
        return _to_second_factor()
    url = mfa.enrolment_url(seed, user.get_username(), request.get_host())
    drawn = segno.make(url, error="m").svg_inline(scale=5, border=4, dark="#000", light="#fff")
    picture = mark_safe(drawn)  # noqa: S308 - made of paths and numbers # nosec B308 B703
    return account_page(request, "seed.html", "Second factor", picture=picture, text=seed, form=FirstCodeForm())


def confirm(request: HttpRequest) -> HttpResponse:
    """Let the seed take effect once a code shows that an app has it; show the recovery codes once."""
    if request.method != "POST":
        return _to_second_factor()
    form, user = FirstCodeForm(request.POST), _user(request)
    if not form.is_valid():
        return account_page(request, "first_code.html", "Second factor", form=form)
    check, codes = mfa.confirm(user, form.cleaned_data["code"], now=timezone.now())
    if check.locked_until:
        return _locked_page(request, check.locked_until)
    if not check.is_right:
        form.add_error("code", "This code is wrong. Check the clock of your phone, or start again.")
        return account_page(request, "first_code.html", "Second factor", form=form)
    sessions.mark_verified(request.session, SecondFactor.objects.get(user=user))
    mfa.write_history(user, "Set up a second factor.", by=user.pk)
    return account_page(request, "recovery_codes.html", "Recovery codes", codes=codes)


def code(request: HttpRequest) -> HttpResponse:
    """Ask for a code between the password and the admin."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    is_here = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    onward = wanted if is_here else reverse("admin:index")
    factor = second_factor_of(_user(request))
    if factor is None or sessions.is_verified(request.session, factor):
        return HttpResponseRedirect(onward)

    def ask(form: CodeForm) -> HttpResponse:
        return account_page(request, "code.html", "One more step", form=form, onward=onward)

    if request.method != "POST":
        return ask(CodeForm())
    if refusal := _refusal(request, ask):
        return refusal
    sessions.mark_verified(request.session, factor)
    return HttpResponseRedirect(onward)


def renew_recovery_codes(request: HttpRequest) -> HttpResponse:
    """Show new recovery codes, after a code."""
    if refusal := _refusal(request, lambda _: _to_second_factor(request, WRONG_CODE)):
        return refusal
    user = _user(request)
    codes = mfa.renew_recovery_codes(user)
    mfa.write_history(user, "Made new recovery codes.", by=user.pk)
    return account_page(request, "recovery_codes.html", "Recovery codes", codes=codes)


def remove(request: HttpRequest) -> HttpResponse:
    """Remove the second factor, after a code."""
    if refusal := _refusal(request, lambda _: _to_second_factor(request, WRONG_CODE)):
        return refusal
    user = _user(request)
    mfa.remove(user)
    mfa.write_history(user, "Removed the second factor.", by=user.pk)
    return _to_second_factor()


def _refusal(request: HttpRequest, refuse: Callable[[CodeForm], HttpResponse]) -> HttpResponse | None:
    """Check the code that was sent; return None if it is right, otherwise the answer."""
    if request.method != "POST":
        return _to_second_factor()
    form, user = CodeForm(request.POST), _user(request)
    if not form.is_valid():
        return refuse(form)
    check = mfa.prove(user, form.cleaned_data["code"], now=timezone.now())
    if check.locked_until:
        return _locked_page(request, check.locked_until)
    if not check.is_right:
        form.add_error("code", WRONG_CODE)
        return refuse(form)
    if check.is_recovery_code:
        mfa.write_history(user, "Used a recovery code.", by=user.pk)
    return None


def change_password(request: HttpRequest) -> HttpResponse:
    """Take a new password; wrong old ones count as failed logins."""
    if old := request.POST.get("old_password"):
        _is_password(request, old)
    if getattr(request, "axes_locked_out", False):
        return HttpResponse()  # axes' middleware replaces it
    return admin.site.password_change(request)


def _is_password(request: HttpRequest, given: str) -> bool:
    """Tell whether this is the user's password; a wrong one counts as a failed login, the right one ends the count."""
    credentials = {"username": _user(request).get_username()}
    is_right = authenticate(request, password=given, **credentials) == request.user
    if is_right:
        tries_of(request, credentials).reset()
    return is_right


def locked_out(request: HttpRequest, _: HttpResponse, credentials: dict[str, Any] | None) -> HttpResponse:
    """Return the answer to a login for which there were too many tries; axes asks for it."""
    return _locked_page(request, tries_of(request, credentials).locked_until()).render()  # type: ignore[attr-defined, no-any-return]


def _locked_page(request: HttpRequest, until: dt.datetime) -> HttpResponse:
    """Return the page that says when to try again; it does not reveal whether the name exists."""
    wait = max(1, int((until - timezone.now()).total_seconds()) + 1)
    status = HTTPStatus.TOO_MANY_REQUESTS
    answer = account_page(request, "locked.html", "Too many tries", status=status, until=until, minutes=-(-wait // 60))
    answer.headers["Retry-After"] = str(wait)
    return answer


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer a refusal."""
    missing = _missing_permission(request)
    shown = _refused(request, HTTPStatus.FORBIDDEN, "Not permitted", "not_permitted.html", **missing)
    return shown or problems.permission_denied(request, exception)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer an address or form that asks for what cannot be."""
    why = f"This address or form asks for something that cannot be. {exception}"
    shown = _refused(request, HTTPStatus.BAD_REQUEST, "Not understood", why=why)
    return shown or problems.bad_request(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer an unknown address."""
    why = "There is nothing at this address, or it was deleted."
    return _refused(request, HTTPStatus.NOT_FOUND, "Not found", why=why) or problems.not_found(request, exception)


def _refused(
    request: HttpRequest, status: int, title: str, template: str = "refused.html", **more: Any
) -> HttpResponse | None:
    """Return a page with a way back for users who have logged in to the admin; None for other requests."""
    is_in_admin = request.path.startswith(sessions.ADMIN) and hasattr(request, "user")
    if not (is_in_admin and request.user.is_authenticated):
        return None
    return account_page(request, template, title, status=status, **more)


def _missing_permission(request: HttpRequest) -> dict[str, Any]:
    """Return the permission that a model's page takes, and which roles have it; nothing for other pages."""
    match = request.resolver_match
    model_admin = getattr(match.func, "model_admin", None) if match else None
    actions = POSTED if request.method == "POST" else PAGES
    action = actions.get(str(match.url_name).rpartition("_")[2]) if match else None
    if model_admin is None or action is None:
        return {}
    app, codename = model_admin.opts.app_label, f"{action}_{model_admin.opts.model_name}"
    roles = Group.objects.filter(permissions__content_type__app_label=app, permissions__codename=codename)
    return {"permission": f"{app}.{codename}", "roles": roles.order_by("pk")}


def _user(request: HttpRequest) -> User:
    return cast("User", request.user)  # the admin lets nobody else through


def _to_second_factor(request: HttpRequest | None = None, problem: str = "") -> HttpResponse:
    if request is not None and problem:
        messages.error(request, problem)
    return HttpResponseRedirect(reverse("accounts:second-factor"))
