"""What explanations look like over the API."""

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.models import Message
from delivery.status.explain_message import MAX_EXPLAINED, Explanations, explain_message
from subscriptions.api.permissions import MayManage
from subscriptions.filters import Explanation, Found, HeaderFilterResult, Result, TermResult, Verdict
from subscriptions.models import Scope


class FoundSerializer(serializers.Serializer[Found]):
    """What a term found in the message."""

    path = serializers.CharField()
    value = serializers.CharField(allow_null=True, help_text="Text or JSON, its first 200 characters; null: nothing.")


class TermSerializer(serializers.Serializer[TermResult]):
    """One term of a filter."""

    text = serializers.CharField()
    result = serializers.ChoiceField([one.value for one in Result])
    values = FoundSerializer(many=True)
    reason = serializers.CharField(help_text="Why it failed, if it did.")


class FilterResultSerializer(serializers.Serializer[Explanation]):
    """A filter's result and that of each of its terms, in the order of its text."""

    result = serializers.ChoiceField([one.value for one in Result])
    reason = serializers.CharField(help_text="Why it failed, if it did: then a delivery is HELD.")
    terms = TermSerializer(many=True)


class HeaderFilterSerializer(serializers.Serializer[HeaderFilterResult]):
    """A header filter and what it was compared with."""

    wanted = serializers.CharField()
    given = serializers.CharField(allow_null=True, help_text="The message's FILTER_STRING.")
    holds = serializers.BooleanField()


class VerdictSerializer(serializers.Serializer[Verdict]):
    """Whether the filters let a message through, and why."""

    qualifies = serializers.BooleanField()
    why = serializers.CharField()
    header_filter = HeaderFilterSerializer(allow_null=True, help_text="Null: not set.")
    filter = FilterResultSerializer(allow_null=True, help_text="Null: not set.")


class ExplainedSerializer(VerdictSerializer):
    """One subscription, and why it gets a message or does not, by the configuration that is now in force."""

    subscription_id = serializers.IntegerField(source="subscription.pk")
    subscriber = serializers.CharField(source="subscription.subscriber.name")
    qualifies = serializers.BooleanField(source="verdict.qualifies")
    why = serializers.CharField(source="verdict.why")
    header_filter = HeaderFilterSerializer(source="verdict.header_filter", allow_null=True)
    filter = FilterResultSerializer(source="verdict.filter", allow_null=True)


class ExplanationSerializer(serializers.Serializer[Explanations]):
    """What became of a message at the subscriptions that its event type reaches."""

    subscriptions = ExplainedSerializer(source="found", many=True)
    is_cut = serializers.BooleanField(help_text=f"Whether there are more than these {MAX_EXPLAINED}.")


class ExplanationOfMessage(APIView):
    """Who gets a message, and why."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ}

    @extend_schema(operation_id="explain_message", responses=ExplanationSerializer)
    def get(self, request: Request, id: int) -> Response:  # noqa: A002, ARG002 - the address names it so; DRF's signature
        """Say which subscriptions such a message qualifies for now, and why: all their filters are asked anew."""
        message = get_object_or_404(Message.objects.select_related("event_type"), pk=id)
        return Response(ExplanationSerializer(explain_message(message)).data)
