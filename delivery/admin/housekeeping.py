"""Read-only lists of announcements, volatile counts, line events, idempotency keys and storage days."""

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html

from broker_project.core.admin.model_admin import AutocompleteSelectFilter, column
from delivery.admin.read_only import ReadOnlyAdmin
from delivery.models import Announcement, IdempotencyKey, LineEvent, StorageDay, VolatileCount, VolatileOutcome


@admin.register(Announcement)
class AnnouncementAdmin(ReadOnlyAdmin[Announcement]):
    """Announcements that are not published yet; normally none."""

    when_empty = (
        "Nothing waits to be announced. The broker's own events are published within seconds; subscribe to Broker.*."
    )
    list_display = ("id", "kind", "line", "subscription", "delivery_id", "at")
    list_filter = ("kind",)
    time_column = "at"
    list_select_related = ("line__subscriber", "subscription__subscriber", "subscription__event_type")


@admin.register(VolatileCount)
class VolatileCountAdmin(ReadOnlyAdmin[VolatileCount]):
    """Outcomes of messages that are not stored, by the hour of publishing."""

    when_empty = "No volatile message has been published yet. Publishers send one with Broker-Durability: volatile."
    list_display = ("hour_label", "event_type", "of_subscription", "accepted", *VolatileOutcome, "unaccounted")
    list_filter = (("event_type", AutocompleteSelectFilter),)
    time_column = "hour"
    search_fields = ()
    list_select_related = ("event_type", "subscription__subscriber", "subscription__event_type")

    hour_label = column(
        "hour",
        lambda count: format_html(
            '<span class="whitespace-nowrap">{}</span>', f"{timezone.localtime(count.hour):%Y-%m-%d %H:%M}"
        ),
        ordering="hour",
    )
    of_subscription = column(
        "subscription",
        lambda count: (
            "all messages"
            if count.subscription_id is None
            else count.subscription or f"{count.subscription_id}, deleted since"
        ),
    )


@admin.register(LineEvent)
class LineEventAdmin(ReadOnlyAdmin[LineEvent]):
    """The history of lines."""

    when_empty = "Nothing has happened to a line yet. To pause one, open a subscription."
    list_display = ("at", "line", "kind", "sequence", "delivery_id", "reason")
    list_filter = ("kind",)
    time_column = "at"
    list_select_related = ("line__subscriber",)


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(ReadOnlyAdmin[IdempotencyKey]):
    """Keys of publishes: a publish with the same key gets the same answer."""

    contents = ("key",)
    when_empty = "No key is remembered. Publishers send one as Idempotency-Key."
    list_display = ("key", "publisher", "message_id", "outcome", "deliveries_count", "expires_at")
    list_select_related = ("publisher",)
    exclude = ("fingerprint",)


@admin.register(StorageDay)
class StorageDayAdmin(ReadOnlyAdmin[StorageDay]):
    """Days that have partitions."""

    when_empty = "No day has partitions, so nothing can be published. Start a worker: it creates them."
    list_display = ("day",)
    search_fields = ()
