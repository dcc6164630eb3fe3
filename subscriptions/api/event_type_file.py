"""All event types as a file, out and in; for management."""

from typing import Any

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import StrictSerializer
from broker_project.core.api.pagination import query_of
from broker_project.core.api.parsing import RawParser, body_of
from broker_project.core.api.problems import ProblemType, register
from subscriptions.api.noting import Noted
from subscriptions.api.permissions import MayManage
from subscriptions.import_export import FileFormat, RefusedEntries, UnreadableFile
from subscriptions.import_export.event_types_file import Verdict, export_event_types, import_event_types
from subscriptions.models import EventType, Scope

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
    verdict = serializers.ChoiceField(choices=[*Verdict])
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
