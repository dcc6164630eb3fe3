"""How QUEUE work stands: of each sender, and of each group of a message."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models.enums import TextChoices

from broker_project.core.db import rows
from delivery.models import UNTIL_ACTIVE, UNTIL_RELEASED, Delivery, QueueGroup
from delivery.status.line_status import SENDERS, LineStatus, line_statuses
from delivery.statuses import DeliveryStatus


class GroupState(TextChoices):
    """What a group is doing."""

    WAITING = "WAITING"
    """Its endpoints have not all been tried yet."""

    IN_FLIGHT = "IN_FLIGHT"
    """One of its endpoints is being asked."""

    DEFERRED = "DEFERRED"
    """None of its endpoints took it; they are tried again (contract 6.5)."""

    HELD = "HELD"
    """Its filter failed; it waits for somebody to release it (contract 3.6)."""

    INACTIVE = "INACTIVE"
    """None of those that have not refused it is active: it is kept (contract 1.7)."""

    TAKEN = "TAKEN"
    """One of its endpoints took it (contract 6.4)."""

    ENDED = "ENDED"
    """It has ended and nobody took it: refused by all, or cancelled (contract 6.5)."""


@dataclass(frozen=True, slots=True)
class SenderStatus:
    """How a QUEUE sender stands; what waits in it are groups."""

    standing: LineStatus
    sender: int
    line_id: int
    queue: str
    """Its Celery queue."""
    worker: str
    lease_until: datetime | None
    oldest_since: datetime | None
    """Since when the oldest waits, of those counted that could be sent."""
    in_flight: int
    """Requests that are under way."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How one group of a message stands."""

    id: int
    state: GroupState
    deliveries: list[Delivery]
    taken_by: Delivery | None
    """The delivery whose endpoint took it."""
    cycles: int | None
    """How often all its endpoints were tried in vain; None once it has ended."""
    next_try_at: datetime | None

    @property
    def delivery_ids(self) -> list[int]:
        """Of every subscription that is in it."""
        return [one.pk for one in self.deliveries]

    @property
    def attempts(self) -> int:
        """How many requests it has had."""
        return sum(one.attempts for one in self.deliveries)


def senders() -> list[SenderStatus]:
    """Return how the senders stand that have ever got something, in their order."""
    found = rows(SENDERS)
    standings = line_statuses([line_id for _, line_id, *_ in found])
    return [SenderStatus(standings[columns[1]], *columns) for columns in found]


def groups_of(deliveries: Iterable[Delivery]) -> list[GroupStatus]:
    """Return how the groups stand that these deliveries are in, all of one message."""
    by_group: dict[int, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        if delivery.group_id is not None:
            by_group[delivery.group_id].append(delivery)
    waiting = QueueGroup.objects.in_bulk(list(by_group))
    return [_standing(group_id, waiting.get(group_id), its) for group_id, its in sorted(by_group.items())]


def _standing(group_id: int, group: QueueGroup | None, deliveries: list[Delivery]) -> GroupStatus:
    state = state_of(group, {one.status for one in deliveries})
    taken_by = next((one for one in deliveries if one.status == DeliveryStatus.DELIVERED), None)
    next_try_at = group.due_at if group and state == GroupState.DEFERRED else None
    return GroupStatus(group_id, state, deliveries, taken_by, group.cycles if group else None, next_try_at)


def state_of(group: QueueGroup | None, statuses: Collection[str] = ()) -> GroupState:
    """Return what a group is doing whose deliveries, as far as they are known, stand so; None: it has ended."""
    if DeliveryStatus.DELIVERED in statuses:
        return GroupState.TAKEN
    if group is None:
        return GroupState.ENDED
    if DeliveryStatus.IN_FLIGHT in statuses:
        return GroupState.IN_FLIGHT
    by_due = {None: GroupState.WAITING, UNTIL_RELEASED: GroupState.HELD, UNTIL_ACTIVE: GroupState.INACTIVE}
    return by_due.get(group.due_at, GroupState.DEFERRED)
