"""Summaries, a page at a time or as files, and the runs that make them; and live numbers of one subscriber."""

import datetime as dt
from functools import partial
from typing import Any, Final

from django.db.models import QuerySet
from django.http import FileResponse, Http404, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field, inline_serializer
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from analytics import live_numbers
from analytics.live_numbers import HOUR_MINUTES, Numbers
from analytics.models import Run, RunState, RunWindow
from analytics.pipeline.job import DAY
from analytics.pipeline.tables import Table
from analytics.run_records import RunFinished, cancel
from analytics.run_requests import NotARange, request_range
from analytics.summaries import FILTERS, SUMMARIES, csv_lines, parquet_file, refusal_of_file, rows_between
from analytics.windows import Range, latest
from broker_project.core.api.fields import (
    MomentField,
    NullableTime,
    OneOfField,
    StrictSerializer,
    TextField,
    TruthField,
)
from broker_project.core.api.pagination import Order, PageQuery, page_of, page_response, query_of
from broker_project.core.api.problems import InvalidQuery, ProblemType, register
from broker_project.core.api.records import Audited, Records, operation, refuse_body, valid
from delivery.maintenance.minutes import KEPT_HOURS
from delivery.status.backlog import backlogs
from subscriptions.api.permissions import MayManage, MayReceive, key_of, subscribers_for
from subscriptions.models import EventType, Scope

CSV: Final = "text/csv"
PARQUET: Final = "application/vnd.apache.parquet"
NAME: Final = OpenApiParameter("name", str, OpenApiParameter.PATH, enum=[*SUMMARIES])
WINDOWS_SHOWN: Final = 500

register(
    {
        NotARange: ProblemType(422, "invalid_range", "Nothing to summarize"),
        RunFinished: ProblemType(409, "finished"),
    }
)


class RangeQuery(PageQuery):
    """Which rows of a summary."""

    from_ = MomentField(help_text="Without it, a day before `to`.")
    to = MomentField(help_text="Not included; without it, now.")
    subscriber = TextField(help_text="A subscriber's name.")
    event_type = TextField(help_text="An event type's name.")
    publisher = TextField(help_text="A publisher's name.")
    kind = TextField(help_text="TOPIC, QUEUE, SYNC, MAILBOX (fetched messages), or CALLBACK (replies).")


COLUMN: Final = inline_serializer(
    "Column",
    {"name": serializers.CharField(), "type": serializers.CharField(help_text="In Spark's notation.")},
    many=True,
)
SUMMARY: Final = inline_serializer(
    "Summary", {"name": serializers.CharField(), "description": serializers.CharField(), "columns": COLUMN}, many=True
)


@operation("get", Scope.READ, MayManage, responses=inline_serializer("Summaries", {"items": SUMMARY}))
def list_summaries(request: Request) -> Response:  # noqa: ARG001 - every operation gets it
    """List summaries, with their columns."""
    items = [
        {
            "name": summary.name,
            "description": summary.description,
            "columns": [{"name": name, "type": kind} for name, kind in summary.types.items()],
        }
        for summary in SUMMARIES.values()
    ]
    return Response({"items": items})


@operation("get", Scope.READ, MayManage, parameters=[NAME, RangeQuery], responses=OpenApiTypes.OBJECT)
def read_summary(request: Request, name: str) -> Response:
    """Read a summary: its rows within a range, oldest first, a page at a time."""
    query = query_of(request, RangeQuery)
    summary, _, rows = _selected(name, query)
    page = page_of(rows, Order(f"summary {name}", first=summary.time), query)
    items = [{column: getattr(row, column) for column in summary.types} for row in page.rows]
    return page_response(request, page, items)


@operation(
    "get",
    Scope.READ,
    MayManage,
    parameters=[NAME, RangeQuery],
    responses={(200, CSV): OpenApiTypes.STR, (200, PARQUET): OpenApiTypes.BINARY},
)
def download_summary(request: Request, name: str, suffix: str) -> HttpResponseBase:
    """Download a summary: its rows within a range, 100,000 at most, as CSV or Parquet."""
    summary, within, rows = _selected(name, query_of(request, RangeQuery))
    if refusal := refusal_of_file(rows):
        raise InvalidQuery({"from": refusal})
    return file_of(summary, rows, within, suffix)


def summary_named(name: str) -> Table:
    """Return the summary with this name; raise `Http404` if there is none."""
    if name not in SUMMARIES:
        raise Http404
    return SUMMARIES[name]


def _selected(name: str, query: dict[str, Any]) -> tuple[Table, Range, QuerySet[Any]]:
    """Return a summary, the range that is asked for, and its rows; raise `InvalidQuery` for columns that it lacks."""
    summary = summary_named(name)
    end: dt.datetime = query.get("to") or latest(DAY, timezone.now()).end
    start: dt.datetime = query.get("from") or end - DAY
    if start >= end:
        raise InvalidQuery({"to": "Give a time after `from`."})
    within = Range(start.astimezone(dt.UTC), end.astimezone(dt.UTC))
    values: dict[str, Any] = {name: query[name] for name in FILTERS if name in query}
    if missing := values.keys() - summary.types.keys():
        raise InvalidQuery(dict.fromkeys(missing, f"The summary {summary.name} has no such column."))
    return summary, within, rows_between(summary, within, values)


def file_of(summary: Table, rows: QuerySet[Any], within: Range, suffix: str) -> HttpResponseBase:
    """Return the answer that sends the rows of a range as a file, `csv` or `parquet`."""
    name = f"{summary.name}-{within.start:%Y%m%dT%H%M}-{within.end:%Y%m%dT%H%M}.{suffix}"
    if suffix == "parquet":
        return FileResponse(parquet_file(summary, rows), as_attachment=True, filename=name, content_type=PARQUET)
    attached = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(csv_lines(summary, rows), content_type=CSV, headers=attached)


Percentile: Final = partial(serializers.FloatField, default=None, read_only=True, allow_null=True)


class NumbersSerializer(serializers.Serializer[Any]):
    """What ended in the last minutes."""

    deliveries = serializers.IntegerField(help_text="How many ended.")
    delivered = serializers.IntegerField()
    failed = serializers.IntegerField(help_text="Not delivered, and neither cancelled nor done by another.")
    success = serializers.FloatField(allow_null=True, help_text="The share of these two that was delivered.")
    p50_ms = Percentile(source="took.p50", help_text="From published to delivered. Null: none was sent and delivered.")
    p95_ms = Percentile(source="took.p95")
    p99_ms = Percentile(source="took.p99")


class EventTypeNumbersSerializer(NumbersSerializer):
    """The same of one event type."""

    event_type = serializers.CharField()


class StatisticsSerializer(NumbersSerializer):
    """What ended for a subscriber in the last hours, and what waits for it now."""

    since = NullableTime(help_text="Null: no minute has been counted yet.")
    until = NullableTime(help_text="The end of the last minute that has been counted.")
    waiting = serializers.IntegerField(source="backlog.waiting", default=0, read_only=True)
    is_truncated = serializers.BooleanField(
        source="backlog.is_cut", default=False, read_only=True, help_text="Whether more waits than was counted."
    )
    oldest_since = NullableTime(source="backlog.oldest_since", help_text="Since when the oldest of them waits.")
    event_types = EventTypeNumbersSerializer(many=True)


class StatisticsQuery(StrictSerializer):
    """How far back."""

    hours = serializers.IntegerField(default=1, min_value=1, max_value=KEPT_HOURS, help_text="Of the last hours.")


@operation("get", Scope.READ, MayReceive, parameters=[StatisticsQuery], responses=StatisticsSerializer)
def read_statistics(request: Request, name: str) -> Response:
    """Read the statistics of a subscriber: what ended in the last hours, and what waits now."""
    hours = query_of(request, StatisticsQuery)["hours"]
    subscriber = get_object_or_404(subscribers_for(key_of(request)), name=name)
    newest = live_numbers.last_minute()
    last = live_numbers.by_event_type(newest, subscriber.pk, hours) if newest else None
    by_event_type = last.numbers if last else {}
    names = dict(EventType.objects.filter(pk__in=[*by_event_type]).values_list("pk", "name"))
    now = {
        **_shown(last.total if last else Numbers(hours * HOUR_MINUTES)),
        "since": last and last.since,
        "until": last and last.until,
        "backlog": backlogs([subscriber.pk]).get(subscriber.pk),
        "event_types": [{**_shown(one), "event_type": names.get(key, "")} for key, one in by_event_type.items()],
    }
    return Response(StatisticsSerializer(now).data)


def _shown(numbers: Numbers) -> dict[str, Any]:
    names = ("deliveries", "delivered", "failed", "success", "took")
    return {name: getattr(numbers, name) for name in names}


class RunQuery(PageQuery):
    """The filters of the list of runs."""

    state = OneOfField(RunState.choices)


class NewRun(StrictSerializer):
    """What is to be summarized."""

    example = {"from": "2026-11-20T00:00:00Z", "to": "2026-11-21T00:00:00Z"}
    from_ = MomentField(help_text="The start of the range.")
    to = MomentField(help_text="Not included. Of an hour that is not over yet, what is stored is summarized.")
    again = TruthField(default=False, help_text="Also windows that are already summarized.")


class RunWindowSerializer(serializers.ModelSerializer[RunWindow]):
    """One hour or day of a run."""

    class Meta:
        model = RunWindow
        fields = ("start", "end", "state", "rows_read", "rows_written", "checks", "lake_bytes", "seconds", "error")


class RunProgressSerializer(serializers.Serializer[Any]):
    """How far a run is."""

    number = serializers.IntegerField(help_text="Of the window that Spark does now, from 1.")
    total = serializers.IntegerField(help_text="How many windows Spark does; those without deliveries need none.")
    step = serializers.CharField(help_text="`reading`, `summarizing` or `loading`.")
    seconds_left = serializers.FloatField(allow_null=True, help_text="Null: the first window is not done yet.")


class RunSerializer(serializers.ModelSerializer[Run]):
    """A run."""

    progress = serializers.SerializerMethodField(help_text="Null before Spark has started, and after the run.")

    class Meta:
        model = Run
        fields: tuple[str, ...] = (
            *("id", "kind", "state", "start", "end", "again"),
            *("requested_at", "started_at", "ended_at", "progress", "error"),
        )

    @extend_schema_field(RunProgressSerializer(allow_null=True))
    def get_progress(self, run: Run) -> Any:
        """Return how far it is."""
        return run.progress and {**run.progress, "seconds_left": run.seconds_left(timezone.now())}


class WholeRunSerializer(RunSerializer):
    """A run with its windows and its log."""

    windows = serializers.SerializerMethodField(help_text=f"The newest {WINDOWS_SHOWN}.")

    class Meta(RunSerializer.Meta):
        fields = (*RunSerializer.Meta.fields, "log", "windows")

    def get_windows(self, run: Run) -> Any:
        """Return its hours or days."""
        newest = run.windows.order_by("-start", "-pk")[:WINDOWS_SHOWN]
        return RunWindowSerializer(newest, many=True).data


class Runs(Records[Run]):
    """Runs of the summaries."""

    queryset = Run.objects.all()
    permission_classes = [MayManage]
    needs = {"get": Scope.READ, "post": Scope.OPERATE}
    http_method_names = ["get", "head", "post"]
    serializer_class = RunSerializer
    serializer_classes = {"retrieve": WholeRunSerializer}
    filters = RunQuery
    order = Order("summary runs", descending=True)
    problems = {"create": ("invalid_range",)}

    @extend_schema(request=NewRun, responses={202: RunSerializer})
    def create(self, request: Request) -> Response:
        """Request a summary run over a range; it starts as soon as the present run has ended."""
        asked = valid(NewRun, request)
        start, end = (asked[name].astimezone(dt.UTC) for name in ("from", "to"))
        run = request_range(start, end, again=asked["again"])
        location = reverse("summary-run", args=[run.pk])
        return Response(RunSerializer(run).data, status.HTTP_202_ACCEPTED, headers={"Location": location})


@operation("post", Scope.OPERATE, MayManage, base=Audited, request=None, responses=RunSerializer, problems=["finished"])
def cancel_summary_run(request: Request, id: int) -> Response:
    """Cancel a summary run; the hours and days that it has summarized stay."""
    run = get_object_or_404(Run, pk=id)
    refuse_body(request)
    cancel(run.pk)
    run.refresh_from_db()
    return Response(RunSerializer(run).data)
