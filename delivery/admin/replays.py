"""Replays and backfills in the admin."""

from django.contrib import admin

from delivery.admin.read_only import ReadOnlyAdmin
from delivery.models import Replay


@admin.register(Replay)
class ReplayAdmin(ReadOnlyAdmin[Replay]):
    """How far each is."""

    list_display = ("id", "kind", "state", "subscription", "total", "filed", "skipped", "created_by", "created_at")
    list_filter = ("kind", "state")
    list_select_related = ("subscription__subscriber", "subscription__event_type")
    exclude = ("ids", "last_given")
