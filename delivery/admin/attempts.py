"""Attempts in the admin: one request and its answer."""

from collections.abc import Iterable
from typing import Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import display, preformatted, table
from delivery.admin.contents import HIDDEN, ContentsAdmin, text_of
from delivery.admin.read_only import MAX_SHOWN, link_to, yes_or_no
from delivery.models import Attempt, Callback, Delivery
from delivery.outcomes import Meaning

CALLBACK: Final = "_callback"
"""Where the delivery of a reply keeps its callback once that is known."""


def keep_callbacks(deliveries: Iterable[Delivery | None]) -> None:
    """Let those that are replies know their callbacks: one query for all of them, none where there are none."""
    replies = [one for one in deliveries if one and one.subscription_id is None]
    if not replies:
        return
    found = Callback.objects.filter(reply__in={one.message_id for one in replies}, delivery_id__isnull=False)
    by_delivery = {callback.delivery_id: callback for callback in found.select_related("event_type")}
    for delivery in replies:
        vars(delivery)[CALLBACK] = by_delivery.get(delivery.pk)


def addressee_of(delivery: Delivery | None) -> SafeString | str:
    """Return who gets it; a dash where that is gone."""
    if delivery and delivery.subscription:
        return str(delivery.subscription.subscriber)
    callback = _callback_of(delivery)
    return link_to("delivery_callback", callback.pk, callback) if callback else "-"


def events_of(delivery: Delivery) -> str:
    """Return what its subscription is for, an event type or a pattern, or the event type that a reply answers."""
    if delivery.subscription:
        return delivery.subscription.events
    callback = _callback_of(delivery)
    return str(callback.event_type) if callback and callback.event_type else "-"


def _callback_of(delivery: Delivery | None) -> Callback | None:
    if delivery is None or delivery.subscription_id is not None:
        return None
    if CALLBACK not in vars(delivery):
        keep_callbacks([delivery])
    callback: Callback | None = vars(delivery)[CALLBACK]
    return callback


MEANINGS: Final[dict[str, str]] = {
    Meaning.HOLD: "its line was held",
    Meaning.DEFERRED: "deferred",
    Meaning.RETRY_LANE: "tried again apart",
    Meaning.SUSPEND: "its subscription was suspended",
    Meaning.END: "it ended",
}
"""What followed from an answer, in words."""


@admin.register(Attempt)
class AttemptAdmin(ContentsAdmin[Attempt]):
    """What was tried, and what came back."""

    list_display = ("id", "delivery_link", "subscriber", "number", "started_at", "status_code", "error", "duration_ms")
    list_select_related = ("delivery__subscription__subscriber",)
    fields = (
        *(
            "id",
            "delivery_link",
            "subscriber",
            "number",
            "by_hand",
            "started_at",
            "duration_ms",
            "status_code",
            "error",
        ),
        *("what_followed", "head", "excerpt"),
    )
    readonly_fields = (*fields, HIDDEN)
    contents = ("head", "excerpt")

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

    @display(description="by hand")
    def by_hand(self, attempt: Attempt) -> str:
        """Return whether somebody had this request sent."""
        return yes_or_no(attempt.is_by_hand)

    @display(description="what followed")
    def what_followed(self, attempt: Attempt) -> str:
        """Return what followed under its subscription's retry policy."""
        return meaning_of(attempt)

    @display(description="answer's headers")
    def head(self, attempt: Attempt) -> SafeString:
        """Return the answer's status line and headers, as text."""
        return preformatted(text_of(attempt.answer_headers))

    @display(description="answer's beginning")
    def excerpt(self, attempt: Attempt) -> SafeString:
        """Return the beginning of the answer's body, as text."""
        return preformatted(text_of(attempt.answer_excerpt))


def meaning_of(attempt: Attempt) -> str:
    """Return what followed from an answer, a dash where its delivery's status says it."""
    return MEANINGS.get(attempt.meaning or "", attempt.meaning or "-")


def attempts_table(delivery: Delivery) -> SafeString:
    """Return the attempts of a delivery, the first ones first."""
    found = delivery.attempt_set.order_by("id")[:MAX_SHOWN]  # and each knows its delivery
    rows = [
        [
            link_to("delivery_attempt", one.pk, f"{one.number}, by hand" if one.is_by_hand else one.number),
            one.started_at,
            one.status_code or "-",
            one.error or "-",
            f"{one.duration_ms} ms",
            meaning_of(one),
        ]
        for one in found
    ]
    return table(["number", "started", "status", "error", "duration", "what followed"], rows)
