"""Lines in the admin: why one is held, until when, which worker runs it, and what waits in it."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from django.contrib import admin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from broker_project.core.admin.lists import choice_filter
from broker_project.core.admin.model_admin import Prefetched, column, state_column
from broker_project.core.admin.theme import relative, table, table_or_dash
from delivery.admin.read_only import MAX_SHOWN, ReadOnlyAdmin, counted, link_to, link_to_list
from delivery.models import Delivery, Hold, Lane, Line, LineEvent, LineEventKind
from delivery.status.line_status import (
    LineHold,
    LineState,
    LineStatus,
    diversions_of,
    held_lines,
    line_statuses,
    retry_lines_with_work,
)
from delivery.status.queue_status import SenderStatus, senders

LINE_COLOURS: Final = {
    LineState.HELD: "danger",
    LineState.SENDING: "info",
    LineState.WAITING: "info",
    LineState.DIVERTED: "warning",
    LineState.DEFERRED: "warning",
    LineState.PAUSED: "warning",
    LineState.AWAITING_RELEASE: "danger",
    LineState.DELAYED: "info",
    LineState.INACTIVE: "warning",
    LineState.IDLE: "success",
}

STATUS: Final = Prefetched[Line, LineStatus]("status", lambda lines: line_statuses([line.pk for line in lines]))
SENDER: Final = Prefetched[Line, SenderStatus | None]("sender", lambda _: {one.line_id: one for one in senders()})
"""None for the lines of subscribers and callbacks."""

HELD_SINCE: Final = Subquery(
    Hold.objects.filter(line=OuterRef("pk")).exclude(reason="").values("since").order_by("since")[:1]
)


def _held_ids() -> list[int]:
    return [one.line_id for one in held_lines()]


HeldFilter: Final = choice_filter(
    "blocked",
    "held",
    {
        "yes": ("Blocked", lambda lines: lines.filter(pk__in=_held_ids())),
        "no": ("Not blocked", lambda lines: lines.exclude(pk__in=_held_ids())),
    },
)


def _count(title: str, read: Callable[[LineStatus], int]) -> Callable[[Any, Any], object]:
    return column(title, lambda line: counted(read(STATUS.of(line))))


def _oldest_since(line: Line) -> str:
    """Return since when the oldest delivery waits, or a sender's oldest group that can be sent.

    Open deliveries are found by subscription, along the index of the open partition.
    """
    if sender := SENDER.of(line):
        return relative(sender.oldest_since)
    if line.lane == Lane.CALLBACK:
        waiting = Delivery.objects.open().filter(pk__in=line.holds.values("delivery_id"))
    else:
        waiting = Delivery.objects.open().filter(subscription__subscriber=line.subscriber_id, line=line)
    oldest = waiting.oldest_first().first()
    return relative(oldest.created_at if oldest else None)


@admin.register(Line)
class LineAdmin(ReadOnlyAdmin[Line]):
    """Ordered work of one owner: a subscriber, a QUEUE sender, a callback."""

    when_empty = "There are no lines yet. Each subscriber has one from its creation on."
    list_display = (
        *("owned_by", "state", "waiting", "deferred", "deferred_due", "awaiting_release"),
        *("hold_since", "hold_reason", "next_try"),
    )
    list_filter = (HeldFilter, "lane")
    list_select_related = ("subscriber",)
    ordering = (HELD_SINCE.asc(nulls_last=True), "subscriber__name", "pk")
    search_fields = ("subscriber__name",)
    search_help_text = (
        "A subscriber's name, or a sender's Celery queue such as queue.0. Retry and callback lines in which nothing"
        " waits are listed by their lane only."
    )
    fields = (
        *("owned_by", "lane", "queue", "retry_line", "main_line", "state", "waiting", "deferred", "deferred_due"),
        *("delayed", "awaiting_release", "oldest_pending", "in_flight", "hold_list", "diversion_list"),
        *("last_sequence", "run_by", "lease_until", "epoch"),
        *("history", "group_list", "delivery_list"),
    )
    prefetched = (STATUS,)

    owned_by = column("owner", lambda line: line.owner, ordering="subscriber__name")
    retry_line = column("retry line", lambda line: _line_link(line, Lane.RETRY))
    main_line = column("main line", lambda line: _line_link(line, Lane.MAIN))
    state = state_column("state", lambda line: STATUS.of(line).state, LINE_COLOURS)
    waiting = _count("waiting", lambda status: status.waiting)
    deferred = _count("to be retried", lambda status: status.deferred)
    deferred_due = column("next retry", lambda line: relative(STATUS.of(line).deferred_due_at))
    delayed = _count("delayed", lambda status: status.delayed)
    awaiting_release = _count("needs decision", lambda status: status.awaiting_release)
    hold_since = column("blocked since", lambda line: relative(hold.since if (hold := STATUS.of(line).hold) else None))
    hold_reason = column("blocked because", lambda line: hold.reason if (hold := STATUS.of(line).hold) else "-")
    next_try = column("next try", lambda line: relative(hold.next_try_at if (hold := STATUS.of(line).hold) else None))
    oldest_pending = column("oldest unfinished", _oldest_since)
    run_by = column("worker", lambda line: line.run_by or "-")
    in_flight = column("in flight", lambda line: sender.in_flight if (sender := SENDER.of(line)) else "-")
    hold_list = column("holds", lambda line: holds_table(STATUS.of(line).holds))
    diversion_list = column(
        "diverted subscriptions",
        lambda line: table_or_dash(
            ["subscription", "diverted since", "next probe"],
            [
                [
                    link_to("subscriptions_subscription", one.subscription_id),
                    relative(one.diverted_since),
                    relative(one.next_probe_at),
                ]
                for one in (diversions_of(line.subscriber_id) if line.subscriber_id else ())
            ],
        ),
    )
    history = column(
        "history",
        lambda line: table(
            ["at", "event", "number", "reason"],
            [
                [relative(one.at), LineEventKind(one.kind).label, one.sequence or "-", one.reason]
                for one in LineEvent.objects.filter(line=line).order_by("-id")[:MAX_SHOWN]
            ],
        ),
    )
    group_list = column(
        "groups",
        lambda line: (
            link_to_list("delivery_queuegroup", "all groups that wait here", line__id__exact=line.pk)
            if line.lane == Lane.QUEUE
            else "-"
        ),
    )
    delivery_list = column(
        "deliveries",
        lambda line: link_to_list(
            "delivery_delivery",
            "all that waits in this line" if line.lane == Lane.RETRY else "all deliveries of this line",
            line__id__exact=line.pk,
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Line]:
        """Return the lines; a list of all lanes leaves out retry and callback lines in which nothing waits."""
        rows: QuerySet[Line] = super().get_queryset(request)
        if request.path != self.list_url() or "lane__exact" in request.GET:
            return rows
        idle = Q(lane=Lane.RETRY) & ~Q(pk__in=retry_lines_with_work())
        return rows.exclude(idle | Q(lane=Lane.CALLBACK, holds=None))

    def search(self, rows: QuerySet[Line], term: str) -> QuerySet[Line]:
        """Return the lines of subscribers whose names contain the term, or of the sender with this queue."""
        return rows.filter(Q(subscriber__name__icontains=term) | Q(lane=Lane.QUEUE, queue=term))


def holds_table(holds: Iterable[LineHold]) -> SafeString | str:
    """Return the deliveries that hold lines; a dash without any."""
    rows = [
        [
            link_to("delivery_delivery", one.delivery_id),
            relative(one.since),
            one.reason,
            relative(one.next_try_at),
            one.failures,
        ]
        for one in holds
    ]
    return table_or_dash(["delivery", "blocked since", "blocked because", "next try", "failures"], rows)


def _line_link(line: Line, lane: Lane) -> SafeString | str:
    """Return a link to the other line of the same subscriber; a dash if `line` is that line or has no subscriber."""
    if line.subscriber_id is None or line.lane == lane:
        return "-"
    other = Line.objects.select_related("subscriber").get(subscriber=line.subscriber_id, lane=lane)
    return link_to("delivery_line", other.pk, other)
