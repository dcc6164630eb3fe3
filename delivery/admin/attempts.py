"""Attempts in the admin: one request and its answer; and to whom deliveries go, as all lists of them show it."""

from collections.abc import Sequence
from typing import Final

from django.contrib import admin
from django.utils.safestring import SafeString

from broker_project.core.admin.model_admin import Prefetched, column
from broker_project.core.admin.theme import preformatted, table
from delivery.admin.read_only import MAX_SHOWN, ReadOnlyAdmin, link_to, text_of, yes_or_no
from delivery.models import Attempt, Callback, Delivery


def _callbacks_of(deliveries: Sequence[Delivery]) -> dict[int | None, Callback]:
    """Return the callbacks of the replies among the deliveries, by delivery; no query without replies."""
    replies = {one.pk: one.message_id for one in deliveries if one.subscription_id is None}
    found = Callback.objects.filter(reply__in={*replies.values()}, delivery_id__isnull=False)
    of_reply = {callback.reply_id: callback for callback in found.select_related("event_type")}
    return {pk: of_reply[reply_id] for pk, reply_id in replies.items() if reply_id in of_reply}


CALLBACK_OF_REPLY: Final = Prefetched[Delivery, Callback | None]("callback", _callbacks_of)


def addressee_of(delivery: Delivery | None) -> SafeString | str:
    """Return the subscriber of a delivery, or a link to the callback of a reply; a dash if that is gone."""
    if delivery is None:
        return "-"
    if delivery.subscription:
        return str(delivery.subscription.subscriber)
    callback = CALLBACK_OF_REPLY.of(delivery)
    return link_to("delivery_callback", callback.pk, callback) if callback else "-"


def events_of(delivery: Delivery) -> str:
    """Return a subscription's event type or pattern, or the event type that a reply answers."""
    if delivery.subscription:
        return delivery.subscription.events
    callback = CALLBACK_OF_REPLY.of(delivery)
    return str(callback.event_type) if callback and callback.event_type else "-"


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin[Attempt]):
    """Requests that were sent, and their answers."""

    when_empty = "Nothing has been sent yet."
    list_display = ("id", "delivery_link", "subscriber", "number", "started_at", "status_code", "error", "duration_ms")
    list_select_related = ("delivery__subscription__subscriber",)
    fields = (
        *("id", "delivery_link", "subscriber", "number", "by_hand", "started_at", "duration_ms"),
        *("status_code", "error", "retry_action", "head", "excerpt"),
    )
    contents = ("head", "excerpt")

    def prefetch(self, rows: Sequence[Attempt]) -> None:
        """Read the callbacks of all replies among the attempts' deliveries."""
        CALLBACK_OF_REPLY.load(attempt.delivery for attempt in rows if attempt.delivery)

    delivery_link = column("delivery", lambda attempt: link_to("delivery_delivery", attempt.delivery_id))
    subscriber = column("subscriber", lambda attempt: addressee_of(attempt.delivery))
    by_hand = column("by hand", lambda attempt: yes_or_no(attempt.is_by_hand))
    retry_action = column("retry action", lambda attempt: attempt.meaning or "-")
    head = column("answer headers", lambda attempt: preformatted(text_of(attempt.answer_headers)))
    excerpt = column("answer body (beginning)", lambda attempt: preformatted(text_of(attempt.answer_excerpt)))


def attempts_table(delivery: Delivery) -> SafeString:
    """Return the attempts of a delivery, oldest first."""
    rows = [
        [
            link_to("delivery_attempt", one.pk, f"{one.number}, by hand" if one.is_by_hand else one.number),
            one.started_at,
            one.status_code or "-",
            one.error or "-",
            f"{one.duration_ms} ms",
            one.meaning or "-",
        ]
        for one in delivery.attempt_set.order_by("id")[:MAX_SHOWN]  # and each knows its delivery
    ]
    return table(["number", "started", "status", "error", "duration", "retry action"], rows)
