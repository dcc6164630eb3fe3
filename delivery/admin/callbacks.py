"""Callbacks in the admin: whose reply is awaited, and what happened to a reply; never a token."""

from typing import Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.safestring import SafeString

from broker_project.core.admin.lists import choice_filter
from broker_project.core.admin.model_admin import AutocompleteSelectFilter, Prefetched, column, state_column
from broker_project.core.admin.theme import badge, relative, table_or_dash
from broker_project.core.api.fields import id_of
from delivery.admin.read_only import ReadOnlyAdmin, link_to, payload_of
from delivery.models import Callback, Message
from delivery.status.callback_status import CallbackState, CallbackStatus, callbacks_now, in_state, origin_of
from delivery.statuses import MESSAGE_ID_PREFIX

MAX_SHOWN_CALLBACKS: Final = 20
STATE_COLOURS: Final = {
    CallbackState.WAITING: "info",
    CallbackState.REPLIED: "info",
    CallbackState.PASSED_ON: "success",
    CallbackState.DELIVERED: "success",
    CallbackState.REFUSED: "danger",
    CallbackState.FAILED: "danger",
    CallbackState.EXPIRED: "warning",
    CallbackState.CANCELLED: "warning",
}

StageFilter: Final = choice_filter(
    "stage",
    "stage",
    {
        "waiting": ("Not replied to yet", lambda rows: in_state(rows, CallbackState.WAITING, now=timezone.now())),
        "in_flight": ("Reply being delivered", lambda rows: in_state(rows, CallbackState.REPLIED, now=timezone.now())),
        "refused": ("Reply refused", lambda rows: in_state(rows, CallbackState.REFUSED, now=timezone.now())),
        "failed": ("Reply failed", lambda rows: in_state(rows, CallbackState.FAILED, now=timezone.now())),
        "cancelled": ("Reply cancelled", lambda rows: in_state(rows, CallbackState.CANCELLED, now=timezone.now())),
        "missed": ("Never replied to", lambda rows: rows.filter(reply=None, expires_at__lte=Now())),
    },
)

STATUS: Final = Prefetched[Callback, CallbackStatus](
    "status", lambda rows: {one.callback.pk: one for one in callbacks_now([*rows], now=timezone.now())}
)


@admin.register(Callback)
class CallbackAdmin(ReadOnlyAdmin[Callback]):
    """Addresses to which endpoints post a result, and where the result goes."""

    when_empty = "No callback has been requested yet. A publisher requests one with CallbackURL in a QUEUE event."
    list_display = (
        "id",
        "state_label",
        "message_link",
        "event_type",
        "publisher",
        "goes_to",
        "created_at",
        "replied_at",
    )
    list_filter = (StageFilter, ("event_type", AutocompleteSelectFilter), ("publisher", AutocompleteSelectFilter))
    list_select_related = ("event_type", "publisher")
    time_column = "created_at"
    fields = (
        *("id", "state_label", "message_link", "event_type", "publisher", "goes_to", "url", "parent_link", "depth"),
        *("created_at", "expires_at", "replied_at", "reply_link", "reply_payload"),
        *("delivery_link", "reason", "next_try"),
    )
    contents = ("url", "reply_payload")
    prefetched = (STATUS,)
    search_help_text = "The id of a callback, of the published message, or of the reply"

    state_label = state_column("state", lambda callback: STATUS.of(callback).state, STATE_COLOURS)
    message_link = column("message", lambda callback: link_to("delivery_message", callback.message_id))
    goes_to = column("reply goes to", lambda callback: origin_of(callback.url) if callback.url else "-")
    parent_link = column("passed on to", lambda callback: link_to("delivery_callback", callback.parent_id))
    reply_link = column("reply", lambda callback: link_to("delivery_message", callback.reply_id))
    reply_payload = column(
        "reply payload",
        lambda callback: payload_of(one) if (one := Message.objects.filter(pk=callback.reply_id or 0).first()) else "-",
    )
    delivery_link = column(
        "delivery of the reply",
        lambda callback: (
            link_to("delivery_delivery", one.pk, f"{one}: {one.get_status_display()}, attempts: {one.attempts}")
            if (one := STATUS.of(callback).delivery)
            else "-"
        ),
    )
    reason = column("reason", lambda callback: getattr(STATUS.of(callback).delivery, "reason", "") or "-")
    next_try = column(
        "next try", lambda callback: relative(one.next_try_at if (one := STATUS.of(callback).delivery) else None)
    )

    def search(self, rows: QuerySet[Callback], term: str) -> QuerySet[Callback]:
        """Return the callback of this id, or those of this message or reply."""
        number = id_of(term, MESSAGE_ID_PREFIX)
        return rows.filter(Q(pk=number) | Q(message=number) | Q(reply=number)) if number else rows.none()


def callbacks_table(message: Message) -> SafeString | str:
    """Return the callbacks of a message and their states; a dash without any."""
    found = Callback.objects.filter(message=message).order_by("pk")[:MAX_SHOWN_CALLBACKS]
    rows = [
        [
            link_to("delivery_callback", one.callback.pk),
            badge(one.state, STATE_COLOURS),
            origin_of(one.callback.url)
            if one.callback.url
            else link_to("delivery_callback", one.callback.parent_id, "another callback"),
            link_to("delivery_message", one.callback.reply_id),
            one.delivery.reason or "-" if one.delivery else "-",
        ]
        for one in callbacks_now([*found], now=timezone.now())
    ]
    return table_or_dash(["callback", "state", "reply goes to", "reply", "reason"], rows)
