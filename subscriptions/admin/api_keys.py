"""API keys in the admin: a token is shown when its key is issued, and never again."""

import datetime as dt
from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import admin
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone

from broker_project.core.admin.model_admin import action, after_dialog, column, could_be_of, dialog
from broker_project.core.admin.theme import ActionVariant, UnfoldAdminCheckboxSelectMultipleWidget
from subscriptions.admin.configured import ConfiguredForm
from subscriptions.admin.show_once import ShowingOnceAdmin
from subscriptions.credentials import keys
from subscriptions.credentials.keys import end_problem
from subscriptions.credentials.scopes import (
    BeyondIssuer,
    Issuer,
    NotOpened,
    effective_limit,
    is_beyond,
    owner_problems,
    scopes_of,
)
from subscriptions.models import ApiKey, KeyKind, Scope

ALL: Final = "If none is chosen, the key gets all scopes of its kind except keys."

ROTATING: Final = "Rotate this key? A new key replaces it, whose token is shown once; this one ends in 24 hours."
OF_OWNERS: Final = frozenset({KeyKind.PUBLISHER, KeyKind.SUBSCRIBER})


class ApiKeyForm(ConfiguredForm):
    """A key whose label, expiry or rate limit is changed."""

    issuer: ClassVar[Issuer]
    """What the user who fills it in may issue."""

    def clean_expires_at(self) -> dt.datetime | None:
        """Refuse invalid expiries, any of an ended key, and later ones from users who may not issue the key."""
        expires_at: dt.datetime | None = self.cleaned_data["expires_at"]
        if "expires_at" not in self.changed_data:
            return expires_at
        now = timezone.now()
        if wrong := end_problem(expires_at, now=now):
            raise forms.ValidationError(wrong)
        if self.instance.has_ended(now):
            raise forms.ValidationError("This key has ended for good: issue a new key.")
        if is_beyond(expires_at, self.instance.expires_at):
            self._check_may_issue("You may not extend its lifetime.")
        return expires_at

    def clean_requests_per_minute(self) -> int | None:
        """Refuse a higher limit, or any other limit of a management key, from users who may not issue the key."""
        limit: int | None = self.cleaned_data["requests_per_minute"]
        before = self.instance.requests_per_minute
        if self.instance.pk is None or "requests_per_minute" not in self.changed_data:
            return limit
        if self.instance.kind == KeyKind.MANAGEMENT:
            self._check_may_issue("You may not change the limit of a management key.")
        elif is_beyond(*(effective_limit(one, settings.REQUESTS_PER_MINUTE) for one in (limit, before))):
            self._check_may_issue("You may not raise its limit.")
        return limit

    def _check_may_issue(self, otherwise: str) -> None:
        if self.instance.kind not in self.issuer.kinds:
            raise forms.ValidationError(f"{otherwise} Ask someone who may issue this kind of key.")


class NewApiKeyForm(ApiKeyForm):
    """A key that is to be issued."""

    scopes = forms.MultipleChoiceField(
        choices=Scope.choices, required=False, widget=UnfoldAdminCheckboxSelectMultipleWidget, help_text=ALL
    )

    def clean(self) -> dict[str, Any]:
        """Refuse an owner or scopes that do not fit the kind, and permissions that the user may not grant."""
        values = super().clean() or {}
        for name, text in owner_problems(values).items():
            self.add_error(name, text)
        if "kind" in values and "scopes" in values:
            values["scopes"] = self._scopes(KeyKind(values["kind"]), values["scopes"])
        return values

    def _scopes(self, kind: KeyKind, chosen: list[str]) -> list[str]:
        try:
            scopes = scopes_of(kind, chosen or None)
            until, limit = (self.cleaned_data.get(name) for name in ("expires_at", "requests_per_minute"))
            self.issuer.check(kind, scopes, until=until, requests_per_minute=limit)
        except NotOpened as refused:
            self.add_error("scopes", str(refused))
        except BeyondIssuer as refused:
            self.add_error("kind", str(refused))
        else:
            return [*scopes]
        return []


def _is_alive(key: ApiKey) -> bool:
    return not key.has_ended(timezone.now())


def _state(key: ApiKey) -> str:
    return ("rotated" if key.retires_at else "usable") if _is_alive(key) else "ended"


@admin.register(ApiKey)
class ApiKeyAdmin(ShowingOnceAdmin[ApiKey]):
    """Keys for the API."""

    when_empty = "No API key yet. Create one for a publisher, a subscriber, or management."
    form = ApiKeyForm
    fields = ("kind", "publisher", "subscriber", "scopes", "label", "expires_at", "requests_per_minute")
    list_display = ("prefix", "state", "kind", "publisher", "subscriber", "opens", "label", "last_used_at", "ends_at")
    list_filter = ("kind", "is_portal")
    list_select_related = ("publisher", "subscriber")
    search_fields = ("prefix", "label", "publisher__name", "subscriber__name")
    ordering = ("-id",)
    autocomplete_fields = ("publisher", "subscriber")
    fixed = ("prefix", "kind", "publisher", "subscriber", "opens")
    kept_by_the_broker = (
        *("last_used_at", "retires_at", "revoked_at", "successor_of", "issued_by", "is_portal"),
        *ShowingOnceAdmin.kept_by_the_broker,
    )
    shown_name = "token"
    shown_advice = (
        "Anyone who has it can do what the key may do. It cannot be shown again: if it is lost, revoke the key."
    )
    actions_detail: ClassVar[tuple[str, ...]] = ("rotate", "revoke")

    state = column("state", _state, label={"usable": "success", "rotated": "info", "ended": "warning"})
    opens = column("scopes", lambda key: ", ".join(key.scopes))

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Return the fields of a new key, or all that is shown of an old one."""
        if obj is None:
            return tuple(self.fields)
        return (*self.fixed, "label", "expires_at", "requests_per_minute", *self.kept_by_the_broker)

    def get_form(self, request: HttpRequest, obj: ApiKey | None = None, change: bool = False, **options: Any) -> Any:
        """Return the form, which knows what the user may issue."""
        own = {} if obj else {"form": NewApiKeyForm}
        form = super().get_form(request, obj, change, **{**own, **options})
        form.issuer = self._issuer(request)
        return form

    def has_rotate_permission(self, request: HttpRequest, object_id: object = None) -> bool:
        """Tell whether the user may issue a key of its kind, as rotating it does; without a key, of any kind."""
        kinds = self._issuer(request).kinds
        key = self.only(object_id).first() if could_be_of(ApiKey, object_id) else None
        return key.kind in kinds if key else bool(kinds)

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:  # noqa: ARG002
        """Keys are revoked but never deleted: their history stays visible."""
        return False

    def create(self, request: HttpRequest, obj: ApiKey, form: "ModelForm[ApiKey]") -> None:
        """Issue it; the answer shows its token."""
        issued, token = keys.issue(
            obj.publisher or obj.subscriber,
            now=timezone.now(),
            issuer=self._issuer(request),
            label=obj.label,
            scopes=form.cleaned_data["scopes"] or None,
            expires_at=obj.expires_at,
            requests_per_minute=obj.requests_per_minute,
        )
        obj.pk, obj.prefix = issued.pk, issued.prefix
        self.show_when_added(obj, token)

    @action(
        description="Rotate", permissions=["rotate"], icon="autorenew", offered=_is_alive, refusals=(keys.KeyEnded,)
    )
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then replace it by a new key, and show the token of that."""
        if question := self.asked(request, get_object_or_404(self.only(object_id)), ROTATING, "Rotate key"):
            return question
        successor, token = keys.rotate(self.only(object_id), now=timezone.now(), issuer=self._issuer(request))
        self.log_change(request, self.only(object_id).get(), f"Rotated: replaced by key {successor.pk}.")
        self.log_addition(request, successor, f"Replaces key {object_id}.")
        return self.shown(request, successor, token)

    @action(
        description="Revoke",
        permissions=["change"],
        icon="block",
        variant=ActionVariant.DANGER,
        dialog=dialog(
            "Revoke this key?",
            "It stops working at once; this cannot be undone.",
            "Revoke key",
            variant=ActionVariant.DANGER,
        ),
        offered=_is_alive,
    )
    def revoke(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """End it now."""
        revoked = keys.revoke(self.only(object_id), now=timezone.now())
        self.report_change(request, revoked, "Revoked.")
        return after_dialog(request, self.change_url(object_id))

    def _issuer(self, request: HttpRequest) -> Issuer:
        """Return which kinds of key the user may issue, rotate and extend."""
        may_add = request.user.has_perm("subscriptions.add_apikey")
        kinds = OF_OWNERS if may_add else frozenset[KeyKind]()
        if may_add and request.user.has_perm("subscriptions.issue_management_key"):
            kinds = frozenset(KeyKind)
        return Issuer(str(request.user), kinds=kinds)
