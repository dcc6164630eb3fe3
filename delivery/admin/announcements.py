"""What is yet to be announced, in the admin."""

from django.contrib import admin

from broker_project.core.admin.read_only import ReadOnlyAdmin
from delivery.models import Announcement


@admin.register(Announcement)
class AnnouncementAdmin(ReadOnlyAdmin[Announcement]):
    """Which announcements are not published yet; mostly none."""

    list_display = ("id", "kind", "line", "subscription", "delivery_id", "at")
    list_filter = ("kind",)
    list_select_related = ("line__subscriber", "subscription__subscriber", "subscription__event_type")
