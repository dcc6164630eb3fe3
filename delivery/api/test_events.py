"""Sending a test event to a subscription's endpoint."""

import secrets

from django.conf import settings
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.problems import ProblemType, register
from delivery.playground.test_events import ID_BYTES, NothingToSendTo, Rehearsed, rehearse, rehearsing_caller
from subscriptions.api.noting import Noted
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.resources import refuse_body
from subscriptions.api.visibility import subscriptions_for
from subscriptions.models import Scope

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
        caller, random_bytes = rehearsing_caller(settings.REACH), secrets.token_bytes(ID_BYTES)
        rehearsed = rehearse(subscription, caller=caller, random_bytes=random_bytes, now=timezone.now())
        return Response(RehearsedSerializer(rehearsed).data)
