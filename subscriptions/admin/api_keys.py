"""API keys in the admin: a token is shown when it is issued, and never again."""

import datetime as dt
import secrets
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from subscriptions import key_issuing
from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.admin.showing_once import ShowingOnceAdmin
from subscriptions.admin.theme import ActionVariant, action, after_dialog, dialog, display
from subscriptions.key_tokens import TOKEN_BYTES
from subscriptions.models import ApiKey, KeyKind


class ApiKeyForm(forms.ModelForm):  # type: ignore[type-arg]  # no brackets at run time
    """A key about to be issued, or relabelled."""

    def clean(self) -> dict[str, Any]:
        """Refuse an owner that does not fit the kind."""
        values = super().clean() or {}
        for kind, name in ((KeyKind.PUBLISHER, "publisher"), (KeyKind.SUBSCRIBER, "subscriber")):
            if name in self.fields and (values.get("kind") == kind) != bool(values.get(name)):
                self.add_error(name, f"Choose a {name} if and only if the kind is {kind.label}.")
        return values

    def clean_expires_at(self) -> dt.datetime | None:
        """Refuse a time that has passed: a key is ended by revoking it."""
        expires_at: dt.datetime | None = self.cleaned_data["expires_at"]
        if expires_at and "expires_at" in self.changed_data and expires_at <= timezone.now():
            raise forms.ValidationError("This time has passed already; revoke the key to end it now.")
        return expires_at


@admin.register(ApiKey)
class ApiKeyAdmin(ShowingOnceAdmin[ApiKey]):
    """Who may call the API."""

    form = ApiKeyForm
    fields = ("kind", "publisher", "subscriber", "label", "expires_at", "requests_per_minute")
    list_display = ("prefix", "state", "kind", "publisher", "subscriber", "label", "last_used_at", "expires_at")
    list_filter = ("kind",)
    list_select_related = ("publisher", "subscriber")
    search_fields = ("prefix", "label", "publisher__name", "subscriber__name")
    ordering = ("-id",)
    autocomplete_fields = ("publisher", "subscriber")
    fixed = ("prefix", "kind", "publisher", "subscriber")
    kept_by_the_broker = ("last_used_at", "revoked_at", *ConfiguredAdmin.kept_by_the_broker)
    shown_name = "token"
    shown_advice = "Whoever has it may do what the key may. It cannot be read again: if it is lost, revoke the key."
    actions_detail = ("revoke",)

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Return what a new key takes, or all that may be seen of an old one."""
        return (
            (*self.fixed, "label", "expires_at", "requests_per_minute", *self.kept_by_the_broker)
            if obj
            else tuple(self.fields)
        )

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:  # noqa: ARG002
        """Keys are revoked and stay, so that one can see who used them until when."""
        return False

    @display(description="state", label={"usable": "success", "expired": "warning", "revoked": "danger"})
    def state(self, key: ApiKey) -> str:
        """Return whether it opens anything."""
        if key.revoked_at:
            return "revoked"
        return "expired" if key.expires_at and key.expires_at <= timezone.now() else "usable"

    def create(self, request: HttpRequest, obj: ApiKey, form: "forms.ModelForm[ApiKey]") -> None:  # noqa: ARG002
        """Issue it; the answer shows its token."""
        issued, token = key_issuing.issue(
            obj.publisher or obj.subscriber,
            random_bytes=secrets.token_bytes(TOKEN_BYTES),
            now=timezone.now(),
            label=obj.label,
            expires_at=obj.expires_at,
            requests_per_minute=obj.requests_per_minute,
        )
        obj.pk, obj.prefix = issued.pk, issued.prefix
        self.show_when_added(obj, token)

    @action(
        description="Revoke",
        permissions=["change"],
        icon="block",
        variant=ActionVariant.DANGER,
        dialog=dialog("Revoke this key?", "From now on it opens nothing; this cannot be undone.", "Revoke"),
    )
    def revoke(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Make it useless from now on."""
        revoked = key_issuing.revoke(self.only(object_id), now=timezone.now())
        self.log_change(request, revoked, "Revoked.")
        self.message_user(request, "Revoked.", messages.SUCCESS)
        return after_dialog(request, self.page_of(object_id))
