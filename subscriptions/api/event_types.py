"""Event types: read by every key, configured by management."""

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from broker_project.core.api.fields import StrictModelSerializer
from broker_project.core.api.pagination import Order
from subscriptions import edit
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Resource
from subscriptions.api.visibility import event_types_for
from subscriptions.models import ApiKey, EventType
from subscriptions.schemas import BrokenSchema, compiled


@extend_schema_field({"type": "object", "description": "A JSON Schema; null: none."})
class SchemaField(serializers.JSONField):
    """A JSON Schema; whether it goes with the rest, the model says."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the schema; refuse what is none."""
        try:
            compiled(data)
        except BrokenSchema as broken:
            raise serializers.ValidationError(str(broken)) from None
        return data


class EventTypeSerializer(StrictModelSerializer[EventType]):
    """An event type as the API shows it and takes a new one."""

    schema = SchemaField(required=False, allow_null=True, default=None)

    class Meta:
        model = EventType
        fields = ("name", "kind", "content_type", "description", "sample", "schema", *KEPT_BY_THE_BROKER)
        read_only_fields: ClassVar[tuple[str, ...]] = KEPT_BY_THE_BROKER


class EventTypeChange(EventTypeSerializer):
    """What may change of an event type: its name and kind are fixed."""

    class Meta(EventTypeSerializer.Meta):
        read_only_fields = ("name", "kind", *KEPT_BY_THE_BROKER)


class EventTypes(Resource[EventType]):
    """What can be published."""

    serializer_class = EventTypeSerializer
    lookup_field = "name"
    lookup_value_converter = "name"
    order = Order("event types", "name")

    def visible_to(self, key: ApiKey) -> QuerySet[EventType]:
        """Return all."""
        return event_types_for(key)

    def get_serializer_class(self) -> type[BaseSerializer[EventType]]:
        """Return what this method takes."""
        return EventTypeChange if self.action == "partial_update" else EventTypeSerializer

    def create(self, request: Request) -> Response:
        """Create one."""
        return self.created(edit.create(EventType(**self.valid(request))))
