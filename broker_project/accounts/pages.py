"""Pages and forms of the second factor; browsers store none of them."""

import datetime as dt
from typing import Any, Final

import segno
from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe

from broker_project.accounts.login_throttle import tries_of
from broker_project.accounts.mfa import enrolment_address, text_of
from broker_project.accounts.models import second_factor_of
from broker_project.core.admin.theme import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget

MAX_CODE: Final = 40
MAX_PASSWORD: Final = 4096
"""As Django's own forms have it: hashing more would take long."""

NOT_PERMITTED: Final = 403
TOO_MANY: Final = 429


class CodeForm(forms.Form):
    """A code of the app, or a recovery code."""

    code = forms.CharField(
        max_length=MAX_CODE,
        label="Code",
        help_text="The six digits that your app shows now, or a recovery code.",
        widget=UnfoldAdminTextInputWidget(
            attrs={"autocomplete": "one-time-code", "autofocus": True, "spellcheck": "false"}
        ),
    )


class FirstCodeForm(forms.Form):
    """The first code of a new app."""

    code = forms.CharField(
        max_length=MAX_CODE,
        label="Code",
        help_text="The six digits that the app shows now.",
        widget=UnfoldAdminTextInputWidget(
            attrs={"autocomplete": "one-time-code", "inputmode": "numeric", "spellcheck": "false"}
        ),
    )


class PasswordForm(forms.Form):
    """The password once more: an unattended screen is not enough."""

    password = forms.CharField(
        max_length=MAX_PASSWORD,
        strip=False,
        label="Your password",
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "current-password"}),
    )


def standing(request: HttpRequest, user: User, *, password: Form | None = None) -> HttpResponse:
    """Return the page on which a person sees whether there is a second factor, and changes it."""
    factor = second_factor_of(user)
    codes_left = factor.recovery_codes.count() if factor else 0
    more = {"factor": factor, "codes_left": codes_left, "is_required": settings.SECOND_FACTOR_REQUIRED}
    forms = {"code_form": CodeForm(), "password_form": password or PasswordForm()}
    return _page(request, "second_factor.html", "Second factor", **more, **forms)


def seed(request: HttpRequest, user: User, secret: bytes) -> HttpResponse:
    """Return the page that shows a new seed, this once."""
    picture = _picture(enrolment_address(secret, user.get_username(), request.get_host()))
    return _page(request, "seed.html", "Second factor", picture=picture, text=text_of(secret), form=FirstCodeForm())


def first_code(request: HttpRequest, form: Form) -> HttpResponse:
    """Return the page that asks for the first code again, without the seed."""
    return _page(request, "first_code.html", "Second factor", form=form)


def recovery_codes(request: HttpRequest, codes: list[str]) -> HttpResponse:
    """Return the page that shows recovery codes, this once."""
    return _page(request, "recovery_codes.html", "Recovery codes", codes=codes)


def code(request: HttpRequest, form: Form, onward: str) -> HttpResponse:
    """Return the page between the password and the admin."""
    return _page(request, "code.html", "One more step", form=form, onward=onward)


def too_many(request: HttpRequest, free_at: dt.datetime) -> HttpResponse:
    """Return the page that says when there may be another try; it is the same whoever is meant by it."""
    wait = max(1, int((free_at - timezone.now()).total_seconds()) + 1)
    answer = _page(request, "too_many.html", "Too many tries", free_at=free_at, minutes=-(-wait // 60))
    answer.status_code = TOO_MANY
    answer.headers["Retry-After"] = str(wait)
    return answer


def not_permitted(request: HttpRequest) -> HttpResponse:
    """Return the page that says that a permission is missing, and who gives it."""
    answer = _page(request, "not_permitted.html", "Not permitted")
    answer.status_code = NOT_PERMITTED
    return answer


def locked_out(request: HttpRequest, _: HttpResponse, credentials: dict[str, Any] | None) -> HttpResponse:
    """Return the answer to a login for which there were too many tries; axes asks for it."""
    return too_many(request, tries_of(request, credentials).free_at()).render()  # type: ignore[attr-defined, no-any-return]


def _page(request: HttpRequest, template: str, title: str, **more: Any) -> HttpResponse:
    context = {**admin.site.each_context(request), "title": title, **more}
    return TemplateResponse(request, f"accounts/{template}", context, headers={"Cache-Control": "no-store"})


def _picture(address: str) -> SafeString:
    drawn = segno.make(address, error="m").svg_inline(scale=5, border=4, dark="#000", light="#fff")
    return mark_safe(drawn)  # noqa: S308 - made of paths and numbers # nosec B308 B703
