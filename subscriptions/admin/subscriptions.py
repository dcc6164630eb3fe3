"""Subscriptions in the admin."""

import secrets
from datetime import timedelta
from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Field, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404

from broker_project.core.admin.row_ids import could_be_of
from broker_project.core.admin.theme import (
    AutocompleteSelectFilter,
    UnfoldAdminIntegerFieldWidget,
    action,
    after_dialog,
    dialog,
    for_code,
)
from subscriptions.admin.activation import SwitchedAdmin
from subscriptions.admin.headed import HeadedForm
from subscriptions.admin.show_once import ShowingOnceAdmin
from subscriptions.credentials import rotation
from subscriptions.credentials.rotation import MAX_OVERLAP, OVERLAP
from subscriptions.credentials.tokens import NEW_KEY_BYTES, secret_of
from subscriptions.endpoints import check_reach
from subscriptions.models import EventType, Subscription
from subscriptions.scripting.runner import check_script

HOUR: Final = timedelta(hours=1)

PAUSE: Final = ("pause_label", "paused_since", "paused_by", "paused_reason", "probe_due_at")
"""What is told of a pause, of one that is paused."""
ROTATING: Final = "Rotate the signing secret? The new one signs from the next request on, and is shown once."


class RotationForm(forms.Form):
    """How long the former secret signs beside the new one."""

    hours = forms.IntegerField(
        label="Hours for which the former one signs too",
        min_value=0,
        max_value=MAX_OVERLAP // HOUR,
        initial=OVERLAP // HOUR,
        help_text="0: from the next request on only the new one signs.",
        widget=UnfoldAdminIntegerFieldWidget,
    )

    @property
    def overlap(self) -> timedelta:
        """What was asked for."""
        return HOUR * int(self.cleaned_data["hours"])


class SubscriptionForm(HeadedForm):
    """A subscription's form."""

    def clean_endpoint(self) -> str:
        """Refuse a new address to which nothing is sent."""
        return self._within_reach("endpoint")

    def clean_monitor_url(self) -> str:
        """Refuse a new address to which nothing is sent."""
        return self._within_reach("monitor_url")

    def _within_reach(self, name: str) -> str:
        url: str = self.cleaned_data[name]
        if name in self.changed_data:
            check_reach(url, settings.EGRESS_POLICY)
        return url

    def clean_script(self) -> str:
        """Refuse a new script that is no JavaScript."""
        source: str = self.cleaned_data["script"]
        if "script" in self.changed_data:
            self.instance.script = source  # else one that is refused is missed as well
            check_script(source)
        return source

    def full_clean(self) -> None:
        """Say beside its field what another subscription stands in the way of."""
        super().full_clean()
        is_same = self.instance.pk and self.instance.compared.isdisjoint(self.changed_data)
        if not self.is_bound or self.errors or is_same:
            return
        try:
            self.instance.clean_among_others()
        except ValidationError as refused:
            self.add_error(None, refused)


class ReachedByFilter(AutocompleteSelectFilter):
    """Subscriptions that messages of an event type can egress, those with a pattern included."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> QuerySet[Subscription]:  # noqa: ARG002
        """Return those that are reached by the chosen event type."""
        chosen = str(self.value() or "")
        if not chosen:
            return queryset
        event_type = EventType.objects.filter(pk=chosen).first() if could_be_of(EventType, chosen) else None
        return queryset.filter(pk__in=Subscription.objects.reached_by(event_type)) if event_type else queryset.none()


@admin.register(Subscription)
class SubscriptionAdmin(ShowingOnceAdmin[Subscription], SwitchedAdmin[Subscription]):
    """Who wants what, and where it goes; the signing secret is shown when it is made, and never again."""

    list_display = ("id", "subscriber", "events", "endpoint", "header_filter_string", "status_label", "updated_at")
    list_display_links = ("id", "subscriber")
    list_filter = (
        "status",
        "delivery_mode",
        ("subscriber", AutocompleteSelectFilter),
        ("event_type", ReachedByFilter),
    )
    list_select_related = ("subscriber", "event_type")
    search_fields = ("subscriber__name", "event_type__name", "event_pattern", "endpoint")
    ordering = ("-id",)
    autocomplete_fields = ("subscriber", "event_type")
    fixed = ("subscriber", "event_type", "event_pattern")
    groups = (
        (None, (*fixed, "status", *PAUSE, "delivery_mode", "endpoint", "headers", "position", "to_be_set_anew")),
        ("Which messages", ("header_filter_string", "filter")),
        ("What is sent", ("script", "output")),
        ("How fast, and after a failure", ("rate_limit", "retry_policy", "monitor_url")),
    )
    form = SubscriptionForm
    kept_by_the_broker = ("overlap_ends_at", *SwitchedAdmin.kept_by_the_broker)
    shown_name = "signing secret"
    shown_advice = "Give it to the receiver, which checks signatures with it. It cannot be read again, only rotated."
    actions_detail: ClassVar[tuple[str, ...]] = ("activate", "inactivate", "rotate_secret", "end_overlap")

    def formfield_for_dbfield(self, db_field: "Field[Any, Any]", request: HttpRequest, **options: Any) -> Any:
        """Return the form's field; what is a program looks like one."""
        field = super().formfield_for_dbfield(db_field, request, **options)
        if db_field.name in {"filter", "script"}:
            for_code(field.widget)
        return field

    def has_rotate_secret_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may make new signing secrets, which takes no permission to change anything else."""
        return request.user.has_perm("subscriptions.rotate_secret")

    def create(self, request: HttpRequest, obj: Subscription, form: "ModelForm[Subscription]") -> None:
        """Create it with a new signing secret, and show that."""
        obj.signing_secret = secret_of(secrets.token_bytes(NEW_KEY_BYTES))
        super().create(request, obj, form)
        self.show_when_added(obj, obj.signing_secret)

    @action(description="Rotate secret", permissions=["rotate_secret"], icon="key")
    def rotate_secret(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then give it a new signing secret and show that."""
        form = RotationForm(request.POST if "confirmed" in request.POST else None)
        if question := self.asked(request, get_object_or_404(self.only(object_id)), ROTATING, form):
            return question
        try:
            changed = rotation.rotate_secret(
                self.only(object_id), random_bytes=secrets.token_bytes(NEW_KEY_BYTES), overlap=form.overlap
            )
        except rotation.TooManySecrets as refused:
            self.message_user(request, str(refused), messages.ERROR)
            return HttpResponseRedirect(self.page_of(object_id))
        self.log_change(request, changed, f"Rotated the signing secret; the former signs for {form.overlap}.")
        return self.shown(request, changed, changed.signing_secret)

    @action(
        description="End overlap",
        permissions=["rotate_secret"],
        icon="key_off",
        dialog=dialog("End the overlap?", "From the next request on only the present signing secret signs.", "End it"),
    )
    def end_overlap(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Let former signing secrets not sign any more."""
        changed = rotation.end_overlap(self.only(object_id))
        self.log_change(request, changed, "Ended the overlap of signing secrets.")
        self.message_user(request, "Only the present secret signs now.", messages.SUCCESS)
        return after_dialog(request, self.page_of(object_id))
