"""Attempts in the admin: one request and its answer."""

from django.contrib import admin
from django.utils.safestring import SafeString

from delivery.admin.read_only import ReadOnlyAdmin, link_to, text_of
from delivery.models import Attempt
from subscriptions.admin.theme import display, preformatted


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin[Attempt]):
    """What was tried, and what came back."""

    list_display = ("id", "delivery_link", "subscriber", "number", "started_at", "status_code", "error", "duration_ms")
    list_select_related = ("delivery__subscription__subscriber",)
    fields = ("id", "delivery_link", "number", "started_at", "duration_ms", "status_code", "error", "head", "excerpt")
    readonly_fields = fields

    @display(description="delivery")
    def delivery_link(self, attempt: Attempt) -> SafeString | str:
        """Return a link to the delivery."""
        return link_to("delivery_delivery", attempt.delivery_id, attempt.delivery_id)

    @display(description="subscriber")
    def subscriber(self, attempt: Attempt) -> str:
        """Return whose endpoint was asked."""
        subscription = attempt.delivery and attempt.delivery.subscription
        return str(subscription.subscriber) if subscription else "-"

    @display(description="answer's headers")
    def head(self, attempt: Attempt) -> SafeString:
        """Return the answer's status line and headers, as text."""
        return preformatted(text_of(attempt.answer_headers))

    @display(description="answer's beginning")
    def excerpt(self, attempt: Attempt) -> SafeString:
        """Return the beginning of the answer's body, as text."""
        return preformatted(text_of(attempt.answer_excerpt))
