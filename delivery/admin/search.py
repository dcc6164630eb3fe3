"""The search page: messages by what no index knows, and a button to go on with older ones (contract 2.16)."""

from typing import Any, Final

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from broker_project.core.admin import theme
from broker_project.core.admin.model_admin import ModelAdmin
from broker_project.core.api.pagination import Order
from broker_project.core.api.problems import InvalidQuery
from delivery.admin.filter_lab import LANGUAGE
from delivery.admin.read_only import MAX_SHOWN, instant, link_to, may_see_contents
from delivery.api.searches import searched_messages
from delivery.models import Message
from delivery.statuses import DeliveryStatus
from subscriptions.filters import validate_filter
from subscriptions.models import EventType, Publisher, Subscriber

ORDER: Final = Order("admin-search", descending=True)
TIME_HELP: Final = "UTC, such as 2026-12-24 18:00."


class SearchForm(forms.Form):
    """What is searched for; all must hold."""

    from_ = forms.DateTimeField(
        required=False, label="Published since", widget=theme.UnfoldAdminTextInputWidget, help_text=TIME_HELP
    )
    to = forms.DateTimeField(
        required=False, label="Published before", widget=theme.UnfoldAdminTextInputWidget, help_text=TIME_HELP
    )
    event_type = forms.ModelChoiceField(
        EventType.objects.order_by("name"), required=False, widget=theme.UnfoldAdminSelectWidget
    )
    publisher = forms.ModelChoiceField(
        Publisher.objects.order_by("name"), required=False, widget=theme.UnfoldAdminSelectWidget
    )
    subscriber = forms.ModelChoiceField(
        Subscriber.objects.order_by("name"), required=False, widget=theme.UnfoldAdminSelectWidget
    )
    status = forms.ChoiceField(
        choices=[("", "any"), *DeliveryStatus.choices],
        required=False,
        widget=theme.UnfoldAdminSelectWidget,
        help_text="Of a delivery of the message, to the subscriber if one is chosen.",
    )
    idempotency_key = forms.CharField(required=False, widget=theme.UnfoldAdminTextInputWidget)
    header = forms.CharField(
        required=False, widget=theme.UnfoldAdminTextInputWidget, help_text="Such as X-Team, or X-Team: blue."
    )
    filter = forms.CharField(
        required=False,
        validators=[validate_filter],
        widget=theme.UnfoldAdminTextareaWidget({**theme.CODE, "rows": 3}),
        help_text=LANGUAGE,
    )
    cursor = forms.CharField(required=False, widget=forms.HiddenInput)


def search_page(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Return the form and, once it is filled in, what was found; a search reveals what is in messages."""
    if not (admin.has_view_permission(request) and may_see_contents(request)):
        raise PermissionDenied
    form = SearchForm(request.POST or None)
    results: dict[str, object] = {}
    if form.is_bound and form.is_valid():
        try:
            results = _results(form.cleaned_data)
        except InvalidQuery:
            form.add_error(None, "This search cannot be continued. Start again.")
    return admin.page(request, "delivery/search.html", "Search messages", form=form, **results)


def _results(values: dict[str, Any]) -> dict[str, object]:
    query = {name.rstrip("_"): value for name, value in values.items() if value}
    query |= {name: query[name].name for name in ("event_type", "publisher", "subscriber") if name in query}
    rows = Message.objects.select_related("event_type", "publisher").filter(answers=None).defer("body", "headers")
    along = rows
    if values["event_type"]:
        along = rows.filter(event_type=values["event_type"])
    elif values["publisher"]:
        along = rows.filter(publisher=values["publisher"])
    page = searched_messages(along, rows, ORDER, {"limit": MAX_SHOWN, **query})
    found = [
        (
            link_to("delivery_message", one.pk),
            one.event_type,
            one.publisher or "-",
            one.outcome,
            instant(one.published_at),
        )
        for one in page.rows
    ]
    return {
        "messages_found": len(found),
        "found": theme.table(["message", "event type", "publisher", "outcome", "published"], found),
        "cursor": page.next,
        "searched_until": page.searched_until and instant(page.searched_until),
    }
