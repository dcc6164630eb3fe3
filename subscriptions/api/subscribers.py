"""Subscribers: configured by management; a subscriber's key reads its own."""

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from broker_project.core.api.fields import StrictModelSerializer
from broker_project.core.api.pagination import Order
from subscriptions import edit
from subscriptions.api.header_fields import HeadersField
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Resource
from subscriptions.api.visibility import subscribers_for
from subscriptions.models import ApiKey, Processing, Status, Subscriber


class SubscriberSerializer(StrictModelSerializer[Subscriber]):
    """A subscriber as the API shows it and takes a new one."""

    headers = HeadersField(help_text="Sent with every delivery.")

    class Meta:
        model = Subscriber
        fields = (
            "name",
            "description",
            "status",
            "headers",
            "max_queued_to_send",
            "processing",
            "concurrency",
            "mailbox_ordered",
            "ack_seconds",
            "max_redeliveries",
            "unreadable",
            *KEPT_BY_THE_BROKER,
        )
        read_only_fields: ClassVar[tuple[str, ...]] = ("unreadable", *KEPT_BY_THE_BROKER)


class SubscriberChange(SubscriberSerializer):
    """What may change of a subscriber here; its status has actions of its own."""

    elsewhere = {"status": ": POST …/activate or …/inactivate"}

    class Meta(SubscriberSerializer.Meta):
        read_only_fields = ("status", *SubscriberSerializer.Meta.read_only_fields)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the changes: who asks for one at a time need not say that this is 1."""
        return {"concurrency": 1, **attrs} if attrs.get("processing") == Processing.SERIAL else attrs


class Subscribers(Resource[Subscriber]):
    """Who receives."""

    serializer_class = SubscriberSerializer
    lookup_field = "name"
    lookup_value_converter = "name"
    order = Order("subscribers", "name")

    def visible_to(self, key: ApiKey) -> QuerySet[Subscriber]:
        """Return management all, a subscriber itself."""
        return subscribers_for(key)

    def get_serializer_class(self) -> type[BaseSerializer[Subscriber]]:
        """Return what this method takes."""
        return SubscriberChange if self.action == "partial_update" else SubscriberSerializer

    def create(self, request: Request) -> Response:
        """Create one."""
        return self.created(edit.create(Subscriber(**self.valid(request))))

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def activate(self, request: Request, **_: str) -> Response:
        """Let it qualify for new messages and send what is pending."""
        return self.change_by_action(request, {"status": Status.ACTIVE})

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def inactivate(self, request: Request, **_: str) -> Response:
        """Stop sending; what is pending is kept, what is published meanwhile is not."""
        return self.change_by_action(request, {"status": Status.INACTIVE})
