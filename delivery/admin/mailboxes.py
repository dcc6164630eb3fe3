"""Mailboxes in the admin: what waits to be fetched, since when, and what clients have."""

from functools import partial
from typing import Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from broker_project.core.admin.read_only import instant, link_to, link_to_list, yes_or_no
from broker_project.core.admin.theme import STATUS_COLOURS, display
from delivery.admin.emptying import EmptyingAdmin
from delivery.admin.line_work import main_line_of
from delivery.admin.mailbox_work import (
    in_flight_table,
    keep_standings,
    link_to_return,
    so_many,
    standing_of,
    with_mailbox,
)
from delivery.models import Mailbox
from subscriptions.models import DeliveryMode

RETURNABLE: Final = "returnable"
LOOKED_AT: Final = "looked_at"
COUNTS: Final = ("available", "oldest", "in_flight", "waiting", "redelivered", "expired")


@admin.register(Mailbox)
class MailboxAdmin(EmptyingAdmin):
    """What subscribers fetch themselves."""

    list_display = ("name", "status_label", *COUNTS, "is_ordered")
    ordering = ("name",)
    list_per_page = 20
    """Each is counted in the queue, up to thousands."""
    search_fields = ("name",)
    search_help_text = "A subscriber's name"
    fields = (
        *("subscriber_link", "status_label", *COUNTS, "is_ordered", "ack_seconds", "max_redeliveries"),
        *("subscription_list", "delivery_list"),
    )
    readonly_fields = (*fields, RETURNABLE, LOOKED_AT)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Mailbox]:
        """Return those that have something to fetch from."""
        return with_mailbox(super().get_queryset(request))

    def get_fields(self, request: HttpRequest, obj: Mailbox | None = None) -> tuple[str, ...]:  # noqa: ARG002 - Django's
        """Return what its page says; only who may return what is in flight is shown how."""
        return (*self.fields, RETURNABLE if self.has_empty_permission(request) else LOOKED_AT)

    def get_search_results(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        queryset: QuerySet[Mailbox],
        search_term: str,
    ) -> tuple[QuerySet[Mailbox], bool]:
        """Return the mailboxes of subscribers so called."""
        term = search_term.strip()
        return (queryset.filter(name__icontains=term) if term else queryset), False

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of mailboxes, with how they all stand read at once."""
        page = super().get_changelist_instance(request)
        keep_standings(page.result_list)
        return page

    @display(description="subscriber")
    def subscriber_link(self, box: Mailbox) -> SafeString | str:
        """Return a link to whose it is, where it is set up."""
        return link_to("subscriptions_subscriber", box.pk, box)

    @display(description="status", label=STATUS_COLOURS)
    def status_label(self, box: Mailbox) -> str:
        """Return whether its subscriber gets anything."""
        return box.status

    @display(description="available")
    def available(self, box: Mailbox) -> str:
        """Return how many are there for the next who asks, counted no further than needed."""
        return so_many(standing_of(box).available)

    @display(description="oldest")
    def oldest(self, box: Mailbox) -> str:
        """Return when the oldest of these was published."""
        return instant(standing_of(box).oldest_published_at)

    @display(description="in flight")
    def in_flight(self, box: Mailbox) -> str:
        """Return how many clients have and have not answered."""
        return so_many(standing_of(box).in_flight)

    @display(description="waiting")
    def waiting(self, box: Mailbox) -> str:
        """Return how many are HELD, delayed, or of subscriptions that are paused or INACTIVE."""
        return so_many(standing_of(box).waiting)

    @display(description="redelivered")
    def redelivered(self, box: Mailbox) -> str:
        """Return how many of the unfinished were handed out in vain."""
        return so_many(standing_of(box).redelivered)

    @display(description="expired")
    def expired(self, box: Mailbox) -> str:
        """Return how many nobody fetched in time, of what is kept."""
        return so_many(standing_of(box).expired)

    @display(description="ordered")
    def is_ordered(self, box: Mailbox) -> str:
        """Return whether one message is handed out at a time."""
        return yes_or_no(box.mailbox_ordered)

    @display(description="subscriptions")
    def subscription_list(self, box: Mailbox) -> SafeString:
        """Return a link to those that are fetched; paused or INACTIVE ones are so, but not now."""
        pulled = {"subscriber__id__exact": box.pk, "delivery_mode__exact": DeliveryMode.PULL}
        standing = standing_of(box)
        text = f"{standing.subscriptions} PULL, {standing.fetchable_subscriptions} of them can be fetched from now"
        return link_to_list("subscriptions_subscription", text, **pulled)

    @display(description="deliveries")
    def delivery_list(self, box: Mailbox) -> SafeString:
        """Return a link to all deliveries of its subscriber."""
        return link_to_list("delivery_delivery", "its subscriber's deliveries", line__id__exact=main_line_of(box))

    @display(description="fetched, not answered")
    def returnable(self, box: Mailbox) -> SafeString | str:
        """Return what clients have, next to time out first, each with a link to return it."""
        return in_flight_table(box, partial(link_to_return, box))

    @display(description="fetched, not answered")
    def looked_at(self, box: Mailbox) -> SafeString | str:
        """Return the same for whoever may only look."""
        return in_flight_table(box, lambda _: "")
