"""The broker's metrics, as Prometheus reads them; for management."""

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from rest_framework.request import Request

from analytics.metrics import BrokerMetrics
from broker_project.core.api.records import operation
from broker_project.core.database_clock import DATABASE_CLOCK
from subscriptions.api.permissions import MayManage
from subscriptions.models import Scope


@operation("get", Scope.READ, MayManage, responses={(200, "text/plain"): OpenApiTypes.STR})
def read_metrics(request: Request) -> HttpResponse:  # noqa: ARG001 - every operation gets it
    """Read the broker's metrics, in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(BrokerMetrics(DATABASE_CLOCK.now()))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
