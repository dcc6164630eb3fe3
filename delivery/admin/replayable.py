"""Lists of deliveries: found along an index, with a way to replay what they show."""

from functools import partial
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse

from broker_project.core.admin.lists import Candidates, OfContents, time_filter
from broker_project.core.admin.model_admin import AutocompleteSelectFilter, action, column
from broker_project.core.api.fields import MAX_ID
from broker_project.core.api.pagination import ids_along
from delivery.admin.attempts import CALLBACK_OF_REPLY, addressee_of, events_of
from delivery.admin.read_only import ReadOnlyAdmin, id_in
from delivery.admin.search import of_contents, with_key
from delivery.api.searches import found_by
from delivery.models import Delivery, Lane, Line
from delivery.replay.eligibility import REPLAYABLE
from delivery.status.delivery_search import finder_of, in_retry_line
from delivery.statuses import FINAL, DeliveryStatus
from subscriptions.models import Subscription

Listed = TypeVar("Listed", bound=Delivery)

OF_SUBSCRIBER: Final = "subscription__subscriber__id__exact"
OF_EVENT_TYPE: Final = "message__event_type__id__exact"
OF_MESSAGE_AND_SUBSCRIPTION: Final = (
    ("subscription__subscriber", AutocompleteSelectFilter),
    ("message__event_type", AutocompleteSelectFilter),
    ("message__publisher", AutocompleteSelectFilter),
    ("subscription", AutocompleteSelectFilter),
)
"""The filters of all lists of deliveries."""

NOT_OF_REPLAYS: Final = {
    "q": "id",
    "message__id": "message",
    "message__publisher__id__exact": "publisher",
    **{name: name.replace("_", " ") for name in ("header", "filter", "idempotency_key")},
}
"""What narrows lists and no replay, in words."""


def subscriptions_in(asked: QueryDict) -> list[int] | None:
    """Return the subscriptions whose deliveries a list is narrowed to; None: by nothing that an index knows."""
    if subscription_id := id_in(asked, "subscription__id__exact"):
        return [subscription_id]
    subscriber_id = id_in(asked, OF_SUBSCRIBER)
    if subscriber_id is None and (line := _line_in(asked)):
        subscriber_id = line.subscriber_id
    if subscriber_id is None:
        return None
    return [*Subscription.objects.filter(subscriber=subscriber_id).values_list("pk", flat=True)]


def _line_in(asked: QueryDict) -> Line | None:
    return Line.objects.filter(pk=id_in(asked, "line__id__exact") or 0).first()


def statuses_in(asked: QueryDict) -> list[str]:
    """Return the statuses that a list is narrowed to."""
    chosen = [*asked.getlist("status__exact"), *asked.getlist("reason")]
    return [one for one in DeliveryStatus.values if one in chosen]


class ReplayableAdmin(ReadOnlyAdmin[Listed]):
    """Lists of deliveries, with a button that leads to the form of replays."""

    actions_list: ClassVar[tuple[str, ...]] = ("replay_these",)
    list_select_related: ClassVar[tuple[str, ...]] = (
        *("subscription__subscriber", "subscription__event_type", "group", "line"),
    )
    prefetched = (CALLBACK_OF_REPLY,)

    time_column = "created_at"

    subscriber = column("subscriber", addressee_of)
    event_type = column("event type", events_of)

    def candidates(self, asked: QueryDict) -> Candidates | None:
        """Return what finds the deliveries along an index: of messages, of some subscriptions, or in some statuses."""
        if (keyed := with_key(asked)) is not None:
            return ids_along(Delivery.objects.filter(message__in=keyed), 0, MAX_ID)
        if asked.get("message__id"):
            return ids_along(Delivery.objects.filter(message=id_in(asked, "message__id") or 0), 0, MAX_ID)
        subscription_ids, statuses, line = subscriptions_in(asked), statuses_in(asked), _line_in(asked)
        if line and line.lane == Lane.RETRY and subscription_ids and not FINAL & {*statuses}:
            return found_by(partial(in_retry_line, line.pk, subscription_ids))
        find = finder_of(subscription_ids, statuses)
        return found_by(find) if find else None

    def of_contents(self, asked: QueryDict) -> OfContents | None:
        """Return how the filters by the message's contents are applied."""
        return of_contents(asked, lambda ids: dict(Delivery.objects.filter(pk__in=ids).values_list("pk", "message_id")))

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
        line = _line_in(asked)
        try:
            times = time_filter("created_at")(request, dict(asked.lists()), self.model, self)
        except IncorrectLookupParameters:
            return HttpResponseRedirect(f"{self.list_url()}?{asked.urlencode()}")  # which says what is wrong
        wanted: dict[str, object] = {
            "subscription": id_in(asked, "subscription__id__exact"),
            "subscriber": id_in(asked, OF_SUBSCRIBER) or (line and line.subscriber_id),
            "event_type": id_in(asked, OF_EVENT_TYPE),
            "statuses": [one for one in statuses_in(asked) if one in REPLAYABLE],
            "begin": times.begin and f"{times.begin:%Y-%m-%d %H:%M:%S}",
            "end": times.end and f"{times.end:%Y-%m-%d %H:%M:%S}",
        }
        if wanted["subscription"]:
            del wanted["subscriber"]
        left_out = [words for name, words in NOT_OF_REPLAYS.items() if asked.get(name)]
        if statuses_in(asked) and not wanted["statuses"]:
            left_out.append("status")
        if left_out:
            told = f"A replay is not narrowed by {', '.join(left_out)} as the list is: this form selects others too."
            self.message_user(request, told, messages.WARNING)
        return HttpResponseRedirect(replay_address(**{name: value for name, value in wanted.items() if value}))


def replay_address(**wanted: object) -> str:
    """Return the address of the form of replays, filled in so."""
    return f"{reverse('admin:delivery_replay_new_replay')}?{urlencode(wanted, doseq=True)}"
