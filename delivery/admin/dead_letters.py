"""Dead letters in the admin: in one list what came to nothing, by how it ended; what is done about it, on its page."""

from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import AutocompleteSelectFilter, display
from delivery.admin.attempts import addressee_of, events_of, keep_callbacks
from delivery.admin.line_work import counted
from delivery.admin.read_only import STATUS_COLOURS, is_id, link_to
from delivery.admin.replayable import ReplayableAdmin, searched
from delivery.models import OPEN_SHELF, DeadLetter, MessageOutcome
from delivery.status.dead_letters import REASONS, counts_of, dead_letters
from delivery.status.line_status import MAX_COUNTED
from delivery.webhook.parts import WEBHOOK_ID_PREFIX

TO_NOBODY: Final = str(MessageOutcome.DEAD_LETTERED)


class ReasonFilter(admin.SimpleListFilter):
    """Those that ended in one way, or the newest of all; found along an index, whatever else there is."""

    title = "how it ended"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the choices, with how many there are of each."""
        counts = counts_of(None)
        of_deliveries = [(reason, f"{reason} ({counted(counts[reason])})") for reason in REASONS]
        return [*of_deliveries, (TO_NOBODY, f"{TO_NOBODY}: messages to nobody ({counted(counts[TO_NOBODY])})")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
        """Return those of the choice, as many as are shown."""
        reasons = [reason for reason in REASONS if self.value() in {reason, None}]
        if request.GET.get("q"):
            return queryset.filter(status__in=reasons)
        wanted = request.GET.get("subscription__id__exact", "")
        ids = [int(wanted)] if is_id(wanted) else None
        newest = dead_letters(reasons, ids, key=None, downwards=True, limit=MAX_COUNTED)
        return queryset.filter(pk__in=newest)


@admin.register(DeadLetter)
class DeadLetterAdmin(ReplayableAdmin[DeadLetter]):
    """Which deliveries came to nothing, and why."""

    list_display = (
        "delivery",
        "status_label",
        "subscriber",
        "event_type",
        "attempts",
        "reason",
        "created_at",
        "finished_at",
    )
    list_display_links = None
    list_filter = (ReasonFilter, ("subscription", AutocompleteSelectFilter))
    list_select_related = ("subscription__subscriber", "subscription__event_type", "line")
    search_help_text = f"An id, with or without {WEBHOOK_ID_PREFIX}"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list; messages to nobody have no delivery, and stand in a list of their own."""
        if request.GET.get(ReasonFilter.parameter_name) == TO_NOBODY:
            messages = reverse("admin:delivery_message_changelist")
            return HttpResponseRedirect(f"{messages}?outcome__exact={TO_NOBODY}")
        return super().changelist_view(request, extra_context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        """Return those that have ended without success."""
        rows: QuerySet[DeadLetter] = super().get_queryset(request)
        return rows.filter(closed_on__lt=OPEN_SHELF, status__in=REASONS)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of them, with the callbacks of all replies among them read at once."""
        page = super().get_changelist_instance(request)
        keep_callbacks(page.result_list)
        return page

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DeadLetter], search_term: str
    ) -> tuple[QuerySet[DeadLetter], bool]:
        """Return the one of that id, as it stands here or as its subscriber received it."""
        return super().get_search_results(request, queryset, searched(search_term))

    @display(description="delivery", ordering="pk")
    def delivery(self, delivery: DeadLetter) -> SafeString | str:
        """Return a link to its page, where it can be sent again."""
        return link_to("delivery_delivery", delivery.pk, delivery.pk)

    @display(description="status", label=STATUS_COLOURS)
    def status_label(self, delivery: DeadLetter) -> str:
        """Return the status, coloured."""
        return delivery.status

    @display(description="subscriber")
    def subscriber(self, delivery: DeadLetter) -> SafeString | str:
        """Return who did not get it."""
        return addressee_of(delivery)

    @display(description="event type")
    def event_type(self, delivery: DeadLetter) -> str:
        """Return what its subscription is for, or what a reply answers."""
        return events_of(delivery)
