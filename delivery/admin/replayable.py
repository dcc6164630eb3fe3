"""Lists of deliveries: found along an index, with a way to replay what they show."""

from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse

from broker_project.core.admin.model_admin import action, column
from delivery.admin.attempts import CALLBACK_OF_REPLY, addressee_of, events_of
from delivery.admin.read_only import ReadOnlyAdmin, id_in
from delivery.models import Delivery, Lane, Line
from delivery.replay.eligibility import REPLAYABLE
from delivery.status.delivery_search import deliveries_of, in_flight, waiting_in_retry_line
from delivery.status.line_status import MAX_COUNTED
from delivery.statuses import FINAL, DeliveryStatus
from delivery.webhook.request import WEBHOOK_ID_PREFIX
from subscriptions.models import Subscription

Listed = TypeVar("Listed", bound=Delivery)

STATUS_PARAMETERS: Final = ("status__exact", "reason")
"""The filters that narrow a list to some statuses."""


def newest_deliveries(asked: QueryDict) -> list[int] | None:
    """Return the newest of the asked subscription or line, read along an index, as many as a list shows.

    None if a delivery or message is asked for, or no subscription or line with a subscriber; what is in flight is found
    without them.
    """
    if asked.get("q", "").strip().removeprefix(WEBHOOK_ID_PREFIX) or asked.get("message__id"):
        return None
    status = asked.get("status__exact")
    subscription_id = id_in(asked, "subscription__id__exact")
    line = Line.objects.filter(pk=id_in(asked, "line__id__exact") or 0).first()
    wanted = [subscription_id] if subscription_id else []
    if not wanted and line and line.subscriber_id is not None:
        wanted = [*Subscription.objects.filter(subscriber=line.subscriber_id).values_list("pk", flat=True)]
    if status == DeliveryStatus.IN_FLIGHT:
        return in_flight(wanted or None, key=None, downwards=True, limit=MAX_COUNTED)
    if not wanted:
        return None
    if line and line.lane == Lane.RETRY and status not in FINAL:
        return waiting_in_retry_line(line.pk, wanted, limit=MAX_COUNTED)
    return deliveries_of(wanted, status, key=None, downwards=True, limit=MAX_COUNTED)


class ReplayableAdmin(ReadOnlyAdmin[Listed]):
    """Lists of deliveries, with a button that leads to the form of replays."""

    actions_list: ClassVar[tuple[str, ...]] = ("replay_these",)
    list_select_related: ClassVar[tuple[str, ...]] = (
        *("subscription__subscriber", "subscription__event_type", "line"),
    )
    prefetched = (CALLBACK_OF_REPLY,)

    subscriber = column("subscriber", addressee_of)
    event_type = column("event type", events_of)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list; its buttons pass on how it is narrowed."""
        answer: HttpResponse = super().changelist_view(request, extra_context)
        for offered in (getattr(answer, "context_data", None) or {}).get("actions_list", ()):
            offered["path"] += f"?{request.GET.urlencode()}"
        return answer

    @action(description="Replay these", permissions=["replay"], icon="replay")
    def replay_these(self, request: HttpRequest) -> HttpResponse:
        """Lead to the form of replays, filled in with what the list is narrowed to."""
        asked = request.GET
        wanted: dict[str, object] = {}
        if subscription_id := id_in(asked, "subscription__id__exact"):
            wanted["subscription"] = subscription_id
        elif line := Line.objects.filter(pk=id_in(asked, "line__id__exact") or 0, subscriber__isnull=False).first():
            wanted["subscriber"] = line.subscriber_id
        statuses = {asked.get(name) for name in STATUS_PARAMETERS} & {*map(str, REPLAYABLE)}
        return HttpResponseRedirect(replay_address(**wanted, **({"statuses": statuses.pop()} if statuses else {})))


def replay_address(**wanted: object) -> str:
    """Return the address of the form of replays, filled in so."""
    return f"{reverse('admin:delivery_replay_new_replay')}?{urlencode(wanted)}"
