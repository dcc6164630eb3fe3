"""Publishers and retry policies in the admin."""

from django.contrib import admin
from django.forms import ModelForm
from django.http import HttpRequest

from broker_project.core.admin.model_admin import column
from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.models import Publisher, RetryPolicy
from subscriptions.retry_policies import ACTIONS

DELAYS = ("initial_delay_seconds", "factor", "max_delay_seconds", "schedule", "jitter", "respect_retry_after")


@admin.register(Publisher)
class PublisherAdmin(ConfiguredAdmin[Publisher]):
    """Publishers, and which event types each may publish."""

    when_empty = "No publisher yet. Create one, then an API key for it, with which it publishes."
    list_display = ("name", "description", "updated_at")
    search_fields = ("name", "description")
    ordering = ("name",)
    autocomplete_fields = ("event_types",)

    def save_related(self, request: HttpRequest, form: "ModelForm[Publisher]", formsets: object, change: bool) -> None:
        """Store the links of a new publisher; those of an old one were changed with it."""
        if not change:
            super().save_related(request, form, formsets, change)


@admin.register(RetryPolicy)
class RetryPolicyAdmin(ConfiguredAdmin[RetryPolicy]):
    """What happens after a delivery has failed; presets are read-only."""

    when_empty = "No retry policy. Run the migrations again, which install four; or create one of your own."
    groups = (
        (None, ("name", "description")),
        ("Action by kind of failure", ACTIONS),
        ("Delays between retries", DELAYS),
        ("After the last retry", ("max_retries", "on_exhausted", "probe_seconds")),
    )
    list_display = ("name", "description", "max_retries", "on_exhausted", "is_built_in", "updated_at")
    list_filter = ("is_preset", "on_exhausted")
    search_fields = ("name", "description")
    ordering = ("name",)

    is_built_in = column("preset", lambda policy: "yes" if policy.is_preset else "no", ordering="is_preset")
