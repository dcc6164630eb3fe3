"""Retry policies in the admin."""

from django.contrib import admin
from django.http import HttpRequest

from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.models import RetryPolicy


@admin.register(RetryPolicy)
class RetryPolicyAdmin(ConfiguredAdmin[RetryPolicy]):
    """What happens after a delivery has failed; what came installed can be looked at only."""

    list_display = ("name", "description", "most_retries", "in_the_end", "is_preset", "updated_at")
    list_filter = ("is_preset", "in_the_end")
    search_fields = ("name", "description")
    ordering = ("name",)

    def has_change_permission(self, request: HttpRequest, obj: RetryPolicy | None = None) -> bool:
        """Tell whether the user may change it: a preset nobody."""
        return not (obj and obj.is_preset) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: RetryPolicy | None = None) -> bool:
        """Tell whether the user may delete it: a preset nobody."""
        return not (obj and obj.is_preset) and super().has_delete_permission(request, obj)
