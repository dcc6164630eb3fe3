"""Runs in the admin, and the pages of live numbers and of summaries: charts, tables, downloads, requests of runs."""

import datetime as dt
from functools import partial
from typing import Any, ClassVar, Final, Self

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import BadRequest
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Extract
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.template.defaultfilters import filesizeformat
from django.urls import URLPattern, path, re_path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from analytics.admin.dashboard import NEEDED
from analytics.admin.live import live_page
from analytics.admin.sections import SECTIONS, duration, per_cent
from analytics.api.summaries import file_of, summary_named
from analytics.dashboard_queries import COVERED, Selection, sums
from analytics.models import UNDER_WAY, UNFINISHED_RUNS, Run, RunState, WindowState
from analytics.pipeline.job import DAY, midnight
from analytics.pipeline.tables import VOLUME
from analytics.run_records import RunFinished, cancel
from analytics.run_requests import NotARange, current_calendar, request_range
from analytics.summaries import refusal_of_file
from analytics.windows import RANGES, Range, latest
from broker_project.core.admin.model_admin import action, after_dialog, column, dialog, permission, state_column
from broker_project.core.admin.theme import (
    ActionVariant,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    badge,
    preformatted,
    progress,
    refreshed,
    table_or_dash,
)
from broker_project.core.durations import time_left
from delivery.admin.read_only import MAX_SHOWN, ReadOnlyAdmin, exact, yes_or_no
from delivery.maintenance.retention import days_kept
from subscriptions.models import Subscriber

CHOICES: Final = {"24h": "24 hours", "3d": "3 days", "7d": "7 days", "28d": "28 days"}
FILE: Final = r"^summaries/(?P<name>[a-z_]+)\.(?P<suffix>csv|parquet)$"
COUNTED_ROWS: Final = ("messages", "deliveries", "attempts", "unfinished", "callbacks")
"""What a run says it has read; the other inputs only name things."""
CANCELLING: Final = (
    "Spark ends within seconds. Hours and days that are summarized stay. The others keep the summaries that they have;"
    " they can be requested again, and come due again on schedule."
)
RUN_COLOURS: Final = {
    RunState.WAITING: "info",
    RunState.RUNNING: "info",
    RunState.CANCELLING: "warning",
    RunState.PASSED: "success",
    RunState.FAILED: "danger",
    RunState.ABANDONED: "warning",
    RunState.CANCELLED: "warning",
}

WINDOW_COLOURS: Final = {WindowState.PASSED: "success", WindowState.FAILED: "danger"}


class SelectionForm(forms.Form):
    """A range that ends now or with a day, for one subscriber or for all."""

    range = forms.ChoiceField(choices=[*CHOICES.items()], widget=UnfoldAdminSelectWidget)
    until = forms.DateField(
        required=False,
        widget=UnfoldAdminTextInputWidget({"type": "date"}),
        validators=[MinValueValidator(dt.date(2000, 1, 1)), MaxValueValidator(dt.date(2999, 12, 31))],
        help_text="The last day. Leave empty for now.",
    )
    subscriber = forms.ModelChoiceField(
        Subscriber.objects.all(),
        to_field_name="name",
        required=False,
        widget=UnfoldAdminTextInputWidget,
        error_messages={"invalid_choice": "There is no subscriber with this name."},
        help_text="A name. Leave empty for all subscribers.",
    )

    @classmethod
    def of(cls, chosen: QueryDict) -> Self:
        """Return the form, filled in from an address or a request."""
        return cls({"range": "24h"} | {name: str(value).strip() for name, value in chosen.dict().items()})

    def selection(self, now: dt.datetime) -> Selection | None:
        """Return the range and the subscriber; None if the form is invalid."""
        if not self.is_valid():
            return None
        length, until = RANGES[self.cleaned_data["range"]], self.cleaned_data["until"]
        subscriber = self.cleaned_data["subscriber"]
        end = midnight(until) + DAY if until else latest(length, now).end
        return Selection(Range(end - length, end), subscriber.pk if subscriber else None)


def headline(chosen: Selection) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the page: title, value and note."""
    totals, took, checked = chosen.totals, chosen.latency, chosen.audit
    published, size = sums(chosen.rows(VOLUME), "messages", "bytes")
    first = per_cent(totals.first_attempt, totals.eligible)
    order = "-"
    if checked.checked:
        order = f"{checked.unexplained:,} unexplained" if checked.unexplained else "kept"
    return [
        ("Published", f"{published:,}", f"{filesizeformat(size)}, received or not"),
        ("Deliveries ended", f"{totals.deliveries:,}", f"{totals.delivered:,} delivered"),
        ("Success rate", per_cent(totals.delivered, totals.eligible), f"first attempt: {first}"),
        (
            "Published to delivered",
            duration(took.p50) if took else "-",
            f"p50; p95 {duration(took.p95)}" if took else "",
        ),
        ("Order", order, f"{checked.checked:,} deliveries checked"),
    ]


def _windows_done(run: Any) -> SafeString | str:
    """Return how many hours and days a run has summarized, by state; how far it is while it runs."""
    if run.state in UNDER_WAY:
        return _progress(run)
    counts = {state: getattr(run, f"{state}_windows") for state in WindowState.values}
    return ", ".join(f"{count} {state.lower()}" for state, count in counts.items() if count) or "-"


def _progress(run: Run) -> SafeString:
    """Return how far a run is that has not ended."""
    if not run.progress:
        starting = "Spark is starting" if run.state == RunState.RUNNING else RunState(run.state).label
        return progress(0, starting)
    number, total, step = (run.progress[name] for name in ("number", "total", "step"))
    left = time_left(run.seconds_left(timezone.now()))
    return progress(100 * (number - 1) // total, f"window {number} of {total}, {step}{left}")


def _refreshed_state(run: Run) -> SafeString:
    """Return the state and the progress on the page of a run, which refreshes them until the run has ended."""
    state = badge(RunState(run.state), RUN_COLOURS)
    if run.state not in UNFINISHED_RUNS:
        return refreshed(state, None)
    page = reverse("admin:analytics_run_change", args=[run.pk])
    return refreshed(format_html("{}{}", state, _progress(run)), page)


def _windows_table(run: Run) -> SafeString | str:
    """Return the hours and days that a run has summarized, newest first."""
    rows = []
    for window in run.windows.order_by("-start", "-pk")[:MAX_SHOWN]:
        failed = [check["name"] for check in window.checks if not check["passed"]]
        passed = f"all {len(window.checks)} passed" if window.checks else "nothing to check"
        read = [f"{window.rows_read[name]:,} {name}" for name in COUNTED_ROWS if window.rows_read.get(name)]
        rows.append(
            [
                f"{exact(window.start)} to {exact(window.end)}",
                badge(WindowState(window.state), WINDOW_COLOURS),
                ", ".join(read) or "nothing",
                f"{sum(window.rows_written.values()):,} rows",
                f"failed: {', '.join(failed)}" if failed else window.error or passed,
                filesizeformat(window.lake_bytes),
                f"{window.seconds:,.1f}\N{NO-BREAK SPACE}s",
            ]
        )
    return table_or_dash(["window", "state", "read", "written", "checks", "lake", "took"], rows)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin[Run]):
    """Runs of the summaries, newest first, and the page of the summaries."""

    when_empty = "No run yet. Completed hours are summarized seven minutes past every hour, or on the page Summaries."
    list_display = ("id", "kind", "state_shown", "covers", "windows_done", "took", "requested_at", "first_of_error")
    list_filter = ("state", "kind")
    time_column = "requested_at"
    fields = (
        *("id", "kind", "state_refreshed", "covers", "resummarizes", "requested_by", "requested_at"),
        *("started_at", "ended_at", "took", "error_shown", "windows_shown", "log_shown"),
    )
    list_select_related = ("requested_by",)
    actions_detail: ClassVar[tuple[str, ...]] = ("cancel",)
    has_run_permission = permission("analytics.add_run")

    state_shown = state_column("state", lambda run: RunState(run.state), RUN_COLOURS)
    covers = column("range", lambda run: f"{exact(run.start)} to {exact(run.end)}" if run.start else "what was due")
    state_refreshed = column("state", _refreshed_state)
    windows_done = column("windows", _windows_done)
    took = column("took", lambda run: f"{run.seconds:,.0f} s" if run.seconds is not None else "-")
    first_of_error = column("error", lambda run: run.error.partition("\n")[0][:120])
    error_shown = column("error", lambda run: preformatted(run.error) if run.error else "-")
    resummarizes = column("re-summarize", lambda run: yes_or_no(run.again))
    log_shown = column("log", lambda run: preformatted(run.log) if run.log else "-")
    windows_shown = column("windows", _windows_table)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Return the runs, with their seconds and with how many windows each has by state."""
        counts = {f"{state}_windows": Count("windows", filter=Q(windows__state=state)) for state in WindowState.values}
        runs: QuerySet[Run] = super().get_queryset(request)
        return runs.annotate(seconds=Extract(F("ended_at") - F("started_at"), "epoch"), **counts)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, str] | None = None) -> HttpResponse:
        """Show the list, with warnings about what delays summaries and about days kept because of that."""
        if blocker := current_calendar().blocker:
            messages.warning(request, str(blocker))
        if days := days_kept():
            kept = ", ".join(map(str, days))
            messages.warning(request, f"Kept beyond their retention until they are summarized: {kept}.")
        page: HttpResponse = super().changelist_view(request, extra_context)
        return page

    def get_urls(self) -> list[URLPattern]:
        """Return the pages' addresses too."""
        own = self.admin_site.admin_view
        may_view, may_add, may_view_live = (
            permission_required(needed, raise_exception=True)
            for needed in ("analytics.view_run", "analytics.add_run", NEEDED)
        )
        return [
            path("live/", own(may_view_live(partial(live_page, self))), name="analytics_run_live"),
            path("summaries/", own(may_view(self.overview)), name="analytics_run_overview"),
            path("summarize/", own(may_add(self.summarize)), name="analytics_run_summarize"),
            re_path(FILE, own(may_view(self.download)), name="analytics_run_download"),
            *super().get_urls(),
        ]

    def overview(self, request: HttpRequest) -> HttpResponse:
        """Show the summaries of a range."""
        form = SelectionForm.of(request.GET)
        selection = form.selection(timezone.now())
        context: dict[str, object] = {
            "form": form,
            "last_passed": Run.objects.filter(state=RunState.PASSED).order_by("-ended_at").first(),
            "newest": Run.objects.order_by("-pk").first(),
            "days_kept": days_kept(),
            "may_run": request.user.has_perm("analytics.add_run"),
            "query": request.GET.urlencode(),
        }
        if selection:
            sections = [section(selection) for section in SECTIONS]
            context |= {"selection": selection, "covered": selection.query(COVERED), "sections": sections}
            context |= {"figures": headline(selection)}
        return self.page(request, "analytics/overview.html", "Summaries", **context)

    def download(self, request: HttpRequest, name: str, suffix: str) -> HttpResponseBase:
        """Return one summary's rows of a range as a file."""
        summary = summary_named(name)
        form = SelectionForm.of(request.GET)
        selection = form.selection(timezone.now())
        if selection is None:
            raise BadRequest(form.errors.as_text())
        rows = selection.rows(summary)
        if refusal := refusal_of_file(rows):
            raise BadRequest(refusal)
        return file_of(summary, rows, selection.range, suffix)

    def summarize(self, request: HttpRequest) -> HttpResponse:
        """Request a run over the past part of a range, for all subscribers."""
        if request.method == "POST":
            form, now = SelectionForm.of(request.POST), timezone.now()
            try:
                if selection := form.selection(now):
                    start, end = selection.range.start, min(selection.range.end, now)
                    run = request_range(start, end, again="again" in request.POST, by=request.user)
                    done = f"Run {run.pk} is requested; the worker of the queue analytics will start it."
                    self.message_user(request, done)
                    return HttpResponseRedirect(self.change_url(run.pk))
                self.message_user(request, form.errors.as_text(), messages.ERROR)
            except NotARange as why:
                self.message_user(request, str(why), messages.ERROR)
        return HttpResponseRedirect(self.list_url())

    @action(
        description="Cancel",
        permissions=["run"],
        icon="cancel",
        variant=ActionVariant.DANGER,
        dialog=dialog("Cancel this run?", CANCELLING, "Cancel run", variant=ActionVariant.DANGER),
        refusals=(RunFinished,),
        offered=lambda run: run.can_be_cancelled,
    )
    def cancel(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """End it."""
        cancel(int(object_id))
        self.report_change(request, Run.objects.get(pk=object_id), "Cancelled.")
        return after_dialog(request, self.change_url(object_id))
