"""Event types: read by every key, configured by management."""

from typing import Any, ClassVar

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from broker_project.core.api.fields import StrictModelSerializer, StrictSerializer
from broker_project.core.api.pagination import Order, query_of
from broker_project.core.api.parsing import RawParser, body_of
from broker_project.core.api.problems import ProblemType, register
from subscriptions import edit
from subscriptions.api.permissions import MayManage
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Noted, Resource
from subscriptions.api.visibility import event_types_for
from subscriptions.import_export import (
    FileFormat,
    ImportVerdict,
    RefusedEntries,
    UnreadableFile,
    export_event_types,
    import_event_types,
)
from subscriptions.models import ApiKey, EventType, Scope
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


register(
    {
        UnreadableFile: ProblemType(400, "unreadable_file", "Unreadable file"),
        RefusedEntries: ProblemType(
            422, "entries_refused", "Entries refused", members=lambda refused: {"errors": _errors(refused)}
        ),
    }
)


def _errors(refused: RefusedEntries) -> list[dict[str, str]]:
    return [{"pointer": f"#{one.pointer}", "code": "entry", "detail": one.message} for one in refused.problems]


class ExportQuery(StrictSerializer):
    """How the file is written."""

    format = serializers.ChoiceField(choices=[*FileFormat], default=FileFormat.YAML)


class ImportQuery(StrictSerializer):
    """Whether anything is done."""

    dry_run = serializers.BooleanField(default=False, help_text="Only say what would be done.")


class ImportedEventType(serializers.Serializer[Any]):
    """What an import makes of one event type."""

    name = serializers.CharField(source="event_type.name")
    verdict = serializers.ChoiceField(choices=[*ImportVerdict])
    changed = serializers.ListField(child=serializers.CharField(), help_text="The fields that change.")


class ImportedFile(serializers.Serializer[Any]):
    """What an import makes of a file, in its order."""

    dry_run = serializers.BooleanField()
    results = ImportedEventType(many=True)


class EventTypeFile(Noted):
    """All event types with their schemas and samples, as JSON or YAML."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ, "post": Scope.CONFIGURE}
    parser_classes = [RawParser]

    @extend_schema(
        operation_id="export_event_types",
        parameters=[ExportQuery],
        responses={(200, f"application/{one}"): OpenApiTypes.OBJECT for one in FileFormat},
    )
    def get(self, request: Request) -> HttpResponse:
        """Write all event types to a file that can be imported."""
        written_in = FileFormat(query_of(request, ExportQuery)["format"])
        return HttpResponse(
            export_event_types(EventType.objects.configured(), written_in),
            content_type=f"application/{written_in}",
            headers={"Content-Disposition": f'attachment; filename="event-types.{written_in}"'},
        )

    @extend_schema(
        operation_id="import_event_types",
        parameters=[ImportQuery],
        request={f"application/{one}": OpenApiTypes.OBJECT for one in FileFormat},
        responses=ImportedFile,
    )
    def post(self, request: Request) -> Response:
        """Create and change event types as the file says: all of it, or nothing if anything is wrong."""
        dry_run = self.note_dry_run(query_of(request, ImportQuery))
        imported = import_event_types(body_of(request, limit=settings.MAX_BODY_BYTES), dry_run=dry_run)
        return Response(ImportedFile({"dry_run": dry_run, "results": imported}).data)
