"""The search page: messages or deliveries by what no index knows, and a button to go on (contract 2.16)."""

from typing import Any, Final

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from broker_project.core.admin import theme
from broker_project.core.admin.model_admin import ModelAdmin
from broker_project.core.api.pagination import Order, Page
from broker_project.core.api.problems import InvalidQuery
from delivery.admin.attempts import CALLBACK_OF_REPLY, addressee_of, events_of
from delivery.admin.filter_lab import LANGUAGE
from delivery.admin.read_only import MAX_SHOWN, STATUS_COLOURS, exact, link_to, may_see_contents
from delivery.api.searches import along_one_index, searched_deliveries, searched_messages
from delivery.models import Delivery, Message
from delivery.status.delivery_search import finder_of, in_status
from delivery.statuses import DeliveryStatus
from subscriptions.filters import validate_filter
from subscriptions.models import EventType, Publisher, Subscriber, Subscription

MESSAGES: Final = "messages"
KINDS: Final = {MESSAGES: "delivery.view_message", "deliveries": "delivery.view_delivery"}
"""What is searched for, and the permission that it takes."""
OF_CONTENTS: Final = ("idempotency_key", "header", "filter")
"""The fields that reveal something of headers and bodies: they take a permission of their own."""
TIME_HELP: Final = "UTC, such as 2026-12-24 18:00."


class SearchForm(forms.Form):
    """What is searched for; all must hold."""

    kind = forms.ChoiceField(label="Search for", widget=theme.UnfoldAdminSelectWidget)
    from_ = forms.DateTimeField(
        required=False, label="Since", widget=theme.UnfoldAdminTextInputWidget, help_text=TIME_HELP
    )
    to = forms.DateTimeField(
        required=False, label="Before", widget=theme.UnfoldAdminTextInputWidget, help_text=TIME_HELP
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
        help_text="Messages: of one of their deliveries, to the subscriber if one is chosen.",
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

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request.POST or None)
        kinds = [(kind, kind) for kind, permission in KINDS.items() if request.user.has_perm(permission)]
        self.fields["kind"] = forms.ChoiceField(choices=kinds, label="Search for", widget=theme.UnfoldAdminSelectWidget)
        for name in () if may_see_contents(request) else OF_CONTENTS:
            del self.fields[name]

    def clean(self) -> None:
        """Refuse a range that ends before it begins."""
        begin, end = self.cleaned_data.get("from_"), self.cleaned_data.get("to")
        if begin and end and begin >= end:
            self.add_error("to", "This is not after the beginning.")


def search_page(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Return the form and, once it is filled in, what was found."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    form = SearchForm(request)
    results: dict[str, object] = {}
    if form.is_bound and form.is_valid():
        try:
            results = _results(form.cleaned_data)
        except InvalidQuery:
            form.add_error(None, "This search cannot be continued. Start again.")
    return admin.page(
        request,
        "delivery/search.html",
        "Search",
        form=form,
        may_see_contents=may_see_contents(request),
        **results,
    )


def _results(values: dict[str, Any]) -> dict[str, object]:
    """Return what the page shows."""
    query = {name.rstrip("_"): value for name, value in values.items() if value}
    query |= {name: query[name].name for name in ("event_type", "publisher", "subscriber") if name in query}
    query["limit"], order = MAX_SHOWN, Order(f"admin {values['kind']}", descending=True)
    page: Page[Any]
    page, found = (_messages if values["kind"] == MESSAGES else _deliveries)(query, order)
    return {
        "number": len(page.rows),
        "kind": values["kind"],
        "found": found,
        "cursor": page.next,
        "searched_until": page.searched_until and exact(page.searched_until),
    }


def _messages(query: dict[str, Any], order: Order) -> tuple[Page[Message], str]:
    rows = Message.objects.select_related("event_type", "publisher").filter(answers=None).defer("body", "headers")
    page = searched_messages(along_one_index(rows, query), rows, order, query)
    cells = [
        [
            link_to("delivery_message", one.pk),
            one.event_type,
            one.publisher or "-",
            one.outcome,
            theme.relative(one.published_at),
        ]
        for one in page.rows
    ]
    return page, theme.table(["message", "event type", "publisher", "outcome", "published"], cells)


def _deliveries(query: dict[str, Any], order: Order) -> tuple[Page[Delivery], str]:
    rows: QuerySet[Delivery] = Delivery.objects.select_related("subscription__subscriber", "subscription__event_type")
    if "status" in query:
        rows = in_status(rows, query["status"])
    ids = None
    if "subscriber" in query:
        owned = Subscription.objects.filter(subscriber__name=query["subscriber"])
        ids = [*owned.values_list("pk", flat=True)]
    page = searched_deliveries(rows, order, query, finder_of(ids, query.get("status")))
    CALLBACK_OF_REPLY.load(page.rows)
    now = timezone.now()
    cells = [
        [
            link_to("delivery_delivery", one.pk),
            link_to("delivery_message", one.message_id),
            addressee_of(one),
            events_of(one),
            theme.badge(DeliveryStatus(one.status_at(now)), STATUS_COLOURS),
            theme.relative(one.created_at),
        ]
        for one in page.rows
    ]
    return page, theme.table(["delivery", "message", "subscriber", "event type", "status", "created"], cells)
