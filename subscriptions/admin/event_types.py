"""Event types in the admin."""

from django.contrib import admin

from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.models import EventType


@admin.register(EventType)
class EventTypeAdmin(ConfiguredAdmin[EventType]):
    """What can be published."""

    list_display = ("name", "kind", "content_type", "description", "updated_at")
    list_filter = ("kind",)
    search_fields = ("name", "description")
    ordering = ("name",)
    fixed = ("name", "kind")
