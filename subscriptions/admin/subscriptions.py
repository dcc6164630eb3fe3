"""Subscribers and subscriptions in the admin."""

from datetime import timedelta
from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Field, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone

from broker_project.core.admin.model_admin import (
    AutocompleteSelectFilter,
    action,
    after_dialog,
    column,
    could_be_of,
    dialog,
    permission,
)
from broker_project.core.admin.theme import UnfoldAdminIntegerFieldWidget, copyable, for_code, label
from subscriptions.admin.configured import HeadedForm, SwitchedAdmin
from subscriptions.admin.show_once import ShowingOnceAdmin
from subscriptions.api.api_keys import portal_address
from subscriptions.credentials import signing_secrets
from subscriptions.credentials.portal_links import issue_link
from subscriptions.credentials.scopes import Issuer
from subscriptions.credentials.signing_secrets import MAX_OVERLAP, OVERLAP
from subscriptions.endpoints import check_reach
from subscriptions.models import EventType, Subscriber, Subscription
from subscriptions.scripting.runner import check_script

HOUR: Final = timedelta(hours=1)

PAUSE: Final = ("pause_label", "paused_since", "paused_by", "paused_reason", "probe_due_at")
"""What the page of a paused subscription says about its pause."""
DIVERSION: Final = ("diverted_label", "diverted_since")
"""The same of a diverted one."""
PORTAL_LINK: Final = (
    "Create a link to the portal? It opens the pages of this subscriber for an hour: its subscriptions, deliveries and"
    " replays, also to pause and to send again."
)
PORTAL_ADVICE: Final = "It opens once, for whoever has it. To close the portal that it has opened, revoke its API key."
ROTATING: Final = "Rotate the signing secret? The new secret signs from the next request on, and is shown once."


@admin.register(Subscriber)
class SubscriberAdmin(SwitchedAdmin[Subscriber]):
    """Subscribers."""

    when_empty = "No subscriber yet. Create one for each receiver, then subscriptions to event types."
    groups = (
        (None, ("name", "description", "status", "headers", "must_be_set_again")),
        ("Concurrency", ("processing", "concurrency", "ordering_key")),
        ("Memory", ("max_queued_to_send", "max_queued_bytes", "refill_percent")),
        ("Mailbox", ("mailbox_ordered", "ack_seconds", "max_redeliveries", "mailbox_days")),
    )
    list_display: ClassVar[tuple[str, ...]] = ("name", "status_label", "description", "updated_at")
    list_filter = ("status",)
    search_fields = ("name", "description")
    ordering = ("name",)
    actions_detail: ClassVar[tuple[Any, ...]] = ("activate", "inactivate", "portal_link")

    has_portal_link_permission = permission("subscriptions.add_apikey")

    @action(description="Portal link", permissions=["portal_link"], icon="link")
    def portal_link(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then create a link to its portal, and show that once."""
        subscriber, back = get_object_or_404(self.only(object_id)), self.change_url(object_id)
        if request.method != "POST":
            return self.confirmation(request, PORTAL_LINK, [subscriber], submit="Create link", back=back)
        key, token = issue_link(subscriber, now=timezone.now(), issuer=Issuer(str(request.user)))
        self.log_change(request, subscriber, f"Created a link to its portal, with API key {key.pk}.")
        context = {"secret": portal_address(request, token), "advice": PORTAL_ADVICE, "back": back}
        return self.page(request, "subscriptions/shown_once.html", f"{subscriber}: link to its portal", **context)


class RotationForm(forms.Form):
    """How long the previous secret signs beside the new one."""

    hours = forms.IntegerField(
        label="Hours during which the previous secret signs too",
        min_value=0,
        max_value=MAX_OVERLAP // HOUR,
        initial=OVERLAP // HOUR,
        help_text="With 0 only the new secret signs from the next request on.",
        widget=UnfoldAdminIntegerFieldWidget,
    )


class SubscriptionForm(HeadedForm):
    """A subscription's form."""

    def clean_endpoint(self) -> str:
        """Refuse a new address that the broker must not connect to."""
        return self._reachable("endpoint")

    def clean_monitor_url(self) -> str:
        """Refuse a new address that the broker must not connect to."""
        return self._reachable("monitor_url")

    def _reachable(self, name: str) -> str:
        url: str = self.cleaned_data[name]
        if name in self.changed_data:
            check_reach(url, settings.EGRESS_POLICY)
        return url

    def clean_script(self) -> str:
        """Refuse a new script that is not JavaScript."""
        source: str = self.cleaned_data["script"]
        if "script" in self.changed_data:
            self.instance.script = source  # or a refused script would be reported as missing too
            check_script(source)
        return source

    def full_clean(self) -> None:
        """Report conflicts with other subscriptions beside their fields."""
        super().full_clean()
        is_same = self.instance.pk and self.instance.compared.isdisjoint(self.changed_data)
        if not self.is_bound or self.errors or is_same:
            return
        try:
            self.instance.clean_among_others()
        except ValidationError as refused:
            self.add_error(None, refused)


class ReachedByFilter(AutocompleteSelectFilter):
    """Subscriptions to an event type, by its name or by a pattern."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> QuerySet[Subscription]:  # noqa: ARG002
        """Return the subscriptions that match the chosen event type."""
        chosen = str(self.value() or "")
        if not chosen:
            return queryset
        event_type = EventType.objects.filter(pk=chosen).first() if could_be_of(EventType, chosen) else None
        return queryset.filter(pk__in=Subscription.objects.reached_by(event_type)) if event_type else queryset.none()


@admin.register(Subscription)
class SubscriptionAdmin(ShowingOnceAdmin[Subscription], SwitchedAdmin[Subscription]):
    """Subscriptions; a signing secret is shown when it is made and never again."""

    when_empty = "No subscription yet. Create one to send the events of a type to a subscriber."
    list_display = (
        *("own_id", "subscriber", "events", "sent_to"),
        *("status_label", "pause_label", "diverted_label", "updated_at"),
    )
    list_display_links = ("own_id", "subscriber")
    list_filter = (
        "status",
        "delivery_mode",
        ("subscriber", AutocompleteSelectFilter),
        ("event_type", ReachedByFilter),
    )
    list_select_related = ("subscriber", "event_type")
    search_fields = ("=id", "subscriber__name", "event_type__name", "event_pattern", "endpoint")
    ordering = ("-id",)
    autocomplete_fields = ("subscriber", "event_type")
    fixed = ("subscriber", "event_type", "event_pattern")
    groups = (
        (
            None,
            (
                *fixed,
                "status",
                *PAUSE,
                *DIVERSION,
                "delivery_mode",
                "endpoint",
                "headers",
                "position",
                "must_be_set_again",
            ),
        ),
        ("Filters", ("header_filter_string", "filter")),
        ("Payload", ("script", "output")),
        ("Rate limit and retries", ("rate_limit", "timeout_seconds", "retry_policy", "monitor_url")),
    )
    form = SubscriptionForm
    kept_by_the_broker = ("overlap_ends_at", *SwitchedAdmin.kept_by_the_broker)
    shown_name = "signing secret"
    shown_advice = "Configure it in the receiver, to verify signatures. It cannot be shown again, only rotated."
    actions_detail: ClassVar[tuple[Any, ...]] = ("activate", "inactivate", "rotate_secret", "end_overlap")

    own_id = column("ID", lambda subscription: copyable(subscription.pk, "id"), ordering="pk")
    sent_to = column(
        "endpoint",
        lambda subscription: copyable(subscription.endpoint, "endpoint") if subscription.endpoint else "mailbox",
        ordering="endpoint",
    )
    pause_label = column(
        "paused",
        lambda subscription: (
            label("half-open" if subscription.half_open else "paused", "warning") if subscription.paused_since else "-"
        ),
    )
    diverted_label = column(
        "diverted", lambda subscription: label("endpoint hangs", "warning") if subscription.diverted_since else "-"
    )

    has_rotate_secret_permission = permission("subscriptions.rotate_secret")

    def get_readonly_fields(self, request: HttpRequest, obj: Subscription | None = None) -> tuple[str, ...]:
        """Return the pause or the diversion too, if there is one."""
        shown = PAUSE if obj and obj.paused_since else DIVERSION if obj and obj.diverted_since else ()
        return (*super().get_readonly_fields(request, obj), *shown)

    def formfield_for_dbfield(self, db_field: "Field[Any, Any]", request: HttpRequest, **options: Any) -> Any:
        """Return the form's field; filter and script are monospaced."""
        field = super().formfield_for_dbfield(db_field, request, **options)
        if db_field.name in {"filter", "script"}:
            for_code(field.widget)
        if db_field.name == "endpoint":
            field.widget.attrs["data-copy"] = "endpoint"
        return field

    def create(self, request: HttpRequest, obj: Subscription, form: "ModelForm[Subscription]") -> None:
        """Create it, and show its new signing secret."""
        super().create(request, obj, form)
        self.show_when_added(obj, obj.signing_secret)

    @action(
        description="Rotate secret",
        permissions=["rotate_secret"],
        icon="key",
        refusals=(signing_secrets.TooManySecrets,),
    )
    def rotate_secret(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then give it a new signing secret and show that."""
        form = RotationForm(request.POST if "confirmed" in request.POST else None)
        if question := self.asked(request, get_object_or_404(self.only(object_id)), ROTATING, "Rotate secret", form):
            return question
        overlap = HOUR * int(form.cleaned_data["hours"])
        changed = signing_secrets.rotate_secret(self.only(object_id), overlap=overlap)
        self.log_change(request, changed, f"Rotated the signing secret; the previous one signs for {overlap}.")
        return self.shown(request, changed, changed.signing_secret)

    @action(
        description="End overlap",
        permissions=["rotate_secret"],
        icon="key_off",
        dialog=dialog(
            "End the overlap?", "From the next request on only the current signing secret signs.", "End overlap"
        ),
    )
    def end_overlap(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Stop previous signing secrets from signing."""
        changed = signing_secrets.end_overlap(self.only(object_id))
        self.report_change(request, changed, "Ended the overlap: only the current signing secret signs now.")
        return after_dialog(request, self.change_url(object_id))
