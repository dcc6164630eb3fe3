"""Releasing a delivery that is HELD."""

from django.db import transaction
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from delivery.api.delivery_documents import DeliverySerializer
from delivery.api.visibility import deliveries_for
from delivery.holding import release_one
from subscriptions.api.noting import Noted
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.resources import refuse_body
from subscriptions.models import Scope


class ReleaseDelivery(Noted):
    """A delivery whose filter or script failed."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.OPERATE}

    @extend_schema(operation_id="release_delivery", request=None, responses=DeliverySerializer)
    def post(self, request: Request, id: int) -> Response:  # noqa: A002 - the address names it so
        """Let it be sent, whatever its filter says; answered with the delivery, which is PENDING now."""
        visible = deliveries_for(key_of(request))
        delivery = get_object_or_404(visible, pk=id)
        refuse_body(request)
        with transaction.atomic():  # its line is locked: nobody sends it before it is read
            release_one(delivery.pk)
            released = visible.get(pk=id)
        return Response(DeliverySerializer(released).data)
