"""Read-only lists of announcements, volatile counts, line events, idempotency keys and storage days."""

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from delivery.admin.read_only import ReadOnlyAdmin
from delivery.models import Announcement, IdempotencyKey, LineEvent, StorageDay, VolatileCount, VolatileOutcome


@admin.register(Announcement)
class AnnouncementAdmin(ReadOnlyAdmin[Announcement]):
    """Which announcements are not published yet; mostly none."""

    list_display = ("id", "kind", "line", "subscription", "delivery_id", "at")
    list_filter = ("kind",)
    list_select_related = ("line__subscriber", "subscription__subscriber", "subscription__event_type")


@admin.register(VolatileCount)
class VolatileCountAdmin(ReadOnlyAdmin[VolatileCount]):
    """What became of messages that are stored nowhere, by the hour of their publishing."""

    list_display = ("hour_label", "event_type", "of_subscription", "accepted", *VolatileOutcome, "unaccounted")
    list_filter = ("event_type",)
    search_fields = ()
    list_select_related = ("event_type", "subscription__subscriber", "subscription__event_type")

    @admin.display(description="hour", ordering="hour")
    def hour_label(self, count: VolatileCount) -> SafeString:
        """Return the hour of publishing, in one line."""
        return format_html(
            '<span class="whitespace-nowrap">{}</span>', f"{timezone.localtime(count.hour):%Y-%m-%d %H:%M}"
        )

    @admin.display(description="subscription", empty_value="all messages")
    def of_subscription(self, count: VolatileCount) -> str | None:
        """Return whose share is counted, None where all messages are."""
        if count.subscription_id is None:
            return None
        return str(count.subscription or f"{count.subscription_id}, deleted since")


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
