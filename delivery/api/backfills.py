"""Giving a new subscription what was published before it (behaviour 5.8)."""

from typing import Any

from django.shortcuts import get_object_or_404
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import StrictSerializer, TruthField
from broker_project.core.api.moment_fields import MomentField
from broker_project.core.api.problems import ProblemType, register
from delivery.api.replays import ReplaySerializer
from delivery.replay import backfill_job
from delivery.replay.eligibility import NotBackfilled, NotInactive, NotNew, StillPaused
from subscriptions.api.noting import Noted
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.visibility import subscriptions_for
from subscriptions.models import Scope

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
