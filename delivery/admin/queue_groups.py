"""QUEUE groups in the admin: those that nobody has taken yet, and those of one message or delivery."""

from collections.abc import Iterable
from typing import Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import AutocompleteSelectFilter, display, label, table
from delivery.admin.read_only import (
    MAX_SHOWN,
    ReadOnlyAdmin,
    instant,
    link_to,
    link_to_list,
    status_badge,
    subscription_link,
    yes_or_no,
)
from delivery.models import Delivery, QueueGroup
from delivery.status.queue_status import GroupState, GroupStatus, groups_of, state_of
from delivery.webhook.parts import GROUP_ID_PREFIX

SHOWN_WITH: Final = ("subscription__subscriber", "subscription__event_type")
COLOURS: Final = {
    GroupState.WAITING: "info",
    GroupState.IN_FLIGHT: "info",
    GroupState.DEFERRED: "warning",
    GroupState.HELD: "danger",
    GroupState.INACTIVE: "warning",
    GroupState.TAKEN: "success",
    GroupState.ENDED: "danger",
}


@admin.register(QueueGroup)
class QueueGroupAdmin(ReadOnlyAdmin[QueueGroup]):
    """Messages that wait for one of a group of endpoints to take them."""

    list_display = ("id", "line", "message_link", "state", "attempts", "cycles", "next_try", "created_at")
    list_filter = (("line", AutocompleteSelectFilter),)
    list_select_related = ("line__subscriber",)
    fields = (
        *("id", "line", "message_link", "state", "attempts", "cycles", "is_uncertain", "next_try", "created_at"),
        "deliveries",
    )
    readonly_fields = fields
    search_help_text = f"An id, with or without {GROUP_ID_PREFIX}"

    @display(description="message")
    def message_link(self, group: QueueGroup) -> SafeString | str:
        """Return a link to the message, without loading its body."""
        return link_to("delivery_message", group.message_id, group.message_id)

    @display(description="state", label=COLOURS)
    def state(self, group: QueueGroup) -> str:
        """Return what it waits for; whether a request is under way its page says."""
        return str(state_of(group))

    @display(description="next try")
    def next_try(self, group: QueueGroup) -> str:
        """Return when its endpoints are tried again, if all of them were in vain."""
        return instant(group.due_at if state_of(group) == GroupState.DEFERRED else None)

    @display(description="uncertain")
    def is_uncertain(self, group: QueueGroup) -> str:
        """Return whether some endpoint may have done it already."""
        return yes_or_no(group.uncertain)

    @display(description="deliveries")
    def deliveries(self, group: QueueGroup) -> SafeString | str:
        """Return its deliveries, of which one takes the message."""
        return mates_table(group.message_id, group.pk)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[QueueGroup], search_term: str
    ) -> tuple[QuerySet[QueueGroup], bool]:
        """Return the group of that id, as it stands here or as its endpoints receive it."""
        return super().get_search_results(request, queryset, search_term.strip().removeprefix(GROUP_ID_PREFIX))


def group_link(group_id: int | None) -> SafeString | str:
    """Return a link to the deliveries of a group, which is itself gone once it has ended; a dash for none."""
    name = f"{GROUP_ID_PREFIX}{group_id}"
    return link_to_list("delivery_delivery", name, q=name) if group_id else "-"


def mates_table(message_id: int | None, group_id: int | None) -> SafeString | str:
    """Return the deliveries of one group of a message; a dash where there is none."""
    if group_id is None:
        return "-"
    found = Delivery.objects.filter(message=message_id, group=group_id).select_related(*SHOWN_WITH)
    rows = [
        [
            link_to("delivery_delivery", one.pk, one.pk),
            subscription_link(one.subscription),
            status_badge(one.status),
            one.attempts,
        ]
        for one in found.oldest_first()[:MAX_SHOWN]
    ]
    return table([f"delivery of {GROUP_ID_PREFIX}{group_id}", "subscription", "status", "attempts"], rows)


def groups_table(deliveries: Iterable[Delivery]) -> SafeString | str:
    """Return the groups of a message's deliveries, and which endpoint took it in each; a dash for none."""
    headers = ["group", "state", "taken by", "of", "requests", "cycles in vain", "next try"]
    rows = [_row(one) for one in groups_of(deliveries)]
    return table(headers, rows) if rows else "-"


def _row(group: GroupStatus) -> list[object]:
    return [
        group_link(group.id),
        label(group.state, COLOURS[group.state]),
        subscription_link(group.taken_by.subscription if group.taken_by else None),
        len(group.deliveries),
        group.attempts,
        "-" if group.cycles is None else group.cycles,
        instant(group.next_try_at),
    ]
