"""The addresses of summaries and runs, below `/api/v1/`."""

from django.urls import path, re_path

from analytics.api import summaries
from analytics.api.metrics import read_metrics

urlpatterns = [
    path("metrics", read_metrics),
    path("summaries", summaries.list_summaries),
    re_path(r"^summaries/(?P<name>[a-z_]+)\.(?P<suffix>csv|parquet)$", summaries.download_summary),
    path("summaries/<slug:name>", summaries.read_summary),
    path("subscribers/<name:name>/statistics", summaries.read_statistics),
    path("summary-runs", summaries.Runs.as_view({"get": "list", "post": "create"})),
    path("summary-runs/<int:id>", summaries.Runs.as_view({"get": "retrieve"}), name="summary-run"),
    path("summary-runs/<int:id>/cancel", summaries.cancel_summary_run),
]
