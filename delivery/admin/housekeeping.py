"""What keeps the tables in order, in the admin."""

from django.contrib import admin

from broker_project.core.admin.read_only import ReadOnlyAdmin
from delivery.models import IdempotencyKey, LineEvent, StorageDay


@admin.register(LineEvent)
class LineEventAdmin(ReadOnlyAdmin[LineEvent]):
    """What is worth knowing in the history of lines."""

    list_display = ("at", "line", "kind", "sequence", "delivery_id", "reason")
    list_filter = ("kind",)
    list_select_related = ("line__subscriber",)


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(ReadOnlyAdmin[IdempotencyKey]):
    """Which publishes get the answer of an earlier one."""

    list_display = ("key", "publisher", "message_id", "outcome", "deliveries_count", "expires_at")
    list_select_related = ("publisher",)
    exclude = ("fingerprint",)


@admin.register(StorageDay)
class StorageDayAdmin(ReadOnlyAdmin[StorageDay]):
    """Which days have partitions."""

    list_display = ("day",)
    search_fields = ()
