"""How a line stands, what it has and had, for its list and its page in the admin; whoever owns the line."""

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import table
from delivery.admin.read_only import MAX_SHOWN
from delivery.models import Delivery, Lane, Line, LineEvent
from delivery.models.deliveries import DeliveryQuerySet
from delivery.status.line_status import MAX_COUNTED, LineStatus, held_lines, line_statuses, lines_with_some_apart
from delivery.status.queue_status import SenderStatus, senders
from subscriptions.models import Subscriber

STANDING: Final = "_standing"
"""Where a line that is shown keeps how it stands,"""
SENDER: Final = "_sender"
"""and a QUEUE sender's line what is told of senders only."""


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


class LaneFilter(admin.SimpleListFilter):
    """Lines of a kind; without a choice all but retry lines and those of callbacks in which nothing waits."""

    title = "lane"
    parameter_name = "lane__exact"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the choices."""
        return [*Lane.choices]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Return them as links, the first of which says what it leaves out."""
        everything, *lanes = super().choices(changelist)
        return iter(({**everything, "display": "All but idle retry and callback lines"}, *lanes))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Line]) -> QuerySet[Line]:  # noqa: ARG002
        """Return the lines of the choice."""
        if self.value() is None:
            idle = Q(lane=Lane.RETRY) & ~Q(pk__in=lines_with_some_apart())
            return queryset.exclude(idle | Q(lane=Lane.CALLBACK, head_id=None))
        return queryset.filter(lane=self.value())


def keep_standing(line: Line, standing: LineStatus) -> None:
    """Let a line know how it stands, so that it is not asked for each of its columns."""
    vars(line)[STANDING] = standing


def standing_of(line: Line) -> LineStatus:
    """Return how a line stands: as its list has read it, or read once for its page."""
    if STANDING not in vars(line):
        keep_standing(line, line_statuses([line.pk])[line.pk])
    standing: LineStatus = vars(line)[STANDING]
    return standing


def sender_of(line: Line) -> SenderStatus | None:
    """Return how the QUEUE sender stands whose line this is, read once; None for another line."""
    if SENDER not in vars(line):
        vars(line)[SENDER] = next((one for one in senders() if one.line_id == line.pk), None)
    sender: SenderStatus | None = vars(line)[SENDER]
    return sender


def main_line_of(subscriber: Subscriber) -> int:
    """Return the id of a subscriber's main line, which every one has from the start."""
    return subscriber.lines.get(lane=Lane.MAIN).pk


def sibling_line_of(line: Line) -> Line | None:
    """Return the other line of the same subscriber; None of a line that has none."""
    if line.subscriber_id is None:
        return None
    return Line.objects.select_related("subscriber").exclude(pk=line.pk).get(subscriber=line.subscriber_id)


def counted(number: int, most: int = MAX_COUNTED) -> str:
    """Return a number that is counted no further than `most`."""
    return f"{number} or more" if number == most else str(number)


def oldest_of(line: Line) -> dt.datetime | None:
    """Return since when the oldest waits: a delivery, or a sender's group that can be sent."""
    if sender := sender_of(line):
        return sender.oldest_since
    oldest = _unfinished(line).oldest_first().first()
    return oldest.created_at if oldest else None


def history_of(line: Line) -> SafeString:
    """Return what is worth knowing, the latest first."""
    found = LineEvent.objects.filter(line=line).order_by("-id")[:MAX_SHOWN]
    return table(["at", "what", "number", "why"], [[one.at, one.kind, one.sequence, one.reason] for one in found])


def _unfinished(line: Line) -> DeliveryQuerySet:
    """Return the open deliveries of a line, by subscription: that is how the open shelf is indexed."""
    if line.lane == Lane.CALLBACK:
        return Delivery.objects.open().filter(pk__in=[line.head_id])
    return Delivery.objects.open().filter(subscription__subscriber=line.subscriber_id, line=line)
