"""The filter lab: the page that shows what a filter makes of a stored message, term by term."""

from collections.abc import Iterator
from typing import Any, Final

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin import theme
from broker_project.core.admin.model_admin import ModelAdmin
from broker_project.core.api.fields import id_of
from delivery.admin.read_only import id_in, may_see_contents, payload_of
from delivery.models import Message
from delivery.playground.trials import try_filters
from delivery.status.explain_message import filter_input_of
from delivery.statuses import MESSAGE_ID_PREFIX
from subscriptions import filters
from subscriptions.models import EventType, Subscription
from subscriptions.models.subscriptions import MAX_FILTER_STRING_LENGTH

RESULT_COLOURS: Final = {
    filters.Result.TRUE: "success",
    filters.Result.FALSE: "danger",
    filters.Result.NULL: "warning",
    filters.Result.FAILED: "danger",
}
TERM_HEADERS: Final = ("term", "is", "found in the message")
LANGUAGE: Final = (
    "$$->'Body'->>'state' = 'open' AND $$->'Header'->'X-Team'->>0 = 'blue'; the language: docs/reference/filters.md"
)


def verdict_label(verdict: filters.MatchExplanation) -> SafeString:
    """Return whether a message qualifies."""
    if verdict.is_unknown:
        return theme.label("held", "warning")
    return theme.label("receives it", "success") if verdict.qualifies else theme.label("does not", "danger")


def term_cells(explanation: filters.Explanation | None) -> list[list[SafeString]]:
    """Return each term of a filter, whether it is true, and what it found in the message or why it failed."""
    return [
        [
            _code(term.text),
            theme.label(term.result.value, RESULT_COLOURS[term.result]),
            format_html("{}", term.reason) if term.reason else format_html_join(" ", "{}", zip(_values(term))),
        ]
        for term in (explanation.terms if explanation else ())
    ]


def _values(term: filters.TermResult) -> Iterator[SafeString]:
    """Yield the values that a term read, each with its path if there are two."""
    for found in term.values:
        value = format_html("<em>{}</em>", "nothing") if found.value is None else _code(found.value)
        yield format_html("<div>{} is {}</div>", _code(found.path), value) if len(term.values) > 1 else value


def _code(text: str) -> SafeString:
    return format_html('<code class="font-mono text-xs" style="overflow-wrap: anywhere">{}</code>', text)


class LabForm(forms.Form):
    """A filter, and a message to try it on."""

    event_type = forms.ModelChoiceField(
        EventType.objects.order_by("name"), required=False, widget=theme.UnfoldAdminSelectWidget
    )
    message = forms.CharField(
        required=False,
        widget=theme.UnfoldAdminTextInputWidget,
        help_text="A message id. Leave empty for the newest message of the event type.",
    )
    header_filter_string = forms.CharField(
        required=False, max_length=MAX_FILTER_STRING_LENGTH, strip=False, widget=theme.UnfoldAdminTextInputWidget
    )
    filter = forms.CharField(
        required=False,
        validators=[filters.validate_filter],
        widget=theme.UnfoldAdminTextareaWidget({**theme.CODE, "rows": 6}),
        help_text=LANGUAGE,
    )

    def clean_message(self) -> int | None:
        """Return the id of the message; refuse what no message could have."""
        text = self.cleaned_data["message"]
        number = id_of(text, MESSAGE_ID_PREFIX)
        if text and not number:
            raise forms.ValidationError("Enter the id of a message, such as msg_2611270000000042.")
        return number

    def clean(self) -> dict[str, Any]:
        """Add the message as `found`."""
        event_type, message_id = self.cleaned_data.get("event_type"), self.cleaned_data.get("message")
        found, missing = None, "Choose an event type, or enter a message id."
        if message_id:
            found = Message.objects.select_related("event_type").filter(pk=message_id).first()
            missing = "There is no such message."
            if found and event_type and found.event_type != event_type:
                self.add_error("message", f"This message has the event type {found.event_type}; choose that, or none.")
        elif event_type:
            found = Message.objects.filter(event_type=event_type, answers=None).order_by("-pk").first()
            missing = "No message of this event type is stored yet."
        if found is None and "message" not in self.errors:
            self.add_error("message", missing)
        return {**self.cleaned_data, "found": found}


def filter_lab_page(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Return the form and, once it is filled in, what the filters make of the message.

    Filters reveal what is in a message, so trying them takes the permission to see contents.
    """
    if not admin.has_view_permission(request):
        raise PermissionDenied
    subscription = None
    if (subscription_id := id_in(request.GET, "subscription")) is not None:
        if not request.user.has_perm("subscriptions.view_subscription"):
            raise PermissionDenied
        subscriptions = Subscription.objects.select_related("subscriber", "event_type")
        subscription = get_object_or_404(subscriptions, pk=subscription_id)
    filled = request.POST if request.method == "POST" else _from_address(request, subscription)
    needs_type = request.method != "POST" and subscription is not None and subscription.event_type is None
    form = LabForm(initial=filled) if needs_type else LabForm(filled or None)
    is_hidden = not may_see_contents(request)
    results = _results(form.cleaned_data) if not is_hidden and form.is_bound and form.is_valid() else {}
    context = {"form": form, "subscription": subscription, "is_hidden": is_hidden, **results}
    return admin.page(request, "delivery/filter_lab.html", "Filter lab", **context)


def _from_address(request: HttpRequest, subscription: Subscription | None) -> dict[str, Any]:
    """Return what the page that led here fills the form with: a subscription's or a message's."""
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
    verdict = filters.judge(filter_input_of(message), header_filter_string=header_filter_string, filter_text=text)
    wanted = filters.parse_filter(text) if text else None
    return {
        "message": message,
        "verdict": verdict,
        "verdict_label": verdict_label(verdict),
        "terms": theme.table(TERM_HEADERS, term_cells(verdict.filter)) if verdict.filter else "",
        "payload": payload_of(message),
        "trial": try_filters(wanted, message.event_type, header_filter_string=header_filter_string)
        if (wanted or header_filter_string) and message.event_type
        else None,
    }
