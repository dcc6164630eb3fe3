"""The broker's metrics, as Prometheus reads them; for management."""

from typing import Final

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from rest_framework.request import Request

from analytics.metrics import BrokerMetrics
from broker_project.core.api.views import operation
from subscriptions.api.permissions import MayManage
from subscriptions.models import Scope

REGISTRY: Final = CollectorRegistry()
REGISTRY.register(BrokerMetrics())


@operation("get", Scope.READ, MayManage, responses={(200, "text/plain"): OpenApiTypes.STR})
def read_metrics(request: Request) -> HttpResponse:  # noqa: ARG001 - every operation gets it
    """Read the broker's metrics, in the text format of Prometheus."""
    return HttpResponse(generate_latest(REGISTRY), content_type=CONTENT_TYPE_LATEST)
