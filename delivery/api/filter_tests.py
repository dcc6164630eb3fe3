"""Trying filters on a message, given or stored: what they say, and why."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.api.explanations import VerdictSerializer
from delivery.api.given_messages import given, headers_of
from delivery.api.messages_to_try import FilterToTry, MessageToTry, stored, valid
from delivery.status.explain_message import shown_of, verdict_on
from delivery.webhook.headers_policy import kept
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.visibility import subscriptions_for
from subscriptions.filter_verdict import Verdict, judge
from subscriptions.models import Scope


class TestedSerializer(VerdictSerializer):
    """A verdict on a message that was given, and what of it no message keeps."""

    headers_left_out = serializers.SerializerMethodField(help_text="Headers that are dropped on publish.")

    def get_headers_left_out(self, _: Verdict) -> list[str]:
        """Return their names."""
        names: list[str] = self.context["left_out"]
        return names


class FiltersOfSubscription(APIView):
    """A subscription's filters."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.READ}

    @extend_schema(operation_id="test_filter_of_subscription", request=MessageToTry, responses=TestedSerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Say whether a subscription would get a message, and why; `filter` says what its filter makes of it anyhow.

        A stored message qualifies only if it is of the subscription's event type and not older than it; none does
        while the subscription or its subscriber is INACTIVE.
        """
        subscription = get_object_or_404(subscriptions_for(key_of(request)), pk=id)
        values = valid(MessageToTry, request)
        message = stored(values, key_of(request))
        verdict = verdict_on(shown_of(message) if message else given(values), subscription, message)
        return _answer(verdict, values)


class AnyFilters(APIView):
    """Filters that no subscription has yet."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.READ}

    @extend_schema(operation_id="test_filter", request=FilterToTry, responses=TestedSerializer)
    def post(self, request: Request) -> Response:
        """Say what filters make of a message, and why."""
        values = valid(FilterToTry, request)
        message = stored(values, key_of(request))
        verdict = judge(
            shown_of(message) if message else given(values),
            header_filter_string=values.get("header_filter_string", ""),
            filter_text=values.get("filter", ""),
        )
        return _answer(verdict, values)


def _answer(verdict: Verdict, values: dict[str, Any]) -> Response:
    names = [name for name, _ in headers_of(values)]
    stay = {name for name, _ in kept(headers_of(values))}
    left_out = [name for name in dict.fromkeys(names) if name not in stay]
    return Response(TestedSerializer(verdict, context={"left_out": left_out}).data)
