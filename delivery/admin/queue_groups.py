"""QUEUE groups in the admin: the waiting ones, and those of one message or delivery."""

from collections.abc import Iterable, Sequence
from typing import Final

from django.contrib import admin
from django.utils import timezone
from django.utils.safestring import SafeString

from broker_project.core.admin.model_admin import AutocompleteSelectFilter, column, state_column
from broker_project.core.admin.theme import badge, copyable, relative, table, table_or_dash
from delivery.admin.read_only import (
    MAX_SHOWN,
    STATUS_COLOURS,
    ReadOnlyAdmin,
    link_to,
    link_to_list,
    subscription_link,
    yes_or_no,
)
from delivery.models import Delivery, QueueGroup
from delivery.status.queue_status import GroupState, first_of, groups_of, next_try_of, state_of
from delivery.statuses import GROUP_ID_PREFIX, DeliveryStatus

SHOWN_WITH: Final = ("subscription__subscriber", "subscription__event_type", "group")
GROUP_COLOURS: Final = {
    GroupState.WAITING: "info",
    GroupState.IN_FLIGHT: "info",
    GroupState.DEFERRED: "warning",
    GroupState.DELAYED: "info",
    GroupState.HELD: "danger",
    GroupState.INACTIVE: "warning",
    GroupState.TAKEN: "success",
    GroupState.ENDED: "danger",
}


@admin.register(QueueGroup)
class QueueGroupAdmin(ReadOnlyAdmin[QueueGroup]):
    """Messages that wait until one of a group of endpoints takes them; a group's page shows requests in flight."""

    when_empty = "Nothing waits: every QUEUE message has been taken. There is nothing to do."
    list_display = ("id", "line", "message_link", "state", "attempts", "cycles", "next_try", "created_at")
    list_filter = (("line", AutocompleteSelectFilter),)
    list_select_related = ("line__subscriber",)
    fields = (*list_display[:-2], "is_uncertain", "next_try", "created_at", "deliveries")

    message_link = column("message", lambda group: link_to("delivery_message", group.message_id))
    state = state_column("state", state_of, GROUP_COLOURS)
    next_try = column("next try", lambda group: relative(next_try_of(group, state_of(group))))
    is_uncertain = column("uncertain", lambda group: yes_or_no(group.uncertain))
    deliveries = column("deliveries", lambda group: group_deliveries_table(group.message_id, group.pk))


def group_link(group_id: int | None) -> SafeString | str:
    """Return a link to the deliveries of a group, whose own row is gone once it has ended; a dash for None."""
    name = f"{GROUP_ID_PREFIX}{group_id}"
    return link_to_list("delivery_delivery", copyable(name, "id"), q=name) if group_id else "-"


def group_deliveries_table(message_id: int | None, group_id: int | None) -> SafeString | str:
    """Return the deliveries of one group of a message, of which one takes the message; a dash without a group."""
    if group_id is None:
        return "-"
    found = Delivery.objects.filter(message=message_id, group=group_id).select_related(*SHOWN_WITH)
    return deliveries_table(first_of(found, MAX_SHOWN))


def deliveries_table(deliveries: Iterable[Delivery], more: Iterable[Sequence[object]] = ()) -> SafeString:
    """Return the deliveries of a message or a group, and more rows; without a column of groups if there are none."""
    shown = [*deliveries]
    has_groups = any(one.group_id for one in shown)
    rows = [
        [
            link_to("delivery_delivery", one.pk),
            subscription_link(one.subscription),
            *([group_link(one.group_id)] if has_groups else ()),
            badge(DeliveryStatus(one.status_at(timezone.now())), STATUS_COLOURS),
            one.reason or "-",
            one.sequence or "-",
            one.attempts,
            relative(one.finished_at),
        ]
        for one in shown
    ]
    headers = ["delivery", "subscription", *(["group"] if has_groups else ()), "status", "reason", "number", "attempts"]
    return table([*headers, "finished"], [*rows, *more])


def groups_table(deliveries: Iterable[Delivery]) -> SafeString | str:
    """Return the groups of a message's deliveries, and which endpoint took each; a dash without any."""
    rows = [
        [
            group_link(group.id),
            badge(group.state, GROUP_COLOURS),
            subscription_link(group.taken_by.subscription if group.taken_by else None),
            len(group.deliveries),
            group.attempts,
            "-" if group.cycles is None else group.cycles,
            relative(group.next_try_at),
        ]
        for group in groups_of(deliveries)
    ]
    return table_or_dash(["group", "state", "taken by", "of", "requests", "failed cycles", "next try"], rows)
