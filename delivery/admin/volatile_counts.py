"""How many volatile messages there were, in the admin."""

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from broker_project.core.admin.read_only import ReadOnlyAdmin
from delivery.models import VolatileCount, VolatileOutcome


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
