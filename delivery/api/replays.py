"""Replays and backfills of many, and resubmits of single deliveries and messages (contract 5.8)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db.models import BigIntegerField, OuterRef, Subquery
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.shortcuts import get_object_or_404
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api import fields
from broker_project.core.api.pagination import Order, PageQuery
from broker_project.core.api.problems import ProblemType, register
from broker_project.core.api.records import Audited, Records, note_dry_run, operation, refuse_body, valid
from delivery.api.deliveries import DeliverySerializer, deliveries_for
from delivery.api.messages import messages_for
from delivery.api.publish import AcceptedEvent, answer_of
from delivery.api.trials import BodySerializer, body_in
from delivery.models import Message, Replay, ReplayKind, ReplayState
from delivery.publish.publish import publish_terms
from delivery.replay import backfill_job, eligibility, replay_job
from delivery.replay.replay_job import ReplayFinished
from delivery.replay.resubmit import Edit, NoLongerKept, NotResubmittable, republish, resubmit
from subscriptions.api import permissions
from subscriptions.models import EventType, KeyKind, Scope, Subscriber, Subscription

_operation: Final = partial(operation, "post", Scope.OPERATE, base=Audited)
_activation: Final = partial(operation, "post", Scope.CONFIGURE, base=Audited)

register(
    {
        ReplayFinished: ProblemType(409, "finished"),
        eligibility.NotBackfilled: ProblemType(400, "not_backfilled"),
        eligibility.NotInactive: ProblemType(409, "not_inactive"),
        eligibility.NotNew: ProblemType(409, "not_new"),
        eligibility.StillPaused: ProblemType(409, "still_paused"),
        NotResubmittable: ProblemType(409, "not_resubmittable"),
        NoLongerKept: ProblemType(410, "no_longer_kept"),
    }
)

NOT_RESUBMITTED: Final = ("not_resubmittable", "no_longer_kept")


class SelectionSerializer(fields.StrictSerializer):
    """Which deliveries, or from when on for a backfill."""

    subscriber = serializers.CharField(allow_null=True, help_text="Its name; null if it is deleted.")
    subscriptions = serializers.ListField(child=serializers.IntegerField(), help_text="Their ids.")
    statuses = serializers.ListField(child=serializers.CharField(), required=False)
    event_type = serializers.CharField(required=False, allow_null=True, help_text="Its name; null: any, or deleted.")
    from_ = serializers.DateTimeField(required=False, allow_null=True)
    to = serializers.DateTimeField(required=False, allow_null=True)
    since = serializers.DateTimeField(required=False, allow_null=True, help_text="Of a backfill.")


class NewReplay(fields.StrictSerializer):
    """Which deliveries are replayed, and how fast."""

    example = {"subscriber": "warehouse", "from": "2026-11-20T09:00:00Z", "max_per_second": 100, "dry_run": True}
    subscription = permissions.OwnSubscriptionField(required=False)
    subscriber = permissions.OwnSubscriberField(
        required=False, queryset=Subscriber.objects.all(), help_text="Its name: all its subscriptions."
    )
    event_type = fields.NameField[EventType](
        required=False, queryset=EventType.objects.all(), help_text="Only messages of this event type."
    )
    statuses = serializers.ListField(
        child=fields.OneOfField(sorted(eligibility.REPLAYABLE)),
        required=False,
        allow_empty=False,
        help_text=f"Without it: {', '.join(sorted(eligibility.RESUBMITTABLE))}.",
    )
    from_ = fields.MomentField(required=False, help_text="Only deliveries created then or later.")
    to = fields.MomentField(required=False, help_text="Only deliveries created before.")
    max_per_second = fields.WholeNumberField(
        required=False,
        min_value=1,
        max_value=eligibility.MAX_PACE,
        help_text="How many deliveries are created in a second.",
    )
    dry_run = fields.TruthField(default=False, help_text="Only count.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse anything but one of subscription and subscriber, and a range that ends before it begins."""
        if ("subscription" in attrs) == ("subscriber" in attrs):
            raise serializers.ValidationError("Give either a subscription or a subscriber.")
        if "from" in attrs and "to" in attrs and attrs["from"] >= attrs["to"]:
            raise serializers.ValidationError({"to": ["This is not after `from`."]})
        return attrs


class MessagesCounted(serializers.Serializer[Any]):
    """How many messages a backfill would look at."""

    count = serializers.IntegerField(help_text="Before any filter.")
    complete = serializers.BooleanField(help_text="False: there are too many, and only the oldest are counted.")


class CountSerializer(MessagesCounted):
    """How many deliveries a replay would create."""

    count = serializers.IntegerField(
        help_text="Includes those that cannot be sent, except those that were already sent again."
    )
    by_status = serializers.DictField(child=serializers.IntegerField())


class ReplaySerializer(serializers.ModelSerializer[Replay]):
    """A replay or backfill, and its progress."""

    selection = serializers.SerializerMethodField()
    max_per_second = serializers.IntegerField(source="pace", allow_null=True)
    created = serializers.IntegerField(source="filed", help_text="How many deliveries it has created.")
    created_by = serializers.SerializerMethodField(
        allow_null=True, help_text="The key or login that started it; null for all but management."
    )

    class Meta:
        model = Replay
        fields = (
            *("id", "kind", "state", "subscription_id", "selection", "max_per_second", "total", "created", "skipped"),
            *("reason", "created_by", "created_at", "updated_at", "finished_at"),
        )

    @extend_schema_field(SelectionSerializer)
    def get_selection(self, replay: Any) -> dict[str, Any]:
        """Return its selection with the names of the subscriber and event type that it has as ids."""
        names = {"subscriber": replay.subscriber_name, "event_type": replay.event_type_name}
        return {field: names.get(field, value) for field, value in replay.selection.items()}

    def get_created_by(self, replay: Replay) -> str | None:
        """Return the key or login that started it, for management."""
        return replay.created_by if permissions.key_of(self.context["request"]).kind == KeyKind.MANAGEMENT else None


class ReplayQuery(PageQuery):
    """The filters of the list of replays."""

    kind = fields.OneOfField(ReplayKind.choices)
    state = fields.OneOfField(ReplayState.choices)


replays_for = permissions.records_of(
    Replay.objects.alias(
        selected_subscriber=Cast(KT("selection__subscriber"), BigIntegerField()),
        selected_event_type=Cast(KT("selection__event_type"), BigIntegerField()),
    ).annotate(
        subscriber_name=Subquery(Subscriber.objects.filter(pk=OuterRef("selected_subscriber")).values("name")),
        event_type_name=Subquery(EventType.objects.filter(pk=OuterRef("selected_event_type")).values("name")),
    ),
    "selection__subscriber",
    "subscriber_id",
)


def _accepted(request: Request, pk: int) -> Response:
    replay = replays_for(permissions.key_of(request)).get(pk=pk)
    answer = ReplaySerializer(replay, context={"request": request}).data
    return Response(answer, status.HTTP_202_ACCEPTED, headers={"Location": reverse("replay", args=[pk])})


class Replays(Records[Replay]):
    """Replays and backfills: management sees all, a subscriber its own."""

    permission_classes = [permissions.MayReceive]
    needs = {"get": Scope.READ, "post": Scope.OPERATE}
    serializer_class = ReplaySerializer
    http_method_names = ["get", "head", "post"]
    filters = ReplayQuery
    order = Order("replays", descending=True)
    visible_to = staticmethod(replays_for)

    @extend_schema(
        request=NewReplay,
        responses={200: OpenApiResponse(CountSerializer, "With `dry_run`."), 202: ReplaySerializer},
    )
    def create(self, request: Request) -> Response:
        """Start a replay of many deliveries in the background; or count them first."""
        asked = valid(NewReplay, request)
        selection, subscription = selection_of(asked), asked.get("subscription")
        if note_dry_run(request, asked):
            found = replay_job.count(selection)
            return Response({"count": found.total, "by_status": found.by_status, "complete": found.complete})
        replay = replay_job.begin(
            selection,
            pace=asked.get("max_per_second"),
            subscription_id=subscription and subscription.pk,
            created_by=str(permissions.key_of(request)),
        )
        return _accepted(request, replay.pk)


def selection_of(asked: Mapping[str, Any]) -> eligibility.Selection:
    """Return the selected deliveries; raise `ValidationError` if none of them can be sent again."""
    one: Subscription | None = asked.get("subscription")
    event_type: EventType | None = asked.get("event_type")
    try:
        return eligibility.Selection.among(
            [one] if one else asked["subscriber"].subscriptions.all(),
            statuses=asked.get("statuses", ()),
            event_type_id=event_type.pk if event_type else None,
            begin=asked.get("from"),
            end=asked.get("to"),
        )
    except eligibility.NothingToReplay as nothing:
        raise serializers.ValidationError({"subscription" if one else "subscriber": [str(nothing)]}) from nothing


@_operation(permissions.MayReceive, request=None, responses=ReplaySerializer, problems=["finished", "still_in_use"])
def cancel_replay(request: Request, id: int) -> Response:
    """Cancel a replay; the deliveries that it has created stay.

    Cancelling a backfill also takes the scope `configure`, because its subscription is INACTIVE then.
    """
    key = permissions.key_of(request)
    visible = replays_for(key)
    replay = get_object_or_404(visible, pk=id)
    if replay.kind == ReplayKind.BACKFILL:
        permissions.require_scope(key, Scope.CONFIGURE)
    refuse_body(request)
    replay_job.cancel(replay.pk, reason="cancelled over the API")
    return Response(ReplaySerializer(visible.get(pk=id), context={"request": request}).data)


class NewBackfill(fields.StrictSerializer):
    """From when on messages are backfilled."""

    example = {"since": "2026-11-20T09:00:00Z", "dry_run": True}
    since = fields.MomentField(required=False, help_text="Only messages published then or later.")
    dry_run = fields.TruthField(default=False, help_text="Only count.")


@_activation(
    permissions.MayReceive,
    request=NewBackfill,
    responses={200: OpenApiResponse(MessagesCounted, "With `dry_run`."), 202: ReplaySerializer},
    problems=("not_backfilled", "not_inactive", "not_new", "still_paused"),
)
def backfill_subscription(request: Request, id: int) -> Response:
    """Backfill a subscription: activate it, and send it older messages, then new ones.

    It is INACTIVE and never had a delivery.
    """
    related = permissions.subscriptions_for(permissions.key_of(request)).select_related("event_type", "subscriber")
    subscription = get_object_or_404(related, pk=id)
    asked = valid(NewBackfill, request)
    since = asked.get("since")
    if note_dry_run(request, asked):
        found = backfill_job.count(subscription, since)
        return Response({"count": found.total, "complete": found.complete})
    begun = backfill_job.begin(subscription.pk, since=since, created_by=str(permissions.key_of(request)))
    return _accepted(request, begun.pk)


class EditSerializer(BodySerializer):
    """Nothing, or a body to send instead of the message's."""

    example = {"body": '{"order": 4711, "total": "21.90"}'}
    content_type = fields.TextField(required=False, help_text="Of the new body; without it, the message's.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse two bodies, and a content type without a body."""
        if "content_type" in attrs and not attrs.keys() & {"body", "body_base64"}:
            raise serializers.ValidationError({"content_type": ["Give it with a body."]})
        return super().validate(attrs)


@_operation(
    permissions.MayReceive,
    request=EditSerializer,
    responses={201: DeliverySerializer},
    problems=(*NOT_RESUBMITTED, "malformed_payload", "schema_violated", "unsuitable_content_type"),
)
def resubmit_delivery(request: Request, id: int) -> Response:
    """Resubmit a delivery: send it again as a new one to the same destination; the old one is unchanged."""
    visible = deliveries_for(permissions.key_of(request))
    old = get_object_or_404(visible, pk=id)
    given = valid(EditSerializer, request)
    edit = Edit(body_in(given), given.get("content_type")) if given else None
    new_id = resubmit(old.pk, publish_terms(), edit=edit, max_bytes=settings.MAX_BODY_BYTES)
    location = reverse("delivery", args=[new_id])
    created = DeliverySerializer(visible.get(pk=new_id)).data
    return Response(created, status.HTTP_201_CREATED, headers={"Location": location})


class ResubmittedEvent(AcceptedEvent):
    """The answer to a message that is published again."""

    copy_of = serializers.IntegerField(help_text="The message that this one is a copy of; for a copy, its original.")


@_operation(
    permissions.MayPublish,
    request=None,
    responses={202: ResubmittedEvent},
    problems=(*NOT_RESUBMITTED, "event_type_not_allowed", "too_many_deliveries"),
)
def resubmit_message(request: Request, id: int) -> Response:
    """Resubmit a message: publish a copy to all subscriptions that qualify now; the old one is unchanged."""
    message = get_object_or_404(messages_for(permissions.key_of(request)).select_related(None).only("pk"), pk=id)
    refuse_body(request)
    accepted = republish(message.pk, publish_terms())
    location = reverse("message", args=[accepted.id])
    (copy_of,) = Message.objects.values_list("copy_of", flat=True).filter(pk=accepted.id)
    answer = {**answer_of(accepted), "copy_of": copy_of}
    return Response(answer, status.HTTP_202_ACCEPTED, headers={"Location": location})
