"""Retry policies in the admin."""

from django.contrib import admin

from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.models import RetryPolicy


@admin.register(RetryPolicy)
class RetryPolicyAdmin(ConfiguredAdmin[RetryPolicy]):
    """What happens after a delivery has failed; what came installed can be looked at only."""

    list_display = ("name", "description", "most_retries", "in_the_end", "is_preset", "updated_at")
    list_filter = ("is_preset", "in_the_end")
    search_fields = ("name", "description")
    ordering = ("name",)
