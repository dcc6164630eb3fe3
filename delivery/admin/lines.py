"""Lines in the admin: why one is held, until when, who drives it, and what waits in it."""

from typing import Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import display
from delivery.admin.line_work import (
    HeldFilter,
    LaneFilter,
    counted,
    history_of,
    keep_standing,
    oldest_of,
    sender_of,
    sibling_line_of,
    standing_of,
)
from delivery.admin.read_only import ReadOnlyAdmin, instant, link_to, link_to_list
from delivery.models import Lane, Line
from delivery.status.line_status import LineState, line_statuses

STATE_COLOURS: Final = {
    LineState.HELD: "danger",
    LineState.SENDING: "info",
    LineState.WAITING: "info",
    LineState.DEFERRED: "warning",
    LineState.PAUSED: "warning",
    LineState.AWAITING_RELEASE: "danger",
    LineState.DELAYED: "info",
    LineState.INACTIVE: "warning",
    LineState.IDLE: "success",
}


class StandingColumns(ReadOnlyAdmin[Line]):
    """What is told of lines of every kind: their state, what waits in them, and what for."""

    @display(description="state", label=STATE_COLOURS)
    def state(self, line: Line) -> str:
        """Return what it is doing."""
        return str(standing_of(line).state)

    @display(description="waiting")
    def waiting(self, line: Line) -> str:
        """Return how many deliveries are unfinished, or groups of a sender, counted no further than needed."""
        return counted(standing_of(line).waiting)

    @display(description="deferred")
    def deferred(self, line: Line) -> str:
        """Return how many of them failed before and are tried again later."""
        return counted(standing_of(line).deferred)

    @display(description="next of those due")
    def deferred_due(self, line: Line) -> str:
        """Return when the next one that was set aside is due."""
        return instant(standing_of(line).deferred_due_at)

    @display(description="delayed")
    def delayed(self, line: Line) -> str:
        """Return how many of them are not to be sent before a moment of their own."""
        return counted(standing_of(line).delayed)

    @display(description="to release")
    def awaiting_release(self, line: Line) -> str:
        """Return how many of them are HELD until somebody releases them."""
        return counted(standing_of(line).awaiting_release)

    @display(description="held since")
    def hold_since(self, line: Line) -> str:
        """Return since when it waits for its endpoint."""
        hold = standing_of(line).hold
        return instant(hold.since if hold else None)

    @display(description="held because", empty_value="-")
    def hold_reason(self, line: Line) -> str | None:
        """Return why it waits for its endpoint."""
        hold = standing_of(line).hold
        return hold.reason if hold else None

    @display(description="next try")
    def next_try(self, line: Line) -> str:
        """Return when a held line tries again."""
        hold = standing_of(line).hold
        return instant(hold.next_try_at if hold else None)


@admin.register(Line)
class LineAdmin(StandingColumns):
    """Ordered work of one owner: a subscriber, a QUEUE sender, a callback."""

    list_display = (
        *("owned_by", "state", "waiting", "deferred", "deferred_due", "awaiting_release"),
        *("hold_since", "hold_reason", "next_try", "last_sequence"),
    )
    list_filter = (HeldFilter, LaneFilter)
    list_select_related = ("subscriber",)
    ordering = (F("held_since").asc(nulls_last=True), "subscriber__name", "pk")
    search_fields = ("subscriber__name",)
    search_help_text = "A subscriber's name, or a sender's Celery queue such as queue.0"
    fields = (
        *("owned_by", "lane", "queue", "sibling_line", "state", "waiting", "deferred", "deferred_due", "delayed"),
        *("awaiting_release", "oldest_pending", "in_flight"),
        "head_link",
        *("hold_since", "hold_reason", "next_try", "failures", "last_sequence", "worker", "lease_until", "epoch"),
        *("history", "group_list", "delivery_list"),
    )
    readonly_fields = fields

    def get_search_results(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        queryset: QuerySet[Line],
        search_term: str,
    ) -> tuple[QuerySet[Line], bool]:
        """Return the lines of subscribers so called, or the sender's of that queue."""
        term = search_term.strip()
        of_sender = Q(lane=Lane.QUEUE, queue=term)
        return (queryset.filter(Q(subscriber__name__icontains=term) | of_sender) if term else queryset), False

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of lines, with how they all stand read at once."""
        page = super().get_changelist_instance(request)
        standings = line_statuses([line.pk for line in page.result_list])
        for line in page.result_list:
            keep_standing(line, standings[line.pk])
        return page

    @display(description="whose", ordering="subscriber__name")
    def owned_by(self, line: Line) -> str:
        """Return whose work it is."""
        return line.owner

    @display(description="the other line")
    def sibling_line(self, line: Line) -> SafeString | str:
        """Return a link to its subscriber's other line: of main and retry."""
        other = sibling_line_of(line)
        return link_to("delivery_line", other.pk, other) if other else "-"

    @display(description="oldest unfinished")
    def oldest_pending(self, line: Line) -> str:
        """Return since when the oldest waits."""
        return instant(oldest_of(line))

    @display(description="under way")
    def in_flight(self, line: Line) -> str:
        """Return how many requests a QUEUE sender has under way."""
        sender = sender_of(line)
        return str(sender.in_flight) if sender else "-"

    @display(description="must not be overtaken")
    def head_link(self, line: Line) -> SafeString | str:
        """Return a link to the delivery that goes first."""
        return link_to("delivery_delivery", line.head_id, line.head_id)

    @display(description="history")
    def history(self, line: Line) -> SafeString:
        """Return what is worth knowing, the latest first."""
        return history_of(line)

    @display(description="groups")
    def group_list(self, line: Line) -> SafeString | str:
        """Return a link to the groups that wait for a QUEUE sender."""
        groups = link_to_list("delivery_queuegroup", "all groups that wait here", line__id__exact=line.pk)
        return groups if line.lane == Lane.QUEUE else "-"

    @display(description="deliveries")
    def delivery_list(self, line: Line) -> SafeString:
        """Return a link to all its deliveries, or to what waits in a retry line."""
        shown = "all that waits in this line" if line.lane == Lane.RETRY else "all deliveries of this line"
        return link_to_list("delivery_delivery", shown, line__id__exact=line.pk)
