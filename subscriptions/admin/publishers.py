"""Publishers in the admin."""

from django.contrib import admin
from django.forms import ModelForm
from django.http import HttpRequest

from broker_project.core.admin.theme import display
from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.models import Publisher, RetryPolicy
from subscriptions.retry_policies import ACTIONS

PAUSES = ("initial_delay_seconds", "factor", "max_delay_seconds", "schedule", "jitter", "respect_retry_after")


@admin.register(Publisher)
class PublisherAdmin(ConfiguredAdmin[Publisher]):
    """Who publishes."""

    list_display = ("name", "description", "updated_at")
    search_fields = ("name", "description")
    ordering = ("name",)
    autocomplete_fields = ("event_types",)

    def save_related(self, request: HttpRequest, form: "ModelForm[Publisher]", formsets: object, change: bool) -> None:
        """Store the links of a new one; those of an old one were changed with it."""
        if not change:
            super().save_related(request, form, formsets, change)


@admin.register(RetryPolicy)
class RetryPolicyAdmin(ConfiguredAdmin[RetryPolicy]):
    """What happens after a delivery has failed; what came installed can be looked at only."""

    groups = (
        (None, ("name", "description")),
        ("What is done about a failure", ACTIONS),
        ("When it is tried again", PAUSES),
        ("When retries are used up", ("max_retries", "on_exhausted", "probe_seconds")),
    )
    list_display = ("name", "description", "max_retries", "on_exhausted", "is_built_in", "updated_at")
    list_filter = ("is_preset", "on_exhausted")
    search_fields = ("name", "description")
    ordering = ("name",)

    @display(description="came installed", ordering="is_preset")
    def is_built_in(self, policy: RetryPolicy) -> str:
        """Return a flag in words: that one is made here is no error."""
        return "yes" if policy.is_preset else "no"
