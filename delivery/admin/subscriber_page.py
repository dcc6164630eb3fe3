"""A subscriber as a place in the admin: how it is doing, its deliveries and subscriptions, and the way to the rest."""

from collections.abc import Sequence
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from broker_project.core.admin.model_admin import ModelAdmin
from broker_project.core.admin.theme import badge, compact_table, copyable, label, link, relative, table
from delivery.admin.lines import LINE_COLOURS, STATUS, holds_table
from delivery.admin.mailboxes import mailbox_link
from delivery.admin.queue_groups import SHOWN_WITH, deliveries_table
from delivery.admin.read_only import MAX_SHOWN, counted, link_to, link_to_list
from delivery.models import Delivery, Lane, Line
from delivery.status.delivery_search import REASONS, dead_letters, deliveries_of
from delivery.status.line_status import LineState
from delivery.status.subscriber_status import subscriber_status
from subscriptions.models import DeliveryMode, Status, Subscriber, Subscription

NEEDED: Final = "delivery.view_delivery"
"""The permission that it takes to see what waits, and why."""
NEWEST: Final = 10
"""Deliveries of each kind in the overview."""
SUBSCRIPTION_COLOURS: Final = {"active": "success", "paused": "warning", "suspended": "danger", "inactive": "danger"}


def head_of(subscriber: Subscriber, request: HttpRequest, tab: str) -> dict[str, Any]:
    """Return what stands above each of its pages: its state in one sentence, and the pages."""
    now = timezone.now()
    status = subscriber_status(subscriber, now) if request.user.has_perm(NEEDED) else None
    subscriptions = Subscription.objects.filter(subscriber=subscriber)
    tabs = {name: _address(subscriber, name.lower()) for name in ("Overview", "Deliveries", "Subscriptions")}
    if subscriptions.filter(delivery_mode=DeliveryMode.PULL).exists():
        tabs["Mailbox"] = reverse("admin:delivery_mailbox_change", args=[subscriber.pk])
    tabs["Numbers"] = f"{reverse('admin:analytics_run_live')}?subscriber={subscriber.pk}"
    tabs["Settings"] = reverse("admin:subscriptions_subscriber_change", args=[subscriber.pk])
    return {
        "state": status and badge(status.state, LINE_COLOURS),
        "sentence": status and status.sentence(now),
        "tabs": tabs,
        "tab": tab,
    }


def _address(subscriber: Subscriber, tab: str) -> str:
    return reverse("admin:subscriptions_subscriber_place", args=[subscriber.pk, tab])


def overview_link(subscriber: Subscriber) -> SafeString:
    """Return a link to its overview."""
    return link(_address(subscriber, "overview"), subscriber)


def subscriber_page(admin: ModelAdmin, request: HttpRequest, object_id: int, tab: str) -> HttpResponse:
    """Return one of its pages."""
    subscriber = Subscriber.objects.filter(pk=object_id).first()
    if subscriber is None or tab not in SECTIONS:
        raise Http404
    if not admin.has_view_permission(request):
        raise PermissionDenied
    if not request.user.has_perm(NEEDED):
        return HttpResponseRedirect(admin.change_url(object_id))
    context = {**head_of(subscriber, request, tab.capitalize()), "sections": SECTIONS[tab](subscriber)}
    return admin.page(request, "delivery/subscriber_page.html", f"{subscriber}", **context)


def _overview(subscriber: Subscriber) -> dict[str, object]:
    ids = _subscription_ids(subscriber)
    failed = dead_letters(REASONS, ids, key=None, downwards=True, limit=NEWEST)
    box = mailbox_link(subscriber)
    lines = [*Line.objects.filter(subscriber=subscriber).order_by("lane")]
    STATUS.load(lines)
    return {
        "What waits": _lines(lines),
        **({"Mailbox": box} if box != "-" else {}),
        "Blocked deliveries": holds_table(hold for line in lines for hold in STATUS.of(line).holds[:NEWEST]),
        "Newest failures": _deliveries(failed),
        "Newest deliveries": _deliveries(deliveries_of(ids, None, key=None, downwards=True, limit=NEWEST)),
    }


def _lines(lines: Sequence[Line]) -> SafeString:
    """Return a table of lines, and what waits in each."""
    rows = [
        [
            link_to("delivery_line", line.pk, Lane(line.lane).label),
            badge(status.state, LINE_COLOURS),
            counted(status.waiting),
            counted(status.deferred),
            relative(status.deferred_due_at),
            counted(status.awaiting_release),
        ]
        for line in lines
        if (status := STATUS.of(line)).state != LineState.IDLE or line.lane == Lane.MAIN
    ]
    return table(["line", "state", "waiting", "to be retried", "next retry", "needs decision"], rows)


def _newest(subscriber: Subscriber) -> dict[str, object]:
    ids = deliveries_of(_subscription_ids(subscriber), None, key=None, downwards=True, limit=MAX_SHOWN)
    main = Line.objects.get(subscriber=subscriber, lane=Lane.MAIN)
    more = [[link_to_list("delivery_delivery", "More, with filters", line__id__exact=main.pk)]]
    return {f"The newest {MAX_SHOWN}": _deliveries(ids, more)}


def _deliveries(ids: Sequence[int], more: Sequence[Sequence[object]] = ()) -> SafeString | str:
    """Return these deliveries, the newest first; a dash without any."""
    found = Delivery.objects.filter(pk__in=ids).select_related(*SHOWN_WITH).order_by("-pk")
    return deliveries_table(found, more) if ids else "-"


def _subscriptions(subscriber: Subscriber) -> dict[str, object]:
    found = Subscription.objects.filter(subscriber=subscriber).select_related("subscriber", "event_type")
    rows = [
        [
            link_to("subscriptions_subscription", one.pk, one.events),
            copyable(one.endpoint, "endpoint") if one.endpoint else "mailbox",
            _state_of(one),
            relative(one.updated_at),
        ]
        for one in found.order_by("position", "pk")[:MAX_SHOWN]
    ]
    add = reverse("admin:subscriptions_subscription_add")
    more = link_to_list("subscriptions_subscription", "All, with filters", subscriber__id__exact=subscriber.pk)
    return {
        f"The first {MAX_SHOWN}": compact_table(["Events", "Sent to", "State", "Changed"], rows) if rows else "-",
        "More": table([], [[more], [link(f"{add}?subscriber={subscriber.pk}", "Add a subscription")]]),
    }


def _state_of(subscription: Subscription) -> SafeString:
    state = "active"
    if subscription.status != Status.ACTIVE:
        state = "inactive"
    elif subscription.paused_since:
        state = "suspended" if subscription.paused_by == "POLICY" else "paused"
    return label(state, SUBSCRIPTION_COLOURS[state])


def _subscription_ids(subscriber: Subscriber) -> list[int]:
    return [*Subscription.objects.filter(subscriber=subscriber).values_list("pk", flat=True)]


SECTIONS: Final = {"overview": _overview, "deliveries": _newest, "subscriptions": _subscriptions}
"""By the name of the page in its address: what it shows, by title."""
