"""Retry policies in the admin."""

from django.contrib import admin

from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.models import RetryPolicy
from subscriptions.retry_terms import ACTIONS

PAUSES = ("first_pause", "factor", "longest_pause", "schedule", "jitter", "honours_retry_after")


@admin.register(RetryPolicy)
class RetryPolicyAdmin(ConfiguredAdmin[RetryPolicy]):
    """What happens after a delivery has failed; what came installed can be looked at only."""

    groups = (
        (None, ("name", "description")),
        ("What is done about a failure", ACTIONS),
        ("When it is tried again", PAUSES),
        ("In the end", ("most_retries", "in_the_end", "probe_seconds")),
    )
    list_display = ("name", "description", "most_retries", "in_the_end", "is_preset", "updated_at")
    list_filter = ("is_preset", "in_the_end")
    search_fields = ("name", "description")
    ordering = ("name",)
