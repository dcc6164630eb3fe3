"""Runs in the admin: what each read, wrote and checked."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.safestring import SafeString

from analytics.admin.overview import OverviewAdmin
from analytics.models import Run, RunState, RunWindow, WindowState
from analytics.run_requests import held_up_by
from broker_project.core.admin.theme import display, label, preformatted, table
from delivery.admin.read_only import MAX_SHOWN, instant, yes_or_no
from delivery.maintenance.retention import days_kept

FACTS: Final = ("messages", "deliveries", "attempts", "unfinished", "callbacks")
"""Of what is read, what tells how much happened; the rest is what it is called."""
COLOURS: Final = {
    RunState.WAITING: "info",
    RunState.RUNNING: "info",
    RunState.PASSED: "success",
    RunState.FAILED: "danger",
    RunState.ABANDONED: "warning",
}
KEPT: Final = "Past their time, and kept until they are summarized: {days}."


@admin.register(Run)
class RunAdmin(OverviewAdmin):
    """Runs of the summaries, newest first."""

    list_display = ("id", "kind", "state_shown", "covers", "windows_done", "took", "requested_at", "first_of_error")
    list_filter = ("state", "kind")
    fields = (
        *("id", "kind", "state_shown", "covers", "does_again", "requested_by", "requested_at"),
        *("started_at", "ended_at", "took", "error_shown", "windows_shown", "log_shown"),
    )
    readonly_fields = fields
    list_select_related = ("requested_by",)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, str] | None = None) -> HttpResponse:
        """Warn of what keeps days from being summarized, and of those that retention keeps because of that."""
        if oldest := held_up_by(call_seconds=settings.SYNC_SECONDS):
            messages.warning(request, str(oldest))
        if days := days_kept():
            messages.warning(request, KEPT.format(days=", ".join(map(str, days))))
        page: HttpResponse = super().changelist_view(request, extra_context)
        return page

    @display(description="state", label=COLOURS)
    def state_shown(self, run: Run) -> str:
        """Return where it stands."""
        return run.state

    @display(description="range")
    def covers(self, run: Run) -> str:
        """Return what somebody asked for."""
        return f"{instant(run.start)} to {instant(run.end)}" if run.start else "what was due"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Return the runs with how many windows each did."""
        counts = {f"{state}_windows": Count("windows", filter=Q(windows__state=state)) for state in WindowState.values}
        runs: QuerySet[Run] = super().get_queryset(request)
        return runs.annotate(**counts)

    @display(description="windows")
    def windows_done(self, run: Run) -> str:
        """Return how many hours and days it did."""
        counts = {state: getattr(run, f"{state}_windows") for state in WindowState.values}
        return ", ".join(f"{count} {state.lower()}" for state, count in counts.items() if count) or "-"

    @display(description="took")
    def took(self, run: Run) -> str:
        """Return how long it took."""
        return f"{run.duration.total_seconds():,.0f} s" if run.duration else "-"

    @display(description="error")
    def first_of_error(self, run: Run) -> str:
        """Return the beginning of why it failed."""
        return run.error.partition("\n")[0][:120]

    @display(description="error")
    def error_shown(self, run: Run) -> SafeString | str:
        """Return why it failed."""
        return preformatted(run.error) if run.error else "-"

    @display(description="also what was summarized already")
    def does_again(self, run: Run) -> str:
        """Return whether it does that too."""
        return yes_or_no(run.again)

    @display(description="log")
    def log_shown(self, run: Run) -> SafeString | str:
        """Return what the application printed."""
        return preformatted(run.log) if run.log else "-"

    @display(description="windows")
    def windows_shown(self, run: Run) -> SafeString | str:
        """Return the hours and days it did, the newest first."""
        rows = [_row(one) for one in run.windows.order_by("-start", "-pk")[:MAX_SHOWN]]
        headers = ["window", "state", "read", "written", "checks", "lake", "took"]
        return table(headers, rows) if rows else "-"


def _row(window: RunWindow) -> list[object]:
    failed = [check["name"] for check in window.checks if not check["passed"]]
    colour = "success" if window.state == WindowState.PASSED else "danger"
    return [
        f"{instant(window.start)} to {instant(window.end)}",
        label(window.state, colour),
        _told(window.rows_read, FACTS),
        f"{sum(window.rows_written.values()):,} rows",
        f"failed: {', '.join(failed)}" if failed else window.error or f"all {len(window.checks)} passed",
        filesizeformat(window.lake_bytes),
        f"{window.seconds:,.1f}\N{NO-BREAK SPACE}s",
    ]


def _told(rows: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{rows[name]:,} {name}" for name in names if rows.get(name)) or "nothing happened"
