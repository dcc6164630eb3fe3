"""The status of QUEUE work: of each sender, and of each group of a message."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import Case, QuerySet, When
from django.db.models.enums import TextChoices

from broker_project.core.db import rows
from delivery.models import Delivery, QueueGroup
from delivery.status.line_status import SENDERS, LineStatus, line_statuses
from delivery.statuses import DeliveryStatus, WaitsFor


class GroupState(TextChoices):
    """The state of a group, with the words by which people read it."""

    WAITING = "WAITING"
    """Not all of its endpoints have been tried."""

    IN_FLIGHT = "IN_FLIGHT", "In flight"
    """A request to one of its endpoints is in flight."""

    DEFERRED = "DEFERRED", "Retry scheduled"
    """No endpoint took it; they are tried again (contract 6.5)."""

    DELAYED = "DELAYED"
    """It was published with a delay, and has not been tried (contract 2.13)."""

    HELD = "HELD", "Needs decision"
    """Its filter failed; it waits for its release (contract 3.6)."""

    INACTIVE = "INACTIVE"
    """None of the endpoints that have not refused it is active (contract 1.7)."""

    TAKEN = "TAKEN"
    """An endpoint took it (contract 6.4)."""

    ENDED = "ENDED", "Not taken"
    """It has ended and was not taken: refused by all, or cancelled (contract 6.5)."""


WAITING_STATES: Final[dict[str, GroupState]] = {
    WaitsFor.TURN: GroupState.WAITING,
    WaitsFor.RETRY: GroupState.DEFERRED,
    WaitsFor.START: GroupState.DELAYED,
    WaitsFor.RELEASE: GroupState.HELD,
    WaitsFor.SUBSCRIPTION: GroupState.INACTIVE,
}
"""The state of a group by what it waits for."""


@dataclass(frozen=True, slots=True)
class SenderStatus:
    """The status of a QUEUE sender, whose work is groups."""

    line: LineStatus
    sender: int
    line_id: int
    queue: str
    """Its Celery queue."""
    worker: str
    lease_until: datetime | None
    oldest_since: datetime | None
    """Since when the oldest of those counted that can be sent waits."""
    in_flight: int
    """Requests in flight."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The status of one group of a message."""

    id: int
    state: GroupState
    deliveries: list[Delivery]
    taken_by: Delivery | None
    """The delivery that was DELIVERED."""
    cycles: int | None
    """How often all endpoints were tried; None once it has ended."""
    next_try_at: datetime | None

    @property
    def delivery_ids(self) -> list[int]:
        """Ids of its deliveries."""
        return [one.pk for one in self.deliveries]

    @property
    def attempts(self) -> int:
        """Number of requests."""
        return sum(one.attempts for one in self.deliveries)


def senders() -> list[SenderStatus]:
    """Return the status of the senders that ever had work, in their order."""
    found = rows(SENDERS)
    statuses = line_statuses([line_id for _, line_id, *_ in found])
    return [SenderStatus(statuses[columns[1]], *columns) for columns in found]


def first_of(deliveries: QuerySet[Delivery], limit: int) -> list[Delivery]:
    """Return the first deliveries of a message, at most `limit`; those that took it for their group are among them."""
    has_taken = Case(When(group__isnull=False, status=DeliveryStatus.DELIVERED, then=0), default=1)
    return sorted(deliveries.order_by(has_taken, "pk")[:limit], key=lambda one: one.pk)


def groups_of(deliveries: Iterable[Delivery]) -> list[GroupStatus]:
    """Return the status of the groups of these deliveries, all of one message."""
    by_group: dict[int, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        if delivery.group_id is not None:
            by_group[delivery.group_id].append(delivery)
    waiting = QueueGroup.objects.in_bulk(list(by_group))
    return [_status(group_id, waiting.get(group_id), its) for group_id, its in sorted(by_group.items())]


def _status(group_id: int, group: QueueGroup | None, deliveries: list[Delivery]) -> GroupStatus:
    state = state_of(group, {one.status for one in deliveries})
    taken_by = next((one for one in deliveries if one.status == DeliveryStatus.DELIVERED), None)
    next_try_at = next_try_of(group, state) if group else None
    return GroupStatus(group_id, state, deliveries, taken_by, group.cycles if group else None, next_try_at)


def next_try_of(group: QueueGroup, state: GroupState) -> datetime | None:
    """Return when a group in this state is tried; None unless it waits for that."""
    return group.due_at if state in {GroupState.DEFERRED, GroupState.DELAYED} else None


def state_of(group: QueueGroup | None, statuses: Collection[str] = ()) -> GroupState:
    """Return the state of a group, None if it has ended, by the known statuses of its deliveries."""
    if DeliveryStatus.DELIVERED in statuses:
        return GroupState.TAKEN
    if group is None:
        return GroupState.ENDED
    if DeliveryStatus.IN_FLIGHT in statuses:
        return GroupState.IN_FLIGHT
    return WAITING_STATES[group.waits_for]
