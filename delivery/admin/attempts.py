"""Attempts in the admin: one request and its answer; and to whom deliveries go, as all lists of them show it."""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from broker_project.core.admin.lists import several_filter
from broker_project.core.admin.model_admin import AutocompleteSelectFilter, Prefetched, column
from delivery.admin.read_only import ReadOnlyAdmin, link_to, may_see_contents, yes_or_no
from delivery.models import Attempt, Callback, Delivery
from delivery.status.timeline import TOLD_WITH, exchange_of


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


def _answered(kind: str) -> Q:
    """Return the condition for attempts with an answer of this kind: the first digit of its status, or `none`."""
    return Q(status_code=None) if kind == "none" else Q(status_code__range=(100 * int(kind), 100 * int(kind) + 99))


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin[Attempt]):
    """Requests that were sent, and their answers."""

    when_empty = "Nothing has been sent yet. Each request to an endpoint is listed here, once an event is published."
    list_display = ("id", "delivery_link", "subscriber", "number", "started_at", "status_code", "error", "duration_ms")
    list_select_related = ("delivery__subscription__subscriber",)
    time_column = "started_at"
    list_filter = (
        several_filter(
            "answer",
            "answer",
            {"2": "2xx", "3": "3xx", "4": "4xx", "5": "5xx", "none": "no answer"},
            lambda rows, chosen: rows.filter(reduce(or_, map(_answered, chosen))),
        ),
        ("delivery__subscription__subscriber", AutocompleteSelectFilter),
        ("delivery__message__event_type", AutocompleteSelectFilter),
        ("delivery__message__publisher", AutocompleteSelectFilter),
    )
    fields = (
        *("id", "delivery_link", "subscriber", "number", "by_hand", "started_at", "duration_ms"),
        *("status_code", "error", "retry_action"),
    )
    change_form_outer_before_template = "delivery/attempt_story.html"

    def prefetch(self, rows: Sequence[Attempt]) -> None:
        """Read the callbacks of all replies among the attempts' deliveries."""
        CALLBACK_OF_REPLY.load(attempt.delivery for attempt in rows if attempt.delivery)

    delivery_link = column("delivery", lambda attempt: link_to("delivery_delivery", attempt.delivery_id))
    subscriber = column("subscriber", lambda attempt: addressee_of(attempt.delivery))
    by_hand = column("by hand", lambda attempt: yes_or_no(attempt.is_by_hand))
    retry_action = column("retry action", lambda attempt: attempt.meaning or "-")

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Attempt, **options: Any
    ) -> HttpResponse:
        """Show its request beside its answer above its fields."""
        delivery = Delivery.objects.select_related(*TOLD_WITH).filter(pk=obj.delivery_id or 0).first()
        exchange = delivery and exchange_of(delivery, obj)
        context |= {"exchange": exchange, "shows_contents": may_see_contents(request)}
        return super().render_change_form(request, context, *args, obj=obj, **options)  # type: ignore[no-any-return]
