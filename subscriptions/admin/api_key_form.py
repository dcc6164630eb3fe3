"""The forms of API keys: what is issued, how long it lives, and how much it may send."""

import datetime as dt
from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.utils import timezone

from broker_project.core.admin.theme import UnfoldAdminCheckboxSelectMultipleWidget
from subscriptions.credentials.issue import what_is_wrong_with_end
from subscriptions.credentials.scopes import BeyondIssuer, Issuer, NotOpened, is_beyond, requests_in_force, scopes_of
from subscriptions.models import KeyKind, Scope

ALL: Final = "None chosen: all that there are for its kind, but keys."


class ApiKeyForm(forms.ModelForm):  # type: ignore[type-arg]  # no brackets at run time
    """A key that is relabelled, is to end at another time, or gets another limit."""

    issuer: ClassVar[Issuer]
    """Who fills it in."""

    def clean_expires_at(self) -> dt.datetime | None:
        """Refuse an end that no key has, a later one than those may give who cannot issue it, and any of what ended."""
        expires_at: dt.datetime | None = self.cleaned_data["expires_at"]
        if "expires_at" not in self.changed_data:
            return expires_at
        now = timezone.now()
        if wrong := what_is_wrong_with_end(expires_at, now=now):
            raise forms.ValidationError(wrong)
        if self.instance.has_ended(now):
            raise forms.ValidationError("This key has ended, and stays so: issue another one.")
        if is_beyond(expires_at, self.instance.expires_at):
            self._check_may_issue("You may not let it live longer.")
        return expires_at

    def clean_requests_per_minute(self) -> int | None:
        """Refuse those who cannot issue it another limit of a management key, and a higher one of any."""
        limit: int | None = self.cleaned_data["requests_per_minute"]
        if self.instance.pk is None or "requests_per_minute" not in self.changed_data:
            return limit
        if self.instance.kind == KeyKind.MANAGEMENT:
            self._check_may_issue("You may not change the limit of a management key.")
        elif is_beyond(
            *(
                requests_in_force(one, settings.REQUESTS_PER_MINUTE)
                for one in (limit, self.instance.requests_per_minute)
            )
        ):
            self._check_may_issue("You may not let it send more.")
        return limit

    def _check_may_issue(self, otherwise: str) -> None:
        if self.instance.kind not in self.issuer.kinds:
            raise forms.ValidationError(f"{otherwise} That is up to those who may issue it.")


class NewApiKeyForm(ApiKeyForm):
    """A key about to be issued."""

    scopes = forms.MultipleChoiceField(
        choices=Scope.choices, required=False, widget=UnfoldAdminCheckboxSelectMultipleWidget, help_text=ALL
    )

    def clean(self) -> dict[str, Any]:
        """Refuse an owner or scopes that do not fit the kind, and a key that opens more than the user may pass on."""
        values = super().clean() or {}
        for kind, name in ((KeyKind.PUBLISHER, "publisher"), (KeyKind.SUBSCRIBER, "subscriber")):
            if (values.get("kind") == kind) != bool(values.get(name)):
                self.add_error(name, f"Choose a {name} if and only if the kind is {kind.label}.")
        if "kind" in values and "scopes" in values:
            values["scopes"] = self._scopes(KeyKind(values["kind"]), values["scopes"])
        return values

    def _scopes(self, kind: KeyKind, chosen: list[str]) -> list[str]:
        try:
            scopes = [*scopes_of(kind, chosen or None)]
            until, limit = (self.cleaned_data.get(name) for name in ("expires_at", "requests_per_minute"))
            self.issuer.check(kind, scopes, until=until, requests_per_minute=limit)
        except NotOpened as refused:
            self.add_error("scopes", str(refused))
        except BeyondIssuer as refused:
            self.add_error("kind", str(refused))
        else:
            return [*scopes]
        return []
