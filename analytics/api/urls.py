"""The addresses of summaries and runs, below `/api/v1/`."""

from django.urls import path, re_path

from analytics.api.runs import Runs
from analytics.api.summaries import FileOfSummary, RowsOfSummary, Summaries

urlpatterns = [
    path("summaries", Summaries.as_view()),
    re_path(r"^summaries/(?P<name>[a-z_]+)\.(?P<suffix>csv|parquet)$", FileOfSummary.as_view()),
    path("summaries/<slug:name>", RowsOfSummary.as_view()),
    path("summary-runs", Runs.as_view({"get": "list", "post": "create"})),
    path("summary-runs/<int:id>", Runs.as_view({"get": "retrieve"}), name="summary-run"),
]
