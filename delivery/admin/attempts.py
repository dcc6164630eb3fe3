"""Attempts in the admin: one request and its answer."""

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.utils.safestring import SafeString

from delivery.admin.addressees import addressee_of, keep_callbacks
from delivery.admin.read_only import SHOWN_AT_MOST, ReadOnlyAdmin, link_to, text_of
from delivery.models import Attempt, Delivery
from subscriptions.admin.theme import display, preformatted, table


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin[Attempt]):
    """What was tried, and what came back."""

    list_display = ("id", "delivery_link", "subscriber", "number", "started_at", "status_code", "error", "duration_ms")
    list_select_related = ("delivery__subscription__subscriber",)
    fields = (
        *("id", "delivery_link", "subscriber", "number", "started_at", "duration_ms", "status_code", "error"),
        *("head", "excerpt"),
    )
    readonly_fields = fields

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of attempts, with the callbacks of all replies among them read at once."""
        page = super().get_changelist_instance(request)
        keep_callbacks(attempt.delivery for attempt in page.result_list)
        return page

    @display(description="delivery")
    def delivery_link(self, attempt: Attempt) -> SafeString | str:
        """Return a link to the delivery."""
        return link_to("delivery_delivery", attempt.delivery_id, attempt.delivery_id)

    @display(description="subscriber")
    def subscriber(self, attempt: Attempt) -> SafeString | str:
        """Return whose endpoint was asked."""
        return addressee_of(attempt.delivery)

    @display(description="answer's headers")
    def head(self, attempt: Attempt) -> SafeString:
        """Return the answer's status line and headers, as text."""
        return preformatted(text_of(attempt.answer_headers))

    @display(description="answer's beginning")
    def excerpt(self, attempt: Attempt) -> SafeString:
        """Return the beginning of the answer's body, as text."""
        return preformatted(text_of(attempt.answer_excerpt))


def attempts_table(delivery: Delivery) -> SafeString:
    """Return the attempts of a delivery, the first ones first."""
    found = Attempt.objects.filter(delivery=delivery).order_by("id")[:SHOWN_AT_MOST]
    rows = [
        [
            link_to("delivery_attempt", one.pk, one.number),
            one.started_at,
            one.status_code or "-",
            one.error or "-",
            f"{one.duration_ms} ms",
        ]
        for one in found
    ]
    return table(["number", "started", "status", "error", "duration"], rows)
