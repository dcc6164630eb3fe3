"""Lines in the admin: why one is held, until when, who drives it, and what waits in it."""

from typing import Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from delivery.admin.read_only import SHOWN_AT_MOST, ReadOnlyAdmin, instant, link_to, link_to_list
from delivery.models import Delivery, Line, LineEvent
from delivery.models.deliveries import DeliveryQuerySet
from delivery.standing import COUNTED_AT_MOST, LineState, Standing, held_lines, standings_of
from subscriptions.admin.theme import display, table

STANDING: Final = "_standing"
"""Where a line that is shown keeps how it stands."""

STATE_COLOURS: Final = {
    LineState.HELD: "danger",
    LineState.SENDING: "info",
    LineState.WAITING: "info",
    LineState.SET_ASIDE: "warning",
    LineState.TO_RELEASE: "danger",
    LineState.INACTIVE: "warning",
    LineState.AT_REST: "success",
}


class HeldFilter(admin.SimpleListFilter):
    """Lines that wait for their endpoint, or those that do not."""

    title = "held"
    parameter_name = "held"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the choices."""
        return [("yes", "Held"), ("no", "Not held")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Line]) -> QuerySet[Line]:  # noqa: ARG002
        """Return the lines of the choice."""
        if self.value() is None:
            return queryset
        held = held_lines()
        return queryset.filter(pk__in=held) if self.value() == "yes" else queryset.exclude(pk__in=held)


@admin.register(Line)
class LineAdmin(ReadOnlyAdmin[Line]):
    """Ordered work of one subscriber."""

    list_display = (
        *("subscriber", "state", "waiting", "set_aside", "set_aside_due", "to_release"),
        *("hold_since", "hold_reason", "next_try", "last_sequence"),
    )
    list_filter = (HeldFilter,)
    list_select_related = ("subscriber",)
    ordering = ("subscriber__name", "pk")
    search_fields = ("subscriber__name",)
    search_help_text = "A subscriber's name"
    fields = (
        *("subscriber", "lane", "state", "waiting", "set_aside", "set_aside_due", "to_release", "oldest_pending"),
        "head_link",
        *("hold_since", "hold_reason", "next_try", "failures", "last_sequence", "worker", "lease_until", "epoch"),
        *("history", "delivery_list"),
    )
    readonly_fields = fields

    def get_search_results(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        queryset: QuerySet[Line],
        search_term: str,
    ) -> tuple[QuerySet[Line], bool]:
        """Return the lines of subscribers so called."""
        return queryset.filter(subscriber__name__icontains=search_term.strip()), False

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of lines, with how they all stand read at once."""
        page = super().get_changelist_instance(request)
        standings = standings_of([line.pk for line in page.result_list])
        for line in page.result_list:
            vars(line)[STANDING] = standings[line.pk]
        return page

    @display(description="state", label=STATE_COLOURS)
    def state(self, line: Line) -> str:
        """Return what it is doing."""
        return str(_standing(line).state)

    @display(description="waiting")
    def waiting(self, line: Line) -> str:
        """Return how many deliveries are unfinished, counted no further than needed."""
        return _counted(_standing(line).waiting)

    @display(description="set aside")
    def set_aside(self, line: Line) -> str:
        """Return how many of them failed before and are tried again later."""
        return _counted(_standing(line).set_aside)

    @display(description="next of those due")
    def set_aside_due(self, line: Line) -> str:
        """Return when the next one that was set aside is due."""
        return instant(_standing(line).set_aside_due_at)

    @display(description="to release")
    def to_release(self, line: Line) -> str:
        """Return how many of them are HELD until somebody releases them."""
        return _counted(_standing(line).to_release)

    @display(description="held since")
    def hold_since(self, line: Line) -> str:
        """Return since when it waits for its endpoint."""
        hold = _standing(line).hold
        return instant(hold.since if hold else None)

    @display(description="held because", empty_value="-")
    def hold_reason(self, line: Line) -> str | None:
        """Return why it waits for its endpoint."""
        hold = _standing(line).hold
        return hold.reason if hold else None

    @display(description="next try")
    def next_try(self, line: Line) -> str:
        """Return when a held line tries again."""
        hold = _standing(line).hold
        return instant(hold.next_try_at if hold else None)

    @display(description="oldest unfinished")
    def oldest_pending(self, line: Line) -> str:
        """Return since when the oldest waits."""
        oldest = _unfinished(line).oldest_first().first()
        return f"since {oldest.created_at:%Y-%m-%d %H:%M:%S} UTC" if oldest else "-"

    @display(description="must not be overtaken")
    def head_link(self, line: Line) -> SafeString | str:
        """Return a link to the delivery that goes first."""
        return link_to("delivery_delivery", line.head_id, line.head_id)

    @display(description="history")
    def history(self, line: Line) -> SafeString:
        """Return what is worth knowing, the latest first."""
        found = LineEvent.objects.filter(line=line).order_by("-id")[:SHOWN_AT_MOST]
        return table(["at", "what", "number", "why"], [[one.at, one.kind, one.sequence, one.reason] for one in found])

    @display(description="deliveries")
    def delivery_list(self, line: Line) -> SafeString:
        """Return a link to all its deliveries."""
        return link_to_list("delivery_delivery", "all deliveries of this line", line__id__exact=line.pk)


def _standing(line: Line) -> Standing:
    """Return how a line stands: as its list has read it, or read once for its page."""
    if STANDING not in vars(line):
        vars(line)[STANDING] = standings_of([line.pk])[line.pk]
    standing: Standing = vars(line)[STANDING]
    return standing


def _counted(number: int) -> str:
    return f"{number} or more" if number == COUNTED_AT_MOST else str(number)


def _unfinished(line: Line) -> DeliveryQuerySet:
    """Return the open deliveries of a line, by subscription: that is how the open shelf is indexed."""
    return Delivery.objects.open().filter(subscription__subscriber=line.subscriber_id, line=line)
