"""How many volatile messages there were, in the admin."""

from django.contrib import admin

from delivery.admin.read_only import ReadOnlyAdmin
from delivery.models import VolatileCount


@admin.register(VolatileCount)
class VolatileCountAdmin(ReadOnlyAdmin[VolatileCount]):
    """What became of messages that are stored nowhere, by the hour."""

    list_display = ("hour", "event_type", "subscription", "outcome", "count")
    list_filter = ("outcome",)
    list_select_related = ("event_type", "subscription__subscriber", "subscription__event_type")
