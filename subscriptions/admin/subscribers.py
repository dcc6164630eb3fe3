"""Subscribers in the admin."""

from django.contrib import admin

from subscriptions.admin.activation import SwitchedAdmin
from subscriptions.models import Subscriber


@admin.register(Subscriber)
class SubscriberAdmin(SwitchedAdmin[Subscriber]):
    """Who receives."""

    groups = (
        (None, ("name", "description", "status", "headers", "to_be_set_anew")),
        ("How many at a time", ("processing", "concurrency", "max_queued_to_send")),
        ("Mailbox", ("mailbox_ordered", "ack_seconds", "max_redeliveries")),
    )
    list_display = ("name", "status_label", "description", "max_queued_to_send", "updated_at")
    list_filter = ("status",)
    search_fields = ("name", "description")
    ordering = ("name",)
