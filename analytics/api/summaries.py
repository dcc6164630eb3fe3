"""Summaries, to be read a page at a time or as files; for management."""

import datetime as dt
from typing import Any, ClassVar, Final

from django.http import FileResponse, Http404, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from analytics.pipeline.job import DAY
from analytics.pipeline.tables import Table
from analytics.summaries import FILTERS, SUMMARIES, csv_lines, parquet_file, rows_between
from analytics.windows import Range, latest
from broker_project.core.api.errors import InvalidQuery
from broker_project.core.api.fields import MomentField, TextField
from broker_project.core.api.pagination import Order, PageQuery, page_of, page_response, query_of
from subscriptions.api.permissions import MayManage
from subscriptions.models import Scope

CSV: Final = "text/csv"
PARQUET: Final = "application/vnd.apache.parquet"
NAME: Final = OpenApiParameter("name", str, OpenApiParameter.PATH, enum=[*SUMMARIES])


class RangeQuery(PageQuery):
    """Which rows of a summary."""

    subscriber = TextField(required=False, help_text="A subscriber's name.")
    event_type = TextField(required=False, help_text="An event type's name.")
    publisher = TextField(required=False, help_text="A publisher's name.")
    kind = TextField(required=False, help_text="TOPIC, QUEUE, SYNC, MAILBOX: what is fetched, or CALLBACK: replies.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields, with two whose names are words of Python."""
        bounds = {
            "from": MomentField(required=False, help_text="A day before `to`, if not given."),
            "to": MomentField(required=False, help_text="Not included; now, if not given."),
        }
        return {**bounds, **super().get_fields()}


class ColumnSerializer(serializers.Serializer[Any]):
    """One column of a summary."""

    name = serializers.CharField()
    type = serializers.CharField(help_text="As Spark writes it.")


class SummarySerializer(serializers.Serializer[Any]):
    """What a summary is."""

    name = serializers.CharField()
    description = serializers.CharField()
    columns = serializers.SerializerMethodField()

    def get_columns(self, summary: Table) -> list[dict[str, str]]:
        """Return its columns."""
        return [{"name": name, "type": kind} for name, kind in summary.types.items()]


class SummariesSerializer(serializers.Serializer[Any]):
    """All summaries."""

    items = SummarySerializer(many=True)


class Summaries(APIView):
    """Which summaries there are."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ}

    @extend_schema(operation_id="list_summaries", responses=SummariesSerializer)
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """List the summaries and their columns."""
        return Response({"items": SummarySerializer(SUMMARIES.values(), many=True).data})


class RowsOfSummary(APIView):
    """The rows of one summary."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ}
    query_class: ClassVar[type[PageQuery]] = RangeQuery

    @extend_schema(operation_id="read_summary", parameters=[NAME, RangeQuery], responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, name: str) -> Response:
        """Read a summary's rows within a range, a page at a time, oldest first."""
        summary = summary_named(name)
        query = query_of(request, self.query_class)
        rows = rows_between(summary, range_of(query), narrowing(summary, query))
        page = page_of(rows, Order(f"summary {name}", first=summary.time), query)
        return page_response(request, page, [_item(summary, row) for row in page.rows])


class FileOfSummary(APIView):
    """The rows of one summary as a file."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ}

    @extend_schema(
        operation_id="download_summary",
        parameters=[NAME, RangeQuery],
        responses={(200, CSV): OpenApiTypes.STR, (200, PARQUET): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, name: str, suffix: str) -> HttpResponseBase:
        """Read all rows of a summary within a range, as CSV or Parquet."""
        summary = summary_named(name)
        query = query_of(request, RangeQuery)
        return file_of(summary, range_of(query), narrowing(summary, query), suffix)


def summary_named(name: str) -> Table:
    """Return a summary; raise `Http404` if there is none of that name."""
    if name not in SUMMARIES:
        raise Http404
    return SUMMARIES[name]


def range_of(query: dict[str, Any]) -> Range:
    """Return the range that a query asks for, a day up to now without bounds; raise `InvalidQuery` for none."""
    end: dt.datetime = query.get("to") or latest(DAY, timezone.now()).end
    start: dt.datetime = query.get("from") or end - DAY
    if start >= end:
        raise InvalidQuery({"to": "Give a time after `from`."})
    return Range(start.astimezone(dt.UTC), end.astimezone(dt.UTC))


def narrowing(summary: Table, query: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a query narrows a summary to; raise `InvalidQuery` for columns that it has not."""
    values: dict[str, Any] = {name: query[name] for name in FILTERS if name in query}
    if missing := values.keys() - summary.types.keys():
        raise InvalidQuery(dict.fromkeys(missing, f"The summary {summary.name} does not tell them apart."))
    return values


def file_of(summary: Table, within: Range, values: dict[str, Any], suffix: str) -> HttpResponseBase:
    """Return the answer that sends the rows as a file, `csv` or `parquet`."""
    rows = rows_between(summary, within, values)
    name = f"{summary.name}-{within.start:%Y%m%dT%H%M}-{within.end:%Y%m%dT%H%M}.{suffix}"
    if suffix == "parquet":
        return FileResponse(parquet_file(summary, rows), as_attachment=True, filename=name, content_type=PARQUET)
    attached = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(csv_lines(summary, rows), content_type=CSV, headers=attached)


def _item(summary: Table, row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in summary.types}
