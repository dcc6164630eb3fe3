"""Replays and backfills over the API (contract 5.8)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import (
    MomentField,
    NameField,
    OneOfField,
    StrictSerializer,
    TruthField,
    WholeNumberField,
)
from broker_project.core.api.pagination import Order, Page, PageQuery
from broker_project.core.api.problems import ProblemType, register
from delivery.api.records import Records
from delivery.models import Replay, ReplayKind, ReplayState
from delivery.replay import backfill_job, replay_job
from delivery.replay.eligibility import REPLAYABLE, RESUBMITTABLE, NotBackfilled, NotInactive, NotNew, StillPaused
from delivery.replay.replay_job import ReplayFinished
from delivery.replay.selection import MAX_PACE, NothingToReplay, Selection
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.resources import Noted, refuse_body
from subscriptions.api.visibility import OwnSubscriberField, OwnSubscriptionField, subscriptions_for
from subscriptions.models import ApiKey, EventType, KeyKind, Scope, Subscriber, Subscription

NAMED: Final[dict[str, type[Subscriber] | type[EventType]]] = {"subscriber": Subscriber, "event_type": EventType}
"""What is stored as an id, and told as a name."""
TOLD: Final = "_told"
"""Where a replay keeps what is told of its selection, once that is known."""


class SelectionSerializer(serializers.Serializer[Any]):
    """Which deliveries, or of a backfill from when on."""

    subscriber = serializers.CharField(allow_null=True, help_text="Its name; null once it is deleted.")
    subscriptions = serializers.ListField(child=serializers.IntegerField(), help_text="Their ids.")
    statuses = serializers.ListField(child=serializers.CharField(), required=False)
    event_type = serializers.CharField(
        required=False, allow_null=True, help_text="Its name; null: of whatever type, or it is deleted."
    )
    to = serializers.DateTimeField(required=False, allow_null=True)
    since = serializers.DateTimeField(required=False, allow_null=True, help_text="Of a backfill.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields, with the one that Python would take for a word of its own."""
        return {**super().get_fields(), "from": serializers.DateTimeField(required=False, allow_null=True)}


def keep_told(replays: Iterable[Replay]) -> None:
    """Let replays know what is told of their selections: two queries for all of them."""
    chosen = [*replays]
    for replay in chosen:
        vars(replay)[TOLD] = {**replay.selection}
    for field, model in NAMED.items():
        asked = [vars(replay)[TOLD] for replay in chosen if field in replay.selection]
        ids = {told[field] for told in asked} - {None}
        names = dict(model._default_manager.filter(pk__in=ids).values_list("pk", "name"))  # noqa: SLF001 - documented
        for told in asked:
            told[field] = names.get(told[field])


def told_of(replay: Replay) -> dict[str, Any]:
    """Return its selection as it is told: as its list has read it, or read for it alone."""
    if TOLD not in vars(replay):
        keep_told([replay])
    told: dict[str, Any] = vars(replay)[TOLD]
    return told


class NewReplay(StrictSerializer):
    """Which deliveries are to be made again, and how fast."""

    subscription = OwnSubscriptionField(required=False)
    subscriber: serializers.SlugRelatedField[Subscriber] = OwnSubscriberField(
        required=False, queryset=Subscriber.objects.all(), help_text="Its name: all its subscriptions."
    )
    event_type: serializers.SlugRelatedField[EventType] = NameField(
        required=False, queryset=EventType.objects.all(), help_text="Only what was published as that."
    )
    statuses = serializers.ListField(
        child=OneOfField(sorted(REPLAYABLE)),
        required=False,
        allow_empty=False,
        help_text=f"Without it: {', '.join(sorted(RESUBMITTABLE))}.",
    )
    to = MomentField(required=False, help_text="Only deliveries that were made before.")
    pace = WholeNumberField(
        required=False, min_value=1, max_value=MAX_PACE, help_text="New deliveries a second at most."
    )
    dry_run = TruthField(default=False, help_text="Only count.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields, with the one that Python would take for a word of its own."""
        begin = MomentField(required=False, help_text="Only deliveries that were made then or later.")
        return {**super().get_fields(), "from": begin}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse both or none of a subscription and a subscriber, and a range that ends before it begins."""
        if "subscription" in attrs and "subscriber" in attrs:
            raise serializers.ValidationError("Give a subscription or a subscriber: one of them.")
        if "subscription" not in attrs and "subscriber" not in attrs:
            raise serializers.ValidationError("Give a subscription or a subscriber.")
        if "from" in attrs and "to" in attrs and attrs["from"] >= attrs["to"]:
            raise serializers.ValidationError({"to": ["This is not after `from`."]})
        return attrs


def selection_of(asked: Mapping[str, Any]) -> Selection:
    """Return which deliveries are asked for; `ValidationError` where none of them could be sent again."""
    one: Subscription | None = asked.get("subscription")
    event_type: EventType | None = asked.get("event_type")
    try:
        return Selection.among(
            [one] if one else asked["subscriber"].subscriptions.all(),
            statuses=asked.get("statuses", ()),
            event_type_id=event_type.pk if event_type else None,
            begin=asked.get("from"),
            end=asked.get("to"),
        )
    except NothingToReplay as nothing:
        raise serializers.ValidationError({"subscription" if one else "subscriber": [str(nothing)]}) from nothing


register({ReplayFinished: ProblemType(409, "finished", "Finished")})


class CountSerializer(serializers.Serializer[Any]):
    """What a replay would be of."""

    count = serializers.IntegerField(
        help_text="Those that cannot be sent are among them, if not those that have been sent again already."
    )
    by_status = serializers.DictField(child=serializers.IntegerField())
    complete = serializers.BooleanField(help_text="Where there is very much, only the oldest is counted: false.")


class ReplaySerializer(serializers.ModelSerializer[Replay]):
    """A replay or backfill, and how far it is."""

    selection = serializers.SerializerMethodField()
    created_by = serializers.SerializerMethodField(
        allow_null=True, help_text="Whose key or login asked for it; null for all but management."
    )

    class Meta:
        model = Replay
        fields = (
            *("id", "kind", "state", "subscription_id", "selection", "pace", "total", "filed", "skipped", "reason"),
            *("created_by", "created_at", "updated_at", "finished_at"),
        )

    @extend_schema_field(SelectionSerializer)
    def get_selection(self, replay: Replay) -> dict[str, Any]:
        """Return what it is of."""
        return told_of(replay)

    def get_created_by(self, replay: Replay) -> str | None:
        """Return who asked for it, to those who know them all."""
        return replay.created_by if key_of(self.context["request"]).kind == KeyKind.MANAGEMENT else None


class ReplayQuery(PageQuery):
    """What the list can be narrowed to."""

    kind = OneOfField(ReplayKind.choices, required=False)
    state = OneOfField(ReplayState.choices, required=False)


def replays_for(key: ApiKey) -> QuerySet[Replay]:
    """Return management all, a subscriber those of its own deliveries."""
    replays = Replay.objects.all()
    return replays if key.kind == KeyKind.MANAGEMENT else replays.filter(selection__subscriber=key.subscriber_id)


class Replays(Noted, Records[Replay]):
    """Jobs that make many deliveries again."""

    permission_classes = [MayReceive]
    needs = {"get": Scope.READ, "post": Scope.OPERATE}
    serializer_class = ReplaySerializer
    query_class = ReplayQuery
    http_method_names = ["get", "head", "post"]
    order = Order("replays", descending=True)

    def visible_to(self, key: ApiKey) -> QuerySet[Replay]:
        """Return what the key can see."""
        return replays_for(key)

    def filtered(self, rows: QuerySet[Replay], query: Mapping[str, Any]) -> QuerySet[Replay]:
        """Return those the query asks for."""
        return rows.filter(**{name: query[name] for name in ("kind", "state") if name in query})

    def page(self, query: dict[str, Any]) -> Page[Replay]:
        """Return a page of replays, with the names of what they all are of read at once."""
        page = super().page(query)
        keep_told(page.rows)
        return page

    @extend_schema(
        request=NewReplay,
        responses={200: OpenApiResponse(CountSerializer, "With `dry_run`."), 202: ReplaySerializer},
    )
    def create(self, request: Request) -> Response:
        """Make many deliveries again, in the background; or count them first."""
        serializer = NewReplay(data=request.data, context=self.get_serializer_context())
        serializer.is_valid(raise_exception=True)
        asked = serializer.validated_data
        selection = selection_of(asked)
        if self.note_dry_run(asked):
            found = replay_job.count(selection)
            return Response({"count": found.total, "by_status": found.by_status, "complete": found.complete})
        one = asked.get("subscription")
        replay = replay_job.begin(
            selection, pace=asked.get("pace"), subscription_id=one and one.pk, created_by=str(key_of(request))
        )
        location = reverse("replay", args=[replay.pk])
        replay.refresh_from_db()
        return Response(self.get_serializer(replay).data, status.HTTP_202_ACCEPTED, headers={"Location": location})


class CancelReplay(Noted):
    """A replay under way."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.OPERATE}

    @extend_schema(operation_id="cancel_replay", request=None, responses=ReplaySerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """End it; what it has made by then stays."""
        visible = replays_for(key_of(request))
        replay = get_object_or_404(visible, pk=id)
        refuse_body(request)
        replay_job.cancel(replay.pk, reason="cancelled over the API")
        return Response(ReplaySerializer(visible.get(pk=id), context={"request": request}).data)


urlpatterns = [
    path("replays", Replays.as_view({"get": "list", "post": "create"})),
    path("replays/<int:id>", Replays.as_view({"get": "retrieve"}), name="replay"),
    path("replays/<int:id>/cancel", CancelReplay.as_view()),
]

register(
    {
        NotBackfilled: ProblemType(400, "not_backfilled", "Not backfilled"),
        NotInactive: ProblemType(409, "not_inactive", "Not inactive"),
        NotNew: ProblemType(409, "not_new", "Not new"),
        StillPaused: ProblemType(409, "still_paused", "Still paused"),
    }
)


class NewBackfill(StrictSerializer):
    """From when on."""

    since = MomentField(required=False, help_text="Only what was published then or later.")
    dry_run = TruthField(default=False, help_text="Only count.")


class MessagesCounted(serializers.Serializer[Any]):
    """What a backfill would look at."""

    count = serializers.IntegerField(help_text="Before any filter.")
    complete = serializers.BooleanField(help_text="Where there is very much, only the oldest is counted: false.")


class BackfillSubscription(Noted):
    """A subscription that is INACTIVE and never had a delivery."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.OPERATE}

    @extend_schema(
        operation_id="backfill_subscription",
        request=NewBackfill,
        responses={200: OpenApiResponse(MessagesCounted, "With `dry_run`."), 202: ReplaySerializer},
    )
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Activate it; send it what is kept of before, and then what is published."""
        related = subscriptions_for(key_of(request)).select_related("event_type", "subscriber")
        subscription = get_object_or_404(related, pk=id)
        serializer = NewBackfill(data=request.data)
        serializer.is_valid(raise_exception=True)
        since = serializer.validated_data.get("since")
        if self.note_dry_run(serializer.validated_data):
            found = backfill_job.count(subscription, since)
            return Response({"count": found.messages, "complete": found.complete})
        backfill = backfill_job.begin(subscription.pk, since=since, created_by=str(key_of(request)))
        location = reverse("replay", args=[backfill.pk])
        answer = ReplaySerializer(backfill, context={"request": request}).data
        return Response(answer, status.HTTP_202_ACCEPTED, headers={"Location": location})
