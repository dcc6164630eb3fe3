"""The addresses of summaries and runs, below `/api/v1/`."""

from django.urls import path, re_path

from analytics.api.metrics import read_metrics
from analytics.api.summaries import Runs, download_summary, list_summaries, read_statistics, read_summary

urlpatterns = [
    path("metrics", read_metrics),
    path("summaries", list_summaries),
    re_path(r"^summaries/(?P<name>[a-z_]+)\.(?P<suffix>csv|parquet)$", download_summary),
    path("summaries/<slug:name>", read_summary),
    path("subscribers/<name:name>/statistics", read_statistics),
    path("summary-runs", Runs.as_view({"get": "list", "post": "create"})),
    path("summary-runs/<int:id>", Runs.as_view({"get": "retrieve"}), name="summary-run"),
]
