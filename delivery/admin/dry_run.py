"""The dry run: the page that says who would get an event, and why each other subscription would not (contract 2.15)."""

from typing import Any, Final

from django import forms
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join

from broker_project.core.admin import theme
from broker_project.core.admin.model_admin import ModelAdmin
from delivery.admin.filter_lab import term_cells
from delivery.admin.read_only import MAX_SHOWN, id_in, subscription_link
from delivery.playground.dry_run import DryRunDecision, Place, Plan, decisions, plan_of
from delivery.publish.check import ANY_KIND, Submission, check
from delivery.publish.draft import Draft
from delivery.publish.errors import Refusal, RefusedItems
from delivery.publish.publish import REFUSED_WITH, publish_terms
from subscriptions.models import EventType, Publisher

COLOURS: Final = {
    DryRunDecision.RECEIVES: "success",
    DryRunDecision.PAUSED: "warning",
    DryRunDecision.FILTER_FAILS: "danger",
    DryRunDecision.INACTIVE: "warning",
}


class DryRunForm(forms.Form):
    """An event as a publisher would send it."""

    event_type = forms.ModelChoiceField(
        EventType.objects.configured().order_by("name"), widget=theme.UnfoldAdminSelectWidget
    )
    publisher = forms.ModelChoiceField(
        Publisher.objects.order_by("name"),
        required=False,
        widget=theme.UnfoldAdminSelectWidget,
        help_text="Whose limits and event types count. Leave empty for management.",
    )
    body = forms.CharField(
        required=False, strip=False, widget=theme.UnfoldAdminTextareaWidget({**theme.CODE, "rows": 6})
    )
    headers = forms.CharField(
        required=False,
        widget=theme.UnfoldAdminTextareaWidget({**theme.CODE, "rows": 3}),
        help_text="One per line, such as X-Team: blue.",
    )
    filter_string = forms.CharField(
        required=False, strip=False, label="FILTER_STRING", widget=theme.UnfoldAdminTextInputWidget
    )
    destination = forms.CharField(
        required=False, widget=theme.UnfoldAdminTextInputWidget, help_text="As Broker-Destination. Leave empty for all."
    )
    decision = forms.ChoiceField(
        choices=[("", "all"), *DryRunDecision.choices],
        required=False,
        label="Show",
        widget=theme.UnfoldAdminSelectWidget,
    )
    after = forms.RegexField(r"^[0-9]-[0-9]{1,18}\Z", required=False, widget=forms.HiddenInput)
    """Where the page begins: the rank of a decision, and a subscription."""

    def clean_headers(self) -> list[tuple[str, str]]:
        """Return the headers as pairs."""
        pairs = [line.partition(":") for line in self.cleaned_data["headers"].splitlines() if line.strip()]
        if any(not colon for _, colon, _ in pairs):
            raise forms.ValidationError("Write one header per line, as in X-Team: blue.")
        return [(name.strip(), value.strip()) for name, _, value in pairs]


def dry_run_page(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Return the form and, once it is filled in, who would get the event."""
    if not (admin.has_view_permission(request) and request.user.has_perm("subscriptions.view_subscription")):
        raise PermissionDenied
    chosen = EventType.objects.filter(pk=id_in(request.GET, "event_type") or 0).first()
    initial = {"event_type": chosen, "body": chosen.sample if chosen else ""}
    form = DryRunForm(request.POST or None, initial=initial)
    results: dict[str, object] = {}
    if form.is_bound and form.is_valid():
        try:
            results = _results(form.cleaned_data)
        except (Refusal, *REFUSED_WITH) as refused:
            form.add_error(None, f"Publishing it would be refused: {refused}")
    return admin.page(request, "delivery/dry_run.html", "Dry run", form=form, **results)


def _results(values: dict[str, Any]) -> dict[str, object]:
    """Return what the page shows; raise as `publish`."""
    plan = _plan_of(values)
    rank, _, subscription_id = (values["after"] or "0-0").partition("-")
    only = DryRunDecision(values["decision"]) if values["decision"] else None
    page = decisions(plan, after=Place(int(rank), int(subscription_id)), limit=MAX_SHOWN, only=only)
    rows: list[list[object]] = []
    for one in page.found:
        terms = format_html_join("", '<div class="py-1">{1} {0} — {2}</div>', term_cells(one.verdict.filter))
        why = f"{one.why} Group {one.group}." if one.group else one.why
        rows.append([subscription_link(one.subscription), theme.badge(one.decision, COLOURS), why, terms])
    return {
        "plan": plan,
        "counts": [(theme.badge(one, COLOURS), page.counts[one]) for one in DryRunDecision if one in page.counts],
        "subscriptions": theme.table(["subscription", "decision", "because", "term by term"], rows),
        "next": page.next and f"{page.next.rank}-{page.next.subscription_id}",
    }


def _plan_of(values: dict[str, Any]) -> Plan:
    draft = Draft(
        values["event_type"].name,
        values["body"].replace("\r\n", "\n").encode(),  # browsers send CRLF
        headers=values["headers"],
        filter_string=values["filter_string"] or None,
        destination=values["destination"] or None,
    )
    publisher: Publisher | None = values["publisher"]
    submission = Submission([draft], publisher.pk if publisher else None, kinds=ANY_KIND)
    try:
        (message,) = check(submission, max_bytes=settings.MAX_BODY_BYTES)
        return plan_of(message, publish_terms(), max_open=publisher.max_open_messages if publisher else None)
    except RefusedItems as refused:
        raise refused.refusals[0] from None
