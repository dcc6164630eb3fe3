"""Deliveries, their attempts, and dead letters: a subscriber's own, or all (contract 5.3)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api import fields
from broker_project.core.api.pagination import Order, Page, Search, page_of
from broker_project.core.api.records import Records, operation
from delivery.api.searches import SEARCHED, SearchQuery, found_by, searched_deliveries
from delivery.models import OPEN_SHELF, Attempt, Delivery
from delivery.status import delivery_search
from delivery.status.delivery_search import Finder
from delivery.status.line_status import MAX_COUNTED
from delivery.status.sent_requests import SentRequest
from delivery.status.timeline import TOLD_WITH, Exchange, exchange_of
from delivery.statuses import GROUP_ID_PREFIX, MESSAGE_ID_PREFIX, DeliveryStatus
from subscriptions.api.permissions import MayReceive, key_of, records_of
from subscriptions.models import ApiKey, EventType, Scope, Subscription

ATTEMPTS_SHOWN: Final = 200
NO_DELIVERY: Final = "Messages to an unknown destination have no delivery: see messages?outcome=DEAD_LETTERED."


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """One request and its answer."""

    meaning = serializers.CharField(
        allow_null=True,
        help_text="What the subscription's retry policy did: hold, deferred, retry_lane, suspend or end. Null: under"
        " TeamForge, where the status says it.",
    )
    manual = serializers.BooleanField(
        source="is_by_hand", help_text="Whether it is the first attempt after a resubmit."
    )
    answer_headers = fields.DecodedField("latin-1", help_text="The status line and headers.")
    answer_excerpt = fields.DecodedField(errors="replace", help_text="The beginning of the body.")

    class Meta:
        model = Attempt
        fields = (
            *("number", "started_at", "duration_ms", "status_code", "error", "meaning", "manual"),
            *("answer_headers", "answer_excerpt"),
        )


class StatusField(serializers.ChoiceField):
    """The status of a delivery at this moment."""

    def __init__(self) -> None:
        super().__init__(choices=DeliveryStatus.choices, read_only=True)

    def get_attribute(self, instance: Delivery) -> str:
        """Return its status; PENDING if it was fetched from a mailbox and has timed out."""
        return instance.status_at(timezone.now())


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """One message for one subscription, and its status."""

    status = StatusField()
    subscriber = fields.NullableText(
        source="subscription.subscriber.name",
        help_text="Null: its subscription has been deleted, or it is the reply to a callback.",
    )
    due_at = fields.NullableTime(
        source="next_try_at", help_text="When it is sent next. Null: as soon as its line gets there, or finished."
    )
    fetches = serializers.IntegerField(help_text="How often it was fetched from a mailbox.")
    fetched_until = fields.NullableTime(
        help_text="When its fetch from a mailbox times out and it is available again. Null: it is not fetched."
    )
    lane = fields.NullableText(
        source="line.lane", help_text="The kind of its line: main, retry (retried apart from others), queue, callback."
    )

    class Meta:
        model = Delivery
        fields: tuple[str, ...] = (
            *("id", "message_id", "subscription_id", "subscriber", "group_id", "status", "reason", "attempts"),
            *("fetches", "fetched_until", "sequence", "lane", "due_at", "not_before", "expires_at"),
            *("resubmit_of", "replay_id", "created_at", "finished_at"),
        )


class HistoryMixin(serializers.Serializer[Any]):
    """The attempts of a delivery."""

    history = serializers.SerializerMethodField(help_text=f"The newest {ATTEMPTS_SHOWN} attempts, in their order.")

    @extend_schema_field(AttemptSerializer(many=True))
    def get_history(self, delivery: Delivery) -> Any:
        """Return its attempts."""
        newest = delivery.attempt_set.order_by("-id")[:ATTEMPTS_SHOWN]  # and each knows its delivery
        return AttemptSerializer([*newest][::-1], many=True).data


class WholeDeliverySerializer(HistoryMixin, DeliverySerializer):
    """A delivery with its attempts."""

    class Meta(DeliverySerializer.Meta):
        fields = (*DeliverySerializer.Meta.fields, "history")


class RequestAsSentSerializer(serializers.Serializer[SentRequest]):
    """A request as it was sent; signatures, values of configured headers and other credentials are masked."""

    method = serializers.CharField()
    url = serializers.CharField()
    headers = serializers.ListField(
        child=serializers.ListField(child=serializers.CharField(allow_blank=True)),
        help_text="Names and values, in their order.",
    )
    body = serializers.CharField(source="body_text", help_text="As text, its first 64 KiB.")
    size = serializers.IntegerField(help_text="Bytes of the whole body.")
    curl = serializers.CharField(help_text="The command that sends it, once the masked values are put in.")


class ExchangeSerializer(serializers.Serializer[Exchange]):
    """An attempt: its request as it was sent, its answer, and what followed."""

    attempt = AttemptSerializer()
    request = RequestAsSentSerializer(allow_null=True, help_text="Null: its message or its subscription is gone.")
    decision = serializers.CharField(help_text="What followed, and by which rule.")


class DeliveryQuery(SearchQuery):
    """The filters of the list of deliveries."""

    status = fields.MultipleValuesField(DeliveryStatus.choices)
    subscriber = fields.TextField(source="subscription__subscriber__name", help_text="A subscriber's name.")
    subscription = fields.QueryIdField(source="subscription_id")
    message = fields.QueryIdField(prefix=MESSAGE_ID_PREFIX, source="message_id", help_text="With msg_ or without.")
    group = fields.QueryIdField(prefix=GROUP_ID_PREFIX, help_text="A QUEUE group's id, with grp_ or without.")


deliveries_for = records_of(
    Delivery.objects.select_related("subscription__subscriber", "hold", "group", "line"),
    "subscription__subscriber",
    "subscriber_id",
)


def _subscription_ids(key: ApiKey, event_type: EventType | None = None, **columns: Any) -> list[int] | None:
    """Return the subscriptions whose deliveries a key asks for, by those columns that are not None; None: all."""
    wanted = {column: value for column, value in columns.items() if value is not None}
    if key.subscriber_id:
        wanted["subscriber"] = key.subscriber_id
    if not wanted and event_type is None:
        return None
    reached = Subscription.objects.reached_by(event_type) if event_type else Subscription.objects.all()
    return [*reached.filter(**wanted).values_list("pk", flat=True)]


class Deliveries(Records[Delivery]):
    """Deliveries: management sees all, a subscriber its own."""

    permission_classes = [MayReceive]
    needs = {"get": Scope.READ}
    serializer_class = DeliverySerializer
    serializer_classes = {"retrieve": WholeDeliverySerializer}
    filters = DeliveryQuery
    order = Order("deliveries", descending=True)
    visible_to = staticmethod(deliveries_for)

    def filtered(self, rows: QuerySet[Delivery], query: Mapping[str, Any]) -> QuerySet[Delivery]:
        """Return the rows with the filters' values."""
        columns = {name: value for name, value in query.items() if name not in {*SEARCHED, "event_type"}}
        statuses, group = columns.pop("status", ()), columns.pop("group", None)
        rows = super().filtered(delivery_search.in_status(rows, *statuses), columns)
        return rows if group is None else delivery_search.in_group(rows, group)

    def page(self, query: dict[str, Any]) -> Page[Delivery]:
        """Return the page that the query asks for; pages of some subscriptions are found one subscription at a time."""
        rows, find = self.filtered(self.get_queryset(), query), self._find(query)
        if query.keys() & {*SEARCHED, "event_type"}:
            return searched_deliveries(rows, self.order, query, find)
        return page_of(rows, self.order, query, Search(found_by(find)) if find else None)

    def _find(self, query: dict[str, Any]) -> Finder | None:
        """Return what finds the ids of a page; None: the database does, by an index."""
        if query.keys() & {"message_id", "group"}:
            return None
        ids = _subscription_ids(
            key_of(self.request),
            subscriber__name=query.get("subscription__subscriber__name"),
            pk=query.get("subscription_id"),
        )
        return delivery_search.finder_of(ids, query.get("status", ()))


@operation("get", Scope.READ, MayReceive, responses=ExchangeSerializer)
def read_attempt(request: Request, id: int, number: int) -> Response:
    """Read an attempt of a delivery: its request as it was sent, its answer, and what followed."""
    delivery = get_object_or_404(deliveries_for(key_of(request)).select_related(*TOLD_WITH), pk=id)
    attempt = get_object_or_404(delivery.attempt_set.all(), number=number)
    return Response(ExchangeSerializer(exchange_of(delivery, attempt)).data)


class DeadLetterQuery(SearchQuery):
    """The filters of the list of dead letters."""

    reason = fields.MultipleValuesField(
        [(reason, reason) for reason in delivery_search.REASONS],
        help_text="How they ended.",
        error_messages={"invalid_choice": f"Give one of {', '.join(delivery_search.REASONS)}. {NO_DELIVERY}"},
    )
    subscriber = fields.TextField(help_text="A subscriber's name.")
    event_type = fields.TextField(help_text="An event type's name; also finds deliveries by patterns.")


class DeadLetters(Records[Delivery]):
    """Deliveries that ended without success, and are not sent again unless someone resubmits them."""

    permission_classes = [MayReceive]
    needs = {"get": Scope.READ}
    serializer_class = DeliverySerializer
    filters = DeadLetterQuery
    order = Order("dead letters", descending=True)
    visible_to = staticmethod(deliveries_for)

    def page(self, query: dict[str, Any]) -> Page[Delivery]:
        """Return the page that the query asks for, found reason by reason."""
        reasons = query.get("reason", delivery_search.REASONS)
        rows = self.get_queryset().filter(closed_on__lt=OPEN_SHELF)
        event_type = EventType.objects.filter(name=query.get("event_type", "")).first()
        if "event_type" in query and event_type is None:
            return page_of(rows.none(), self.order, query)
        ids = _subscription_ids(key_of(self.request), event_type, subscriber__name=query.get("subscriber"))
        event_type_id = event_type.pk if event_type else None
        find = partial(delivery_search.dead_letters, reasons, ids, event_type_id=event_type_id)
        if query.keys() & {*SEARCHED}:
            rows = rows.filter(status__in=reasons)
            rows = rows if ids is None else rows.filter(subscription_id__in=ids)
            return searched_deliveries(rows, self.order, query, find)
        return page_of(rows, self.order, query, Search(found_by(find)))


@operation(
    "get",
    Scope.READ,
    MayReceive,
    responses=OpenApiResponse(
        {"type": "object", "additionalProperties": {"type": "integer"}},
        f"By how they ended, each counted to {MAX_COUNTED}. DEAD_LETTERED: messages to an unknown destination.",
    ),
)
def count_dead_letters(request: Request) -> Response:
    """Count dead letters by how they ended; all for management, its own for a subscriber."""
    return Response(delivery_search.counts_of(_subscription_ids(key_of(request))))
