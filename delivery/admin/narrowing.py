"""What a list of deliveries shows, found along an index where its own statement would look through all there are."""

from django.db.models import QuerySet
from django.http import QueryDict

from broker_project.core.admin.read_only import is_id
from delivery.models import OPEN_SHELF, UNTIL_RELEASED, Delivery, Lane, Line
from delivery.status.dead_letters import apart_in, deliveries_of
from delivery.status.in_flight import under_way
from delivery.status.line_status import COUNTED_AT_MOST
from delivery.statuses import FINAL, UNFINISHED, DeliveryStatus
from delivery.webhook.parts import WEBHOOK_ID_PREFIX
from subscriptions.models import Subscription


def narrowed(rows: QuerySet[Delivery], asked: QueryDict) -> QuerySet[Delivery]:
    """Return of `rows` at least those that a list is asked for, as many as are shown; its own filters do the rest."""
    status = asked.get("status__exact")
    if status == DeliveryStatus.HELD:
        rows = rows.filter(due_at=UNTIL_RELEASED)
    if not _is_looked_up(asked) and (newest := _newest(asked, status)) is not None:
        return rows.filter(pk__in=newest)
    if status in FINAL:
        return rows.filter(closed_on__lt=OPEN_SHELF)
    return rows.filter(closed_on=OPEN_SHELF) if status in UNFINISHED else rows


def searched(term: str) -> str:
    """Return a search term without what its subscriber received an id with."""
    return term.strip().removeprefix(WEBHOOK_ID_PREFIX)


def _is_looked_up(asked: QueryDict) -> bool:
    """Tell whether an id is asked for, which the database finds among whatever there is."""
    return bool(searched(asked.get("q", "")) or asked.get("message__id"))


def _newest(asked: QueryDict, status: str | None) -> list[int] | None:
    """Return the newest of the subscription or line that is asked for; None where none is, or it has no subscriber.

    What is under way is found in any case.
    """
    subscription, line_id = _id_in(asked, "subscription__id__exact"), _id_in(asked, "line__id__exact")
    line = Line.objects.filter(pk=line_id).first() if line_id else None
    wanted = [subscription] if subscription else _subscriptions_of(line)
    if status == DeliveryStatus.IN_FLIGHT:
        return under_way(wanted or None, key=None, downwards=True, limit=COUNTED_AT_MOST)
    if not wanted:
        return None
    if line and line.lane == Lane.RETRY and status not in FINAL:
        return apart_in(line.pk, wanted, limit=COUNTED_AT_MOST)
    return deliveries_of(wanted, status, key=None, downwards=True, limit=COUNTED_AT_MOST)


def _subscriptions_of(line: Line | None) -> list[int]:
    if line is None or line.subscriber_id is None:
        return []
    return [*Subscription.objects.filter(subscriber=line.subscriber_id).values_list("pk", flat=True)]


def _id_in(asked: QueryDict, name: str) -> int | None:
    text = asked.get(name) or ""
    return int(text) if is_id(text) else None
