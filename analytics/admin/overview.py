"""The page of summaries: charts and tables of a range, downloads, and a button that brings it up to date."""

from typing import Final

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, re_path, reverse
from django.utils import timezone

from analytics.admin.choosing import SelectionForm
from analytics.admin.headline import headline
from analytics.admin.sections import SECTIONS
from analytics.api.summaries import file_of, summary_named
from analytics.figures.cached import Looked
from analytics.figures.coverage import covered
from analytics.models import Run, RunState
from analytics.ranges import Range
from analytics.run_requests import NotARange, request_range
from broker_project.core.admin.read_only import ReadOnlyAdmin
from broker_project.core.admin.theme import page_of
from delivery.maintenance.kept_days import days_kept

FILE: Final = r"^summaries/(?P<name>[a-z_]+)\.(?P<suffix>csv|parquet)$"


class OverviewAdmin(ReadOnlyAdmin[Run]):
    """Runs, with the page of what they brought."""

    def get_urls(self) -> list[URLPattern]:
        """Return the pages' addresses too."""
        own = self.admin_site.admin_view
        return [
            path("summaries/", own(self.overview), name="analytics_run_overview"),
            path("summarize/", own(self.summarize), name="analytics_run_summarize"),
            re_path(FILE, own(self.download), name="analytics_run_download"),
            *super().get_urls(),
        ]

    def overview(self, request: HttpRequest) -> HttpResponse:
        """Show the summaries of a range."""
        self._check(request, "view")
        form = SelectionForm.of(request.GET)
        selection = form.selection(timezone.now())
        context = {
            **self.admin_site.each_context(request),
            **page_of(self, "Summaries"),
            "form": form,
            "last_passed": Run.objects.filter(state=RunState.PASSED).order_by("-ended_at").first(),
            "newest": Run.objects.order_by("-pk").first(),
            "days_kept": days_kept(),
            "may_run": request.user.has_perm("analytics.add_run"),
            "query": request.GET.urlencode(),
            **(_shown(Looked(selection)) if selection else {}),
        }
        return TemplateResponse(request, "analytics/overview.html", context)

    def download(self, request: HttpRequest, name: str, suffix: str) -> HttpResponseBase:
        """Send one summary's rows of the range that is looked at."""
        self._check(request, "view")
        summary = summary_named(name)
        form = SelectionForm.of(request.GET)
        selection = form.selection(timezone.now())
        if selection is None:
            return HttpResponseBadRequest(form.errors.as_text(), content_type="text/plain")
        narrows = selection.subscriber_id and "subscriber_id" in summary.columns
        values = {"subscriber_id": selection.subscriber_id} if narrows else {}
        return file_of(summary, selection.range, values, suffix)

    def summarize(self, request: HttpRequest) -> HttpResponse:
        """Ask for a run over the range that is looked at, as far as it is over; of all subscribers."""
        self._check(request, "add")
        if request.method == "POST":
            form = SelectionForm.of(request.POST)
            if selection := form.selection(timezone.now()):
                self._request(request, selection.range, again="again" in request.POST)
            else:
                self.message_user(request, form.errors.as_text(), messages.ERROR)
        return HttpResponseRedirect(reverse("admin:analytics_run_changelist"))

    def _request(self, request: HttpRequest, asked: Range, *, again: bool) -> None:
        try:
            run = request_range(asked.start, min(asked.end, timezone.now()), again=again, by=_user(request))
        except NotARange as why:
            self.message_user(request, str(why), messages.ERROR)
        else:
            self.message_user(request, f"Run {run.pk} is asked for: the worker of the queue analytics takes it up.")

    def _check(self, request: HttpRequest, permission: str) -> None:
        if not request.user.has_perm(f"analytics.{permission}_run"):
            raise PermissionDenied


def _shown(looked: Looked) -> dict[str, object]:
    """Return what the page shows of a selection."""
    return {
        "selection": looked.selection,
        "covered": covered(looked.selection.range),
        "figures": headline(looked),
        "sections": [section(looked) for section in SECTIONS],
    }


def _user(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None
