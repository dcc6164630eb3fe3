"""Lines in the admin: why one is held, until when, who drives it, and what waits in it."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from delivery.admin.read_only import COUNTED_AT_MOST, SHOWN_AT_MOST, ReadOnlyAdmin, link_to, link_to_list
from delivery.models import Delivery, Line, LineEvent
from delivery.models.deliveries import DeliveryQuerySet
from subscriptions.admin.theme import display, table


class HeldFilter(admin.SimpleListFilter):
    """Lines that wait for their endpoint, or those that do not."""

    title = "held"
    parameter_name = "held"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the choices."""
        return [("yes", "Held"), ("no", "Not held")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Line]) -> QuerySet[Line]:  # noqa: ARG002
        """Return the lines of the choice."""
        return queryset if self.value() is None else queryset.filter(held_since__isnull=self.value() == "no")


@admin.register(Line)
class LineAdmin(ReadOnlyAdmin[Line]):
    """Ordered work of one subscriber."""

    list_display = (
        "subscriber",
        "lane",
        "state",
        "held_since",
        "held_reason",
        "due_at",
        "last_sequence",
        "lease_until",
    )
    list_filter = (HeldFilter,)
    list_select_related = ("subscriber",)
    ordering = ("subscriber__name", "pk")
    search_fields = ("subscriber__name",)
    search_help_text = "A subscriber's name"
    fields = (
        *("subscriber", "lane", "state", "backlog", "oldest_pending", "head_link", "held_since", "held_reason"),
        *("due_at", "failures", "last_sequence", "worker", "lease_until", "epoch", "history", "delivery_list"),
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

    @display(description="state", label={"held": "danger", "driven": "info", "at rest": "success"})
    def state(self, line: Line) -> str:
        """Return whether it waits for its endpoint, is being driven, or has nothing to do just now."""
        if line.held_since:
            return "held"
        return "driven" if line.lease_until else "at rest"

    @display(description="backlog")
    def backlog(self, line: Line) -> str:
        """Return how many deliveries are unfinished, counted no further than needed."""
        found = len(_unfinished(line).values_list("pk", flat=True)[: COUNTED_AT_MOST + 1])
        return f"more than {COUNTED_AT_MOST}" if found > COUNTED_AT_MOST else str(found)

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


def _unfinished(line: Line) -> DeliveryQuerySet:
    """Return the open deliveries of a line, by subscription: that is how the open shelf is indexed."""
    return Delivery.objects.open().filter(subscription__subscriber=line.subscriber_id, line=line)
