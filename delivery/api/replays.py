"""Sending many deliveries again, and a new subscription what was published before it (behaviour 5.8)."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import OneOfField
from broker_project.core.api.pagination import Order, Page, PageQuery
from broker_project.core.api.problems import ProblemType, register
from delivery.api.new_replays import NewReplay, selection_of
from delivery.api.records import Records
from delivery.api.replay_selections import SelectionSerializer, keep_told, told_of
from delivery.models import Replay, ReplayKind, ReplayState
from delivery.replay import replay_job
from delivery.replay.replay_job import ReplayFinished
from subscriptions.api.noting import Noted
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.resources import refuse_body
from subscriptions.models import ApiKey, KeyKind, Scope

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
