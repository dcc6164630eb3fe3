"""Deliveries in the admin: one message on its way to one subscription."""

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin.read_only import SHOWN_AT_MOST, STATUS_COLOURS, instant, is_id, link_to, yes_or_no
from broker_project.core.admin.theme import AutocompleteSelectFilter, display
from delivery.admin.addressees import addressee_of, events_of, keep_callbacks
from delivery.admin.attempts import attempts_table
from delivery.admin.narrowing import narrowed, searched
from delivery.admin.queue_groups import mates_table
from delivery.admin.replayable import ReplayableAdmin
from delivery.admin.resubmitting import ResubmittingAdmin
from delivery.models import Delivery, standing
from delivery.status.dead_letters import in_group
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import GROUP_ID_PREFIX, WEBHOOK_ID_PREFIX


class StatusFilter(admin.SimpleListFilter):
    """Those that stand so."""

    title = "status"
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the choices."""
        return [(value, label) for value, label in DeliveryStatus.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> QuerySet[Delivery]:  # noqa: ARG002
        """Return those of the choice."""
        status = self.value()
        return queryset.filter(standing(status)) if status else queryset


@admin.register(Delivery)
class DeliveryAdmin(ReplayableAdmin[Delivery], ResubmittingAdmin):
    """Where each delivery stands."""

    list_display = (
        "id",
        "status_label",
        "subscriber",
        "event_type",
        "sequence",
        "attempts",
        "reason",
        "next_try",
        "created_at",
        "finished_at",
    )
    list_filter = (
        StatusFilter,
        ("subscription", AutocompleteSelectFilter),
        ("line", AutocompleteSelectFilter),
    )
    list_select_related = ("subscription__subscriber", "subscription__event_type", "line")
    fields = (
        *("id", "status_label", "message_link", "subscription", "line", "sequence", "attempts", "next_try", "reason"),
        *("fetches", "in_flight_until", "not_before", "expires_at", "repeats", "repeated_as", "replay_link"),
        *("is_uncertain", "is_cancel_requested", "size"),
        *("created_at", "finished_at", "attempt_table", "group_table"),
    )
    readonly_fields = fields
    search_help_text = f"An id, with or without {WEBHOOK_ID_PREFIX}; or a group's with {GROUP_ID_PREFIX}"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Delivery]:
        """Return the rows, narrowed to what a list shows, where the database would not find that along an index."""
        rows: QuerySet[Delivery] = super().get_queryset(request)
        return narrowed(rows, request.GET)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of deliveries, with the callbacks of all replies among them read at once."""
        page = super().get_changelist_instance(request)
        keep_callbacks(page.result_list)
        return page

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Delivery], search_term: str
    ) -> tuple[QuerySet[Delivery], bool]:
        """Return the delivery of that id, as it stands here or as its subscriber received it; or those of a group."""
        term = searched(search_term)
        group_id = term.removeprefix(GROUP_ID_PREFIX)
        if group_id != term and is_id(group_id):
            return in_group(queryset, int(group_id)), False
        return super().get_search_results(request, queryset, term)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow the links of message pages."""
        return lookup == "message__id" or super().lookup_allowed(lookup, value, request)

    @display(description="status", ordering="status", label=STATUS_COLOURS)
    def status_label(self, delivery: Delivery) -> str:
        """Return the status, coloured; PENDING where the time of whoever has fetched it is over."""
        return delivery.status_at(timezone.now())

    @display(description="next try")
    def next_try(self, delivery: Delivery) -> str:
        """Return when it is tried again, if it waits for that and has not ended."""
        return instant(delivery.next_try_at)

    @display(description="in flight until")
    def in_flight_until(self, delivery: Delivery) -> str:
        """Return when the hand-out times out, or has, of what a mailbox's client has."""
        return instant(delivery.fetched_until)

    @display(description="repeats")
    def repeats(self, delivery: Delivery) -> SafeString | str:
        """Return a link to the delivery that was sent again as this one."""
        return link_to("delivery_delivery", delivery.resubmit_of, delivery.resubmit_of)

    @display(description="made again as")
    def repeated_as(self, delivery: Delivery) -> SafeString | str:
        """Return links to what it was sent again as, the first ones first."""
        made = Delivery.objects.filter(resubmit_of=delivery.pk).order_by("pk")[:SHOWN_AT_MOST]
        links = ((link_to("delivery_delivery", pk, pk),) for pk in made.values_list("pk", flat=True))
        return format_html_join(", ", "{}", links) or "-"

    @display(description="made by")
    def replay_link(self, delivery: Delivery) -> SafeString | str:
        """Return a link to the replay or backfill that made it."""
        return link_to("delivery_replay", delivery.replay_id, f"replay {delivery.replay_id}")

    @display(description="uncertain")
    def is_uncertain(self, delivery: Delivery) -> str:
        """Return whether the outcome of an earlier request is unknown."""
        return yes_or_no(delivery.uncertain)

    @display(description="cancel requested")
    def is_cancel_requested(self, delivery: Delivery) -> str:
        """Return whether it ends with the request that is under way."""
        return yes_or_no(delivery.cancel_requested)

    @display(description="subscriber")
    def subscriber(self, delivery: Delivery) -> SafeString | str:
        """Return who gets it."""
        return addressee_of(delivery)

    @display(description="event type")
    def event_type(self, delivery: Delivery) -> str:
        """Return what its subscription is for: an event type, or a pattern; or what a reply answers."""
        return events_of(delivery)

    @display(description="message")
    def message_link(self, delivery: Delivery) -> SafeString | str:
        """Return a link to the message, without loading its body."""
        return link_to("delivery_message", delivery.message_id, delivery.message_id)

    @display(description="group")
    def group_table(self, delivery: Delivery) -> SafeString | str:
        """Return the deliveries of its QUEUE group, of which one takes the message; a dash for none."""
        return mates_table(delivery.message_id, delivery.group_id)

    @display(description="attempts made")
    def attempt_table(self, delivery: Delivery) -> SafeString:
        """Return its attempts, the first ones first."""
        return attempts_table(delivery)
