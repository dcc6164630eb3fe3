"""The filter lab: see what a filter makes of a stored message, term by term."""

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    action,
    for_code,
    label,
    page_of,
    table,
)
from delivery.admin.contents import ContentsAdmin, may_see_contents, payload_of
from delivery.admin.read_only import MAX_ID_DIGITS
from delivery.models import Message
from delivery.playground.trials import newest_of, try_filters
from delivery.status.explain_message import shown_of
from subscriptions.filter_verdict import Verdict, judge
from subscriptions.filters import Explanation, Result, TermResult, parse_filter, validate_filter
from subscriptions.models import EventType, Subscription
from subscriptions.models.subscriptions import MAX_FILTER_STRING_LENGTH

COLOURS: Final = {Result.TRUE: "success", Result.FALSE: "danger", Result.NULL: "warning", Result.FAILED: "danger"}
NOTHING: Final = "nothing"

LARGEST_ID: Final = 10**MAX_ID_DIGITS - 1
LANGUAGE: Final = (
    "$$->'Body'->>'state' = 'open' AND $$->'Header'->'X-Team'->>0 = 'blue'; all of it: docs/reference/filters.md"
)


def verdict_label(verdict: Verdict) -> SafeString:
    """Return whether a message qualifies."""
    if verdict.is_unknown:
        return label("held", "warning")
    return label("gets it", "success") if verdict.qualifies else label("does not", "danger")


def result_label(result: Result) -> SafeString:
    """Return what a filter or a term of it is."""
    return label(result.value, COLOURS[result])


def terms_table(explanation: Explanation) -> SafeString:
    """Return the terms of a filter, one a row."""
    rows = [[_code(term.text), result_label(term.result), _found(term)] for term in explanation.terms]
    return table(["term", "is", "found in the message"], rows)


def terms_list(explanation: Explanation | None) -> SafeString:
    """Return the terms of a filter within one cell."""
    terms = explanation.terms if explanation else ()
    rows = ((result_label(term.result), _code(term.text), _found(term)) for term in terms)
    return format_html_join("", '<div class="py-1">{} {} — {}</div>', rows)


def _found(term: TermResult) -> SafeString:
    """Return the values a term looked at, which path had which where there are two; or why it failed."""
    return format_html("{}", term.reason) if term.reason else format_html_join(" ", "{}", zip(_values(term)))


def _values(term: TermResult) -> Iterator[SafeString]:
    for found in term.values:
        value = format_html("<em>{}</em>", NOTHING) if found.value is None else _code(found.value)
        yield format_html("<div>{} is {}</div>", _code(found.path), value) if len(term.values) > 1 else value


def _code(text: str) -> SafeString:
    return format_html('<code class="font-mono text-xs" style="overflow-wrap: anywhere">{}</code>', text)


class LabForm(forms.Form):
    """A filter, and a message to try it on."""

    event_type = forms.ModelChoiceField(
        EventType.objects.order_by("name"), required=False, widget=UnfoldAdminSelectWidget
    )
    message = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=LARGEST_ID,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Its id; empty: the event type's newest.",
    )
    header_filter_string = forms.CharField(
        required=False, max_length=MAX_FILTER_STRING_LENGTH, strip=False, widget=UnfoldAdminTextInputWidget
    )
    filter = forms.CharField(
        required=False,
        validators=[validate_filter],
        widget=UnfoldAdminTextareaWidget({"rows": 6}),
        help_text=LANGUAGE,
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for_code(self.fields["filter"].widget)

    def clean(self) -> dict[str, Any]:
        """Find the message."""
        event_type, message_id = self.cleaned_data.get("event_type"), self.cleaned_data.get("message")
        if message_id:
            found = Message.objects.select_related("event_type").filter(pk=message_id).first()
            if found and event_type and found.event_type != event_type:
                self.add_error("message", f"This message is of {found.event_type}; choose that event type, or none.")
        else:
            found = newest_of(event_type) if event_type else None
        if found is None and "message" not in self.errors:
            self.add_error("message", "There is no such message." if message_id else _nothing_of(event_type))
        return {**self.cleaned_data, "found": found}


class FilterLabAdmin(ContentsAdmin[Message]):
    """Messages, with the page on which filters are tried."""

    actions_detail: ClassVar[tuple[str, ...]] = ("try_filters",)

    def get_urls(self) -> list[URLPattern]:
        """Return the page's address too."""
        lab = path("filter-lab/", self.admin_site.admin_view(self.filter_lab), name="delivery_message_filter_lab")
        return [lab, *super().get_urls()]

    @action(description="Try filters on it", permissions=["view"], icon="science")
    def try_filters(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the lab, with this message."""
        return HttpResponseRedirect(f"{reverse('admin:delivery_message_filter_lab')}?message={object_id}")

    def filter_lab(self, request: HttpRequest) -> HttpResponse:
        """Show the form and, once it is filled in, what came of it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        subscription = _subscription_of(request)
        filled = request.POST if request.method == "POST" else _from_address(request, subscription)
        needs_type = request.method != "POST" and subscription is not None and subscription.event_type is None
        form = LabForm(initial=filled) if needs_type else LabForm(filled or None)
        context = {
            **self.admin_site.each_context(request),
            **page_of(self, "Filter lab"),
            "form": form,
            "subscription": subscription,
            "is_hidden": not may_see_contents(request),
            **(_results(form.cleaned_data) if _is_to_be_tried(request, form) else {}),
        }
        return TemplateResponse(request, "delivery/filter_lab.html", context)


def _is_to_be_tried(request: HttpRequest, form: LabForm) -> bool:
    """Tell whether there is anything to try, and for whom: filter by filter the lab tells all that a message has."""
    return may_see_contents(request) and form.is_bound and form.is_valid()


def _subscription_of(request: HttpRequest) -> Subscription | None:
    """Return the subscription whose page led here."""
    asked = request.GET.get("subscription", "")
    if not asked.isdecimal() or len(asked) > MAX_ID_DIGITS:
        return None
    if not request.user.has_perm("subscriptions.view_subscription"):
        raise PermissionDenied
    return get_object_or_404(Subscription.objects.select_related("subscriber", "event_type"), pk=int(asked))


def _from_address(request: HttpRequest, subscription: Subscription | None) -> dict[str, object]:
    """Return what the form is filled with by whoever led here: a subscription's page or a message's."""
    if subscription is None:
        return {name: request.GET[name] for name in ("event_type", "message") if name in request.GET}
    return {
        "event_type": subscription.event_type_id,
        "header_filter_string": subscription.header_filter_string,
        "filter": subscription.filter,
    }


def _results(values: dict[str, Any]) -> dict[str, object]:
    """Return what the page shows of a message and the filters."""
    message: Message = values["found"]
    text, header_filter_string = values["filter"], values["header_filter_string"]
    verdict = judge(shown_of(message), header_filter_string=header_filter_string, filter_text=text)
    wanted = parse_filter(text) if text else None
    return {
        "message": message,
        "verdict": verdict,
        "verdict_label": verdict_label(verdict),
        "terms": terms_table(verdict.filter) if verdict.filter else "",
        "payload": payload_of(message),
        "trial": try_filters(wanted, message.event_type, header_filter_string=header_filter_string)
        if (wanted or header_filter_string) and message.event_type
        else None,
    }


def _nothing_of(event_type: EventType | None) -> str:
    if event_type is None:
        return "Choose an event type, or give a message's id."
    return "No message of this event type is stored yet."
