"""Event types: every key reads them, management configures them; and their file, to export and import."""

from typing import Any, Final

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.bodies import RawParser, body_of
from broker_project.core.api.fields import StrictModelSerializer, StrictSerializer
from broker_project.core.api.history import Changed
from broker_project.core.api.pagination import Order, query_of
from broker_project.core.api.problems import ProblemType, register
from broker_project.core.api.records import CHANGED, Audited, note_dry_run
from subscriptions.api.permissions import MayManage
from subscriptions.api.resources import BROKER_FIELDS, Resource
from subscriptions.import_export import (
    ImportVerdict,
    RefusedEntries,
    UnreadableFile,
    download_of,
    import_event_types,
)
from subscriptions.models import EventType, Scope
from subscriptions.schemas import BrokenSchema, compiled

JSON: Final = "application/json"


@extend_schema_field({"type": "object", "description": "A JSON Schema; null: none."})
class SchemaField(serializers.JSONField):
    """A JSON Schema; the model checks that it fits the other fields."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the schema; refuse anything else."""
        try:
            compiled(data)
        except BrokenSchema as broken:
            raise serializers.ValidationError(str(broken)) from None
        return data


class EventTypeSerializer(StrictModelSerializer[EventType]):
    """An event type."""

    example = {"name": "Shop.Order.Placed", "kind": "TOPIC", "sample": '{"order": 4711, "total": "19.90"}'}
    fixed = ("name", "kind")
    schema = SchemaField(required=False, allow_null=True, default=None)

    class Meta:
        model = EventType
        fields = ("name", "kind", "content_type", "description", "sample", "schema", *BROKER_FIELDS)
        read_only_fields = BROKER_FIELDS


class EventTypes(Resource[EventType]):
    """Event types, which every key sees."""

    queryset = EventType.objects.all()
    serializer_class = EventTypeSerializer
    lookup_field = lookup_value_converter = "name"
    order = Order("event types", "name")


def _entry_errors(refused: RefusedEntries) -> dict[str, object]:
    errors = [{"pointer": f"#{one.pointer}", "code": "entry", "detail": one.message} for one in refused.problems]
    return {"errors": errors}


register(
    {
        UnreadableFile: ProblemType(400, "unreadable_file"),
        RefusedEntries: ProblemType(422, "entries_refused", members=_entry_errors),
    }
)


class ImportQuery(StrictSerializer):
    """The query parameters of an import."""

    dry_run = serializers.BooleanField(default=False, help_text="Only report what the import would do.")


class ImportedEventType(serializers.Serializer[Any]):
    """What an import does to one event type."""

    name = serializers.CharField(source="event_type.name")
    verdict = serializers.ChoiceField(choices=[*ImportVerdict])
    changed = serializers.ListField(child=serializers.CharField(), help_text="The fields that change.")


class ImportedFile(serializers.Serializer[Any]):
    """What an import does, in the order of the file."""

    dry_run = serializers.BooleanField()
    results = ImportedEventType(many=True)


class EventTypeFile(Audited):
    """All event types with their schemas and samples, as a JSON file."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ, "post": Scope.CONFIGURE}
    parser_classes = [RawParser]
    problems = {"post": ("unreadable_file", "entries_refused", "unstorable_value")}

    @extend_schema(
        operation_id="export_event_types", tags=["event-types"], responses={(200, JSON): OpenApiTypes.OBJECT}
    )
    def get(self, request: Request) -> HttpResponse:  # noqa: ARG002 - DRF's signature
        """Export all event types; the file can be imported."""
        return download_of(EventType.objects.all())

    @extend_schema(
        operation_id="import_event_types",
        tags=["event-types"],
        parameters=[ImportQuery],
        request={JSON: OpenApiTypes.OBJECT},
        responses=ImportedFile,
    )
    def post(self, request: Request) -> Response:
        """Import event types: create and change them as the file says, all of it, or nothing if anything is wrong."""
        dry_run = note_dry_run(request, query_of(request, ImportQuery))
        imported = import_event_types(body_of(request, max_bytes=settings.MAX_BODY_BYTES), dry_run=dry_run)
        request.META[CHANGED] = [
            Changed(one.event_type, one.verdict is ImportVerdict.CREATED, one.changed)
            for one in imported
            if one.verdict is not ImportVerdict.UNCHANGED
        ]
        return Response(ImportedFile({"dry_run": dry_run, "results": imported}).data)
