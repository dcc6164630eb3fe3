"""Dead letters in the admin."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from delivery.admin.read_only import STATUS_COLOURS, ReadOnlyAdmin
from delivery.models import OPEN_SHELF, DeadLetter
from delivery.rules.statuses import DEAD
from subscriptions.admin.theme import display


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin[DeadLetter]):
    """Which deliveries came to nothing, and why."""

    list_display = ("id", "status_label", "subscription", "attempts", "reason", "created_at", "finished_at")
    list_select_related = ("subscription__subscriber", "subscription__event_type")

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        """Return those that have ended without success."""
        rows: QuerySet[DeadLetter] = super().get_queryset(request)
        return rows.filter(closed_on__lt=OPEN_SHELF, status__in=sorted(DEAD))

    @display(description="status", label=STATUS_COLOURS)
    def status_label(self, delivery: DeadLetter) -> str:
        """Return the status, coloured."""
        return delivery.status
