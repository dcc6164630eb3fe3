"""Callbacks in the admin: who is waited for, and what became of a reply; never a token."""

from typing import Final
from urllib.parse import urlsplit

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import AutocompleteSelectFilter, display, table
from delivery.admin.contents import HIDDEN, ContentsAdmin, payload_of
from delivery.admin.read_only import instant, is_id, link_to
from delivery.models import Callback, Message
from delivery.status.callback_status import CallbackNow, CallbackState, callbacks_now, in_state

STANDING: Final = "_standing"
"""Where a callback that is shown keeps how it stands."""
MAX_SHOWN: Final = 20
STATE_COLOURS: Final = {
    CallbackState.WAITING: "info",
    CallbackState.REPLIED: "info",
    CallbackState.PASSED_ON: "success",
    CallbackState.DELIVERED: "success",
    CallbackState.REFUSED: "danger",
    CallbackState.EXPIRED: "warning",
}


class StageFilter(admin.SimpleListFilter):
    """Callbacks that wait for their endpoint, or whose reply waits or was refused, or that nobody replied to."""

    title = "stage"
    parameter_name = "stage"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the choices."""
        return [
            ("waiting", "Not replied to yet"),
            ("in_flight", "Reply on its way"),
            ("refused", "Reply refused"),
            ("missed", "Never replied to"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Callback]) -> QuerySet[Callback]:  # noqa: ARG002
        """Return the callbacks of the choice."""
        match self.value():
            case "waiting":
                return queryset.filter(reply=None, expires_at__gt=Now())
            case "in_flight":
                return queryset.filter(line__head_id__isnull=False)
            case "refused":
                return in_state(queryset, CallbackState.REFUSED, now=timezone.now())
            case "missed":
                return queryset.filter(reply=None, expires_at__lte=Now())
        return queryset


@admin.register(Callback)
class CallbackAdmin(ContentsAdmin[Callback]):
    """Where an endpoint posts its result, and to whom that goes."""

    list_display = (
        *("id", "state_label", "message_link", "event_type", "publisher", "goes_to", "depth"),
        *("created_at", "replied_at", "expires_at"),
    )
    list_filter = (StageFilter, ("event_type", AutocompleteSelectFilter), ("publisher", AutocompleteSelectFilter))
    list_select_related = ("event_type", "publisher")
    fields = (
        *("id", "state_label", "message_link", "event_type", "publisher", "goes_to", "url", "parent_link", "depth"),
        *("created_at", "expires_at", "replied_at", "reply_link", "reply_payload"),
        *("delivery_link", "reason", "next_try"),
    )
    readonly_fields = (*fields, HIDDEN)
    contents = ("url", "reply_payload")

    search_help_text = "A callback's id, or a message's: what was published, or the reply"

    def get_search_results(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        queryset: QuerySet[Callback],
        search_term: str,
    ) -> tuple[QuerySet[Callback], bool]:
        """Return the callback of that id, or those of that message."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = queryset.filter(Q(pk=term) | Q(message=term) | Q(reply=term)) if is_id(term) else queryset.none()
        return found, False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Callback]:
        """Return the callbacks without what their tokens are kept as."""
        rows: QuerySet[Callback] = super().get_queryset(request)
        return rows.defer("token_hash", "token_sealed")

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of callbacks, with how they all stand read at once."""
        page = super().get_changelist_instance(request)
        for one in callbacks_now([*page.result_list], now=timezone.now()):
            vars(one.callback)[STANDING] = one
        return page

    @display(description="state", label=STATE_COLOURS)
    def state_label(self, callback: Callback) -> str:
        """Return the state, coloured."""
        return str(_now(callback).state)

    @display(description="message")
    def message_link(self, callback: Callback) -> SafeString | str:
        """Return a link to what was published, without loading it."""
        return link_to("delivery_message", callback.message_id, callback.message_id)

    @display(description="reply goes to")
    def goes_to(self, callback: Callback) -> str:
        """Return the server of the original address; all of it is a credential of the publisher's."""
        return server_of(callback.url) if callback.url else "-"

    @display(description="passed on to")
    def parent_link(self, callback: Callback) -> SafeString | str:
        """Return a link to the callback that the reply is passed on to."""
        return link_to("delivery_callback", callback.parent_id, callback.parent_id)

    @display(description="reply")
    def reply_link(self, callback: Callback) -> SafeString | str:
        """Return a link to the reply, which is a message."""
        return link_to("delivery_message", callback.reply_id, callback.reply_id)

    @display(description="reply's payload")
    def reply_payload(self, callback: Callback) -> SafeString | str:
        """Return the reply's body as text, cut where nobody reads on."""
        reply = Message.objects.filter(pk=callback.reply_id).first() if callback.reply_id else None
        return payload_of(reply) if reply else "-"

    @display(description="delivery of the reply")
    def delivery_link(self, callback: Callback) -> SafeString | str:
        """Return a link to the reply on its way, with its status and how often the original URL was asked."""
        delivery = _now(callback).delivery
        text = f"{delivery.pk}: {delivery.status}, attempts: {delivery.attempts}" if delivery else ""
        return link_to("delivery_delivery", delivery.pk, text) if delivery else "-"

    @display(description="reason")
    def reason(self, callback: Callback) -> str:
        """Return what came of the last attempt, if it was not taken."""
        delivery = _now(callback).delivery
        return delivery.reason or "-" if delivery else "-"

    @display(description="next try")
    def next_try(self, callback: Callback) -> str:
        """Return when the reply is tried again, if it waits."""
        line = getattr(callback, "line", None)
        return instant(line.due_at if line and line.head_id else None)


def server_of(url: str) -> str:
    """Return the scheme, the host and the port of an address, and nothing that somebody could authenticate with."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def callbacks_table(message: Message) -> SafeString | str:
    """Return the callbacks of a message and how they stand; a dash for none."""
    found = Callback.objects.filter(message=message).order_by("pk")[:MAX_SHOWN]
    rows = [
        [
            link_to("delivery_callback", one.callback.pk, one.callback.pk),
            one.state,
            server_of(one.callback.url)
            if one.callback.url
            else link_to("delivery_callback", one.callback.parent_id, "another callback"),
            link_to("delivery_message", one.callback.reply_id, one.callback.reply_id),
            one.delivery.reason or "-" if one.delivery else "-",
        ]
        for one in callbacks_now([*found], now=timezone.now())
    ]
    return table(["callback", "state", "reply goes to", "reply", "reason"], rows) if rows else "-"


def _now(callback: Callback) -> CallbackNow:
    """Return how a callback stands: as its list has read it, or read once for its page."""
    if STANDING not in vars(callback):
        (vars(callback)[STANDING],) = callbacks_now([callback], now=timezone.now())
    standing: CallbackNow = vars(callback)[STANDING]
    return standing
