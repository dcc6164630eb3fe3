"""What people fill in about their second factor."""

from typing import Final

from django import forms

from broker_project.core.admin.theme import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget

LONGEST_CODE: Final = 40
LONGEST_PASSWORD: Final = 4096
"""As Django's own forms have it: hashing more would take long."""


class CodeForm(forms.Form):
    """A code of the app, or a recovery code."""

    code = forms.CharField(
        max_length=LONGEST_CODE,
        label="Code",
        help_text="The six digits that your app shows now, or a recovery code.",
        widget=UnfoldAdminTextInputWidget(
            attrs={"autocomplete": "one-time-code", "autofocus": True, "spellcheck": "false"}
        ),
    )


class FirstCodeForm(forms.Form):
    """The first code of a new app."""

    code = forms.CharField(
        max_length=LONGEST_CODE,
        label="Code",
        help_text="The six digits that the app shows now.",
        widget=UnfoldAdminTextInputWidget(
            attrs={"autocomplete": "one-time-code", "inputmode": "numeric", "spellcheck": "false"}
        ),
    )


class PasswordForm(forms.Form):
    """The password once more: an unattended screen is not enough."""

    password = forms.CharField(
        max_length=LONGEST_PASSWORD,
        strip=False,
        label="Your password",
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "current-password"}),
    )
