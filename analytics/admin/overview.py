"""The page of summaries: charts and tables of a range, downloads, and a button that brings it up to date."""

import datetime as dt
from typing import Final

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, re_path, reverse
from django.utils import timezone

from analytics.admin.headline import headline
from analytics.admin.sections import SECTIONS
from analytics.api.summaries import file_of, summary_named
from analytics.figures.looked import Looked
from analytics.figures.selecting import Selection
from analytics.models import Run
from analytics.ranges import DAY, LENGTHS, Range, latest
from analytics.requesting import NotARange, request_range
from delivery.admin.read_only import ReadOnlyAdmin
from delivery.retention.kept_days import days_kept
from subscriptions.admin.theme import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, page_of
from subscriptions.models import Subscriber

FILE: Final = r"^summaries/(?P<name>[a-z_]+)\.(?P<suffix>csv|parquet)$"
EARLIEST: Final = dt.date(2000, 1, 1)
LATEST: Final = dt.date(2999, 12, 31)
CHOICES: Final = {"24h": "24 hours", "3d": "3 days", "7d": "7 days", "28d": "28 days"}


class SelectionForm(forms.Form):
    """What is looked at."""

    range = forms.ChoiceField(choices=[*CHOICES.items()], widget=UnfoldAdminSelectWidget, required=False)
    until = forms.DateField(
        required=False,
        widget=UnfoldAdminTextInputWidget({"type": "date"}),
        validators=[MinValueValidator(EARLIEST), MaxValueValidator(LATEST)],
        help_text="The last day; empty: up to now.",
    )
    subscriber = forms.CharField(required=False, widget=UnfoldAdminTextInputWidget, help_text="A name; empty: all.")

    def clean_subscriber(self) -> Subscriber | None:
        """Find the subscriber."""
        name = self.cleaned_data["subscriber"]
        found = Subscriber.objects.filter(name=name).first() if name else None
        if name and found is None:
            raise forms.ValidationError("There is no subscriber of this name.")
        return found

    def selection(self, now: dt.datetime) -> Selection:
        """Return what it selects; what is unusable selects as if it were not there."""
        chosen = self.cleaned_data if self.is_valid() else {**dict.fromkeys(self.fields), **self.cleaned_data}
        subscriber = chosen["subscriber"]
        return Selection(_range(chosen["range"], chosen["until"], now), subscriber.pk if subscriber else None)


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
        form = SelectionForm({"range": "24h", **request.GET.dict()})
        selection = form.selection(timezone.now())
        looked = Looked(selection)
        context = {
            **self.admin_site.each_context(request),
            **page_of(self, "Summaries"),
            "form": form,
            "selection": selection,
            "figures": headline(looked),
            "sections": [section(looked) for section in SECTIONS],
            "last_run": Run.objects.order_by("-pk").first(),
            "days_kept": days_kept(),
            "may_run": request.user.has_perm("analytics.add_run"),
            "query": request.GET.urlencode(),
        }
        return TemplateResponse(request, "analytics/overview.html", context)

    def download(self, request: HttpRequest, name: str, suffix: str) -> HttpResponseBase:
        """Send one summary's rows of the range that is looked at."""
        self._check(request, "view")
        summary = summary_named(name)
        selection = SelectionForm({"range": "24h", **request.GET.dict()}).selection(timezone.now())
        narrows = selection.subscriber_id and "subscriber_id" in summary.columns
        values = {"subscriber_id": selection.subscriber_id} if narrows else {}
        return file_of(summary, selection.range, values, suffix)

    def summarize(self, request: HttpRequest) -> HttpResponse:
        """Ask for a run over the range that is looked at, as far as it is over."""
        self._check(request, "add")
        if request.method == "POST":
            asked = SelectionForm({"range": "24h", **request.POST.dict()}).selection(timezone.now()).range
            self._request(request, asked, again="again" in request.POST)
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


def _range(name: str | None, until: dt.date | None, now: dt.datetime) -> Range:
    length = LENGTHS.get(name or "", DAY)
    if until is None:
        return latest(length, now)
    end = dt.datetime.combine(until, dt.time(), dt.UTC) + DAY
    return Range(end - length, end)


def _user(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None
