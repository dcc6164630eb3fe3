"""The summaries page: a range, charts and tables, downloads, and a button that requests a run."""

import datetime as dt
from dataclasses import dataclass
from typing import Final, Self

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, re_path, reverse
from django.utils import timezone

from analytics.admin.sections import SECTIONS, per_cent
from analytics.api.summaries import file_of, summary_named
from analytics.figures.cached import Looked
from analytics.figures.ordering import Audit, covered
from analytics.figures.selection import Selection
from analytics.figures.success import totals
from analytics.figures.traffic import latency, messages_and_bytes
from analytics.models import Run, RunState
from analytics.pipeline.job import DAY
from analytics.ranges import LENGTHS, Range, latest
from analytics.run_requests import NotARange, request_range
from broker_project.core.admin.theme import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, page_of
from delivery.admin.read_only import ReadOnlyAdmin
from delivery.maintenance.retention import days_kept
from subscriptions.models import Subscriber

EARLIEST: Final = dt.date(2000, 1, 1)
LATEST: Final = dt.date(2999, 12, 31)
CHOICES: Final = {"24h": "24 hours", "3d": "3 days", "7d": "7 days", "28d": "28 days"}

IN_SECONDS: Final = 10_000.0
"""From so many milliseconds on a time reads better in seconds."""

FILE: Final = r"^summaries/(?P<name>[a-z_]+)\.(?P<suffix>csv|parquet)$"


class SelectionForm(forms.Form):
    """A range that ends now or with a day, of one subscriber or of all."""

    range = forms.ChoiceField(choices=[*CHOICES.items()], widget=UnfoldAdminSelectWidget)
    until = forms.DateField(
        required=False,
        widget=UnfoldAdminTextInputWidget({"type": "date"}),
        validators=[MinValueValidator(EARLIEST), MaxValueValidator(LATEST)],
        help_text="The last day; empty: up to now.",
    )
    subscriber = forms.CharField(required=False, widget=UnfoldAdminTextInputWidget, help_text="A name; empty: all.")

    @classmethod
    def of(cls, chosen: QueryDict) -> Self:
        """Return the form as it was filled in, or not yet."""
        return cls({"range": "24h", **chosen.dict()})

    def clean_subscriber(self) -> Subscriber | None:
        """Find the subscriber."""
        name = self.cleaned_data["subscriber"]
        found = Subscriber.objects.filter(name=name).first() if name else None
        if name and found is None:
            raise forms.ValidationError("There is no subscriber of this name.")
        return found

    def selection(self, now: dt.datetime) -> Selection | None:
        """Return what is chosen; None where something of it cannot be."""
        if not self.is_valid():
            return None
        length, until = LENGTHS[self.cleaned_data["range"]], self.cleaned_data["until"]
        subscriber = self.cleaned_data["subscriber"]
        asked = _ending_with(until, length) if until else latest(length, now)
        return Selection(asked, subscriber.pk if subscriber else None)


def _ending_with(day: dt.date, length: dt.timedelta) -> Range:
    end = dt.datetime.combine(day, dt.time(), dt.UTC) + DAY
    return Range(end - length, end)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number."""

    title: str
    value: str
    note: str = ""


def headline(looked: Looked) -> list[Figure]:
    """Return what one wants to know first."""
    sums, took, checked = totals(looked.selection), latency(looked.histograms), looked.audit
    published, size = messages_and_bytes(looked.selection)
    return [
        Figure("Published", f"{published:,}", f"{filesizeformat(size)}, whoever receives it"),
        Figure("Deliveries ended", f"{sums.deliveries:,}", f"{sums.delivered:,} delivered"),
        Figure("Success rate", per_cent(sums.success_rate), f"at once: {per_cent(sums.first_attempt_rate)}"),
        Figure("Published to delivered", _ms(took.p50) if took else "-", f"p50; p95 {_ms(took.p95)}" if took else ""),
        Figure("Order", _verdict(checked), f"{checked.checked:,} deliveries checked"),
    ]


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds < IN_SECONDS else f"{milliseconds / 1000:,.0f} s"


def _verdict(checked: Audit) -> str:
    if not checked.checked:
        return "-"
    return f"{checked.unexplained:,} unexplained" if checked.unexplained else "kept"


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
