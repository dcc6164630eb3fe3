"""Lists of deliveries: found along an index, with a way to replay what they show."""

from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse

from broker_project.core.admin.theme import action
from delivery.admin.read_only import ReadOnlyAdmin, is_id
from delivery.models import OPEN_SHELF, UNTIL_RELEASED, Delivery, Lane, Line
from delivery.replay.eligibility import REPLAYABLE
from delivery.status.dead_letters import apart_in, deliveries_of
from delivery.status.in_flight import in_flight
from delivery.status.line_status import MAX_COUNTED
from delivery.statuses import FINAL, UNFINISHED, DeliveryStatus
from delivery.webhook.parts import WEBHOOK_ID_PREFIX
from subscriptions.models import Subscription

Listed = TypeVar("Listed", bound=Delivery)

STATUS: Final = ("status__exact", "reason")
"""What lists are narrowed by to some statuses."""


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
    subscription, line_id = _id_of_search(asked, "subscription__id__exact"), _id_of_search(asked, "line__id__exact")
    line = Line.objects.filter(pk=line_id).first() if line_id else None
    wanted = [subscription] if subscription else _subscriptions_of(line)
    if status == DeliveryStatus.IN_FLIGHT:
        return in_flight(wanted or None, key=None, downwards=True, limit=MAX_COUNTED)
    if not wanted:
        return None
    if line and line.lane == Lane.RETRY and status not in FINAL:
        return apart_in(line.pk, wanted, limit=MAX_COUNTED)
    return deliveries_of(wanted, status, key=None, downwards=True, limit=MAX_COUNTED)


def _subscriptions_of(line: Line | None) -> list[int]:
    if line is None or line.subscriber_id is None:
        return []
    return [*Subscription.objects.filter(subscriber=line.subscriber_id).values_list("pk", flat=True)]


def _id_of_search(asked: QueryDict, name: str) -> int | None:
    text = asked.get(name) or ""
    return int(text) if is_id(text) else None


class ReplayableAdmin(ReadOnlyAdmin[Listed]):
    """Deliveries, of which many can be sent again."""

    actions_list: ClassVar[tuple[str, ...]] = ("replay_these",)

    def has_replay_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list; its actions are told what it is narrowed to."""
        answer: HttpResponse = super().changelist_view(request, extra_context)
        for offered in (getattr(answer, "context_data", None) or {}).get("actions_list", ()):
            offered["path"] += f"?{request.GET.urlencode()}"
        return answer

    @action(description="Replay these", permissions=["replay"], icon="replay")
    def replay_these(self, request: HttpRequest) -> HttpResponse:
        """Lead to the form, with what the list was narrowed to."""
        return HttpResponseRedirect(replay_address(**_wanted(request.GET)))


def replay_address(**wanted: object) -> str:
    """Return the address of the form of replays, filled in so."""
    return f"{reverse('admin:delivery_replay_new_replay')}?{urlencode(wanted)}"


def _wanted(narrowed: QueryDict) -> dict[str, object]:
    found: dict[str, object] = {}
    lines = Line.objects.filter(pk=_id_in(narrowed, "line__id__exact") or 0).values_list("subscriber", flat=True)
    if subscription_id := _id_in(narrowed, "subscription__id__exact"):
        found["subscription"] = subscription_id
    elif subscriber_id := lines.first():
        found["subscriber"] = subscriber_id
    statuses = {narrowed.get(name) for name in STATUS} & {*map(str, REPLAYABLE)}
    return found | ({"statuses": statuses.pop()} if statuses else {})


def _id_in(narrowed: QueryDict, name: str) -> int | None:
    text = narrowed.get(name) or ""
    return int(text) if is_id(text) else None
