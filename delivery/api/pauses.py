"""Pause and resume subscriptions, and send them a test event (contract 1.6)."""

import secrets
from typing import Any, Final

from django.conf import settings
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import StrictSerializer, TextField
from broker_project.core.api.problems import ProblemType, register
from delivery import pause
from delivery.playground.test_events import ID_BYTES, NothingToSendTo, Rehearsed, rehearse, rehearsing_caller
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.preconditions import etag_of
from subscriptions.api.resources import Noted, refuse_body
from subscriptions.api.subscriptions import SubscriptionSerializer
from subscriptions.api.visibility import subscribers_for, subscriptions_for
from subscriptions.models import Scope, Subscription

MAX_CHARACTERS: Final = 1000

register(
    {
        pause.NotPausable: ProblemType(400, "not_pausable", "Cannot be paused"),
        pause.Backfilling: ProblemType(409, "backfilling", "Getting older messages"),
    }
)


class PauseSerializer(StrictSerializer):
    """Why it is to pause."""

    reason = TextField(required=False, default="", allow_blank=True, max_length=MAX_CHARACTERS)


class Changed(serializers.Serializer[Any]):
    """What that did."""

    changed = serializers.IntegerField(help_text="Subscriptions that were not so before.")


class PauseView(Noted):
    """Pausing one, or all of a subscriber."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.OPERATE}

    def reason(self, request: Request) -> str:
        """Return what the body says."""
        given = PauseSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        return str(given.validated_data["reason"])

    def subscription(self, request: Request, pk: int) -> Subscription:
        """Return the one that the key can see."""
        return get_object_or_404(subscriptions_for(key_of(request)), pk=pk)

    def subscriptions(self, request: Request, name: str) -> list[int]:
        """Return those of the subscriber, which the key can see."""
        subscriber = get_object_or_404(subscribers_for(key_of(request)), name=name)
        return [*subscriber.subscriptions.values_list("pk", flat=True)]

    def shown(self, subscription: Subscription) -> Response:
        """Return the answer: as it is now."""
        subscription.refresh_from_db()
        return Response(SubscriptionSerializer(subscription).data, headers={"ETag": etag_of(subscription)})


class PauseSubscription(PauseView):
    """A subscription that is to wait."""

    @extend_schema(operation_id="pause_subscription", request=PauseSerializer, responses=SubscriptionSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Let it wait: what is published for it is stored, and nothing is sent."""
        subscription, reason = self.subscription(request, id), self.reason(request)
        pause.pause_one(subscription.pk, reason=reason)
        return self.shown(subscription)


class ResumeSubscription(PauseView):
    """A subscription that waits, by hand or because its retries are used up."""

    @extend_schema(operation_id="resume_subscription", request=None, responses=SubscriptionSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Let it go on: what has come meanwhile is sent, in order."""
        subscription = self.subscription(request, id)
        refuse_body(request)
        pause.resume_one(subscription.pk, reason="")
        return self.shown(subscription)


class PauseSubscriber(PauseView):
    """The TOPIC and QUEUE subscriptions that a subscriber has now."""

    @extend_schema(operation_id="pause_subscriber", request=PauseSerializer, responses=Changed)
    def post(self, request: Request, name: str) -> Response:
        """Let them wait, but those that are getting older messages."""
        subscriptions, reason = self.subscriptions(request, name), self.reason(request)
        return Response({"changed": len(pause.pause(subscriptions, reason=reason))})


class ResumeSubscriber(PauseView):
    """Those of them that wait."""

    @extend_schema(operation_id="resume_subscriber", request=None, responses=Changed)
    def post(self, request: Request, name: str) -> Response:
        """Let them go on."""
        subscriptions = self.subscriptions(request, name)
        refuse_body(request)
        return Response({"changed": len(pause.resume(subscriptions))})


urlpatterns: Final[list[URLPattern]] = [
    path("subscriptions/<int:id>/pause", PauseSubscription.as_view()),
    path("subscriptions/<int:id>/resume", ResumeSubscription.as_view()),
    path("subscribers/<name:name>/pause", PauseSubscriber.as_view()),
    path("subscribers/<name:name>/resume", ResumeSubscriber.as_view()),
]

register({NothingToSendTo: ProblemType(400, "nothing_to_send_to", "Nothing to send to")})


class RehearsedSerializer(serializers.Serializer[Rehearsed]):
    """What came back."""

    status_code = serializers.IntegerField(allow_null=True, help_text="Null: there was no answer.")
    reason = serializers.CharField(allow_blank=True, help_text="Why there was none; empty: there was one.")
    duration_ms = serializers.IntegerField()
    answer_headers = serializers.SerializerMethodField(help_text="Status line and headers.")
    answer_excerpt = serializers.SerializerMethodField(help_text="The first KiB of the body.")

    def get_answer_headers(self, rehearsed: Rehearsed) -> str:
        """Return them as text; what is no text is replaced."""
        return rehearsed.answer_headers.decode("latin-1")

    def get_answer_excerpt(self, rehearsed: Rehearsed) -> str:
        """Return it as text; what is no UTF-8 is replaced."""
        return rehearsed.answer_excerpt.decode("utf-8", "replace")


class SendTestEvent(Noted):
    """A subscription's endpoint."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.OPERATE}

    @extend_schema(operation_id="send_test_event", request=None, responses=RehearsedSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Send it a test event at once, and answer with what came back, within some seconds.

        The event type's sample, or `{"test": true}`: signed, with the configured headers and `Webhook-Test: true`, and
        whatever the subscription's status, outside of the line. Nothing is stored of it, and nothing follows from it.
        """
        subscriptions = subscriptions_for(key_of(request)).select_related("event_type")
        subscription = get_object_or_404(subscriptions, pk=id)
        refuse_body(request)
        caller, random_bytes = rehearsing_caller(settings.EGRESS_POLICY), secrets.token_bytes(ID_BYTES)
        rehearsed = rehearse(subscription, caller=caller, random_bytes=random_bytes, now=timezone.now())
        return Response(RehearsedSerializer(rehearsed).data)
