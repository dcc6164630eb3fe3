"""Runs of the summaries, to be read and asked for; for management."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from analytics.models import Run, RunState, RunWindow
from analytics.run_requests import NotARange, request_range
from broker_project.core.api.fields import MomentField, OneOfField, StrictSerializer, TruthField
from broker_project.core.api.pagination import Order, PageQuery
from broker_project.core.api.problems import ProblemType, register
from delivery.api.records import Records
from subscriptions.api.permissions import MayManage
from subscriptions.api.resources import Noted
from subscriptions.models import ApiKey, Scope

WINDOWS_SHOWN: Final = 500

register({NotARange: ProblemType(422, "not_a_range", "Nothing to summarize")})


class RunQuery(PageQuery):
    """Which runs."""

    state = OneOfField(RunState.choices, required=False)


class NewRun(StrictSerializer):
    """What is to be summarized."""

    again = TruthField(default=False, help_text="Also what is summarized already.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields, with two whose names are words of Python."""
        bounds = {
            "from": MomentField(help_text="From when on."),
            "to": MomentField(help_text="Not included; of an hour under way, what is over."),
        }
        return {**bounds, **super().get_fields()}


class RunWindowSerializer(serializers.ModelSerializer[RunWindow]):
    """One hour or day of a run."""

    class Meta:
        model = RunWindow
        fields = ("start", "end", "state", "rows_read", "rows_written", "checks", "lake_bytes", "seconds", "error")


class RunSerializer(serializers.ModelSerializer[Run]):
    """A run, without what it did."""

    class Meta:
        model = Run
        fields: tuple[str, ...] = (
            *("id", "kind", "state", "start", "end", "again"),
            *("requested_at", "started_at", "ended_at", "error"),
        )


class WholeRunSerializer(RunSerializer):
    """A run with its windows and its log."""

    windows = serializers.SerializerMethodField(help_text=f"The newest {WINDOWS_SHOWN}.")

    class Meta(RunSerializer.Meta):
        fields = (*RunSerializer.Meta.fields, "log", "windows")

    def get_windows(self, run: Run) -> Any:
        """Return what it did, hour by hour or day by day."""
        newest = run.windows.order_by("-start", "-pk")[:WINDOWS_SHOWN]
        return RunWindowSerializer(newest, many=True).data


class Runs(Noted, Records[Run]):
    """Runs of the summaries."""

    permission_classes = [MayManage]
    needs = {"get": Scope.READ, "post": Scope.OPERATE}
    http_method_names = ["get", "head", "post"]
    queryset = Run.objects.none()
    order = Order("summary runs", descending=True)
    query_class = RunQuery

    def visible_to(self, key: ApiKey) -> QuerySet[Run]:  # noqa: ARG002 - for management only
        """Return all of them."""
        return Run.objects.all()

    def filtered(self, rows: QuerySet[Run], query: Mapping[str, Any]) -> QuerySet[Run]:
        """Return those in the state asked for."""
        return rows.filter(state=query["state"]) if "state" in query else rows

    def get_serializer_class(self) -> type[BaseSerializer[Run]]:
        """Return what a list shows, or all of one."""
        return WholeRunSerializer if self.action == "retrieve" else RunSerializer

    @extend_schema(request=NewRun, responses={202: RunSerializer})
    def create(self, request: Request) -> Response:
        """Ask for a run over a range, as soon as the one under way has ended."""
        wanted = NewRun(data=request.data)
        wanted.is_valid(raise_exception=True)
        start, end = (wanted.validated_data[name].astimezone(dt.UTC) for name in ("from", "to"))
        run = request_range(start, end, again=wanted.validated_data["again"])
        location = reverse("summary-run", args=[run.pk])
        return Response(RunSerializer(run).data, status.HTTP_202_ACCEPTED, headers={"Location": location})
