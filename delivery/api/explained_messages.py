"""Why each subscription gets a stored message or does not."""

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from delivery.api.explanations import ExplanationSerializer
from delivery.models import Message
from delivery.status.explain_message import explain
from subscriptions.api.permissions import MayManage
from subscriptions.models import Scope


class ExplanationOfMessage(APIView):
    """Who gets a message, and why."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ}

    @extend_schema(operation_id="explain_message", responses=ExplanationSerializer)
    def get(self, request: Request, id: int) -> Response:  # noqa: A002, ARG002 - the address names it so; DRF's signature
        """Say which subscriptions such a message qualifies for now, and why: all their filters are asked anew."""
        message = get_object_or_404(Message.objects.select_related("event_type"), pk=id)
        return Response(ExplanationSerializer(explain(message)).data)
