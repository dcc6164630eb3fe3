"""Mailboxes in the admin: what waits, what clients hold, and how to return or purge it."""

import re
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final, NamedTuple

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.safestring import SafeString

from broker_project.core.admin.model_admin import Prefetched, action, column, permission, state_column
from broker_project.core.admin.theme import ActionVariant, link, relative, table_or_dash
from delivery.admin.attempts import events_of
from delivery.admin.read_only import (
    MAX_SHOWN,
    ReadOnlyAdmin,
    counted,
    id_in,
    link_to,
    link_to_list,
    plural,
    yes_or_no,
)
from delivery.mailbox.acknowledge import MAX_RECEIPTS, ReceiptCode, nack
from delivery.mailbox.available import status_if_returned
from delivery.mailbox.mailbox_status import MAX_COUNTED, MailboxStatus, mailboxes_of
from delivery.mailbox.receipts import Receipt
from delivery.mailbox.unread import purge
from delivery.models import Delivery, Lane, Mailbox
from delivery.operations import CANCEL_SECONDS
from delivery.status.delivery_search import fetched_by_clients
from delivery.statuses import DeliveryStatus
from subscriptions.admin.configured import ACTIVATION_COLOURS
from subscriptions.models import DeliveryMode, Status, Subscriber, Subscription

CHOSEN: Final = re.compile(r"(\d{1,18})\.(\d{1,18})", re.ASCII)
"""A delivery, and the id of its fetch."""
END_REASONS: Final = {
    DeliveryStatus.CANCELLED: "its cancellation was requested",
    DeliveryStatus.FAILED: "its redeliveries are used up",
}
COUNTS: Final = ("available", "oldest", "in_flight", "waiting", "redelivered", "expired")

STATUS: Final = Prefetched[Subscriber, MailboxStatus]("mailbox", lambda rows: mailboxes_of([row.pk for row in rows]))


def with_mailbox(subscribers: "QuerySet[Mailbox]") -> "QuerySet[Mailbox]":
    """Keep the subscribers with a PULL subscription."""
    pulled = Subscription.objects.filter(delivery_mode=DeliveryMode.PULL)
    return subscribers.filter(pk__in=pulled.values("subscriber_id"))


def mailbox_link(subscriber: Subscriber) -> SafeString | str:
    """Return a link to a subscriber's mailbox that says what is in it; a dash if it has none."""
    box = with_mailbox(Mailbox.objects.filter(pk=subscriber.pk)).first()
    if box is None:
        return "-"
    status = STATUS.of(box)
    return link_to("delivery_mailbox", box.pk, f"{_counted(status.available)} available, {_in_flight(box)}")


def _counted(number: int) -> str:
    return counted(number, limit=MAX_COUNTED)


def _in_flight(box: Mailbox) -> str:
    return f"{_counted(STATUS.of(box).in_flight)} in flight"


def fetched(box: Mailbox, only: int | None = None) -> list[Delivery]:
    """Return what clients hold and have not acknowledged, next to time out first, as much as a page shows.

    Or only that one delivery, wherever it stands among them.
    """
    if only is None:
        found = Delivery.objects.open().filter(pk__in=fetched_by_clients(box.pk, limit=MAX_SHOWN))
    else:
        found = Delivery.objects.open().filter(pk=only, subscription__subscriber=box.pk, fetched_until__gt=Now())
    return [*found.select_related("subscription__event_type").order_by("fetched_until", "pk")]


class FetchedDelivery(NamedTuple):
    """A fetched delivery that may be returned, as a form shows and sends it: only its newest fetch counts."""

    pk: str
    delivery: Delivery
    end: DeliveryStatus | None
    """How its delivery ends when it is returned; None: it is available again."""

    def __str__(self) -> str:
        """Return it in words."""
        times = "once" if self.delivery.fetches == 1 else f"{self.delivery.fetches} times"
        text = f"{self.delivery}, fetched {times}"
        return f"{text}: ends as {self.end}, because {END_REASONS[self.end]}" if self.end else text


def _count(title: str, read: Callable[[MailboxStatus], int]) -> Callable[[Any, Any], object]:
    return column(title, lambda box: _counted(read(STATUS.of(box))))


@admin.register(Mailbox)
class MailboxAdmin(ReadOnlyAdmin[Mailbox]):
    """Messages that subscribers fetch themselves."""

    when_empty = "No subscriber has a mailbox yet. Create a subscription with the delivery mode PULL."
    list_display = ("name", "status_label", *COUNTS, "is_ordered")
    ordering = ("name",)
    list_per_page = 20
    """Each is counted in the queue, up to thousands."""
    search_fields = ("name",)
    search_help_text = "A subscriber's name"
    fields = (
        *("subscriber_link", "status_label", *COUNTS, "is_ordered", "ack_seconds", "max_redeliveries", "days"),
        *("subscription_list", "delivery_list"),
    )
    prefetched = (STATUS,)
    has_empty_permission = permission("delivery.change_mailbox")
    actions_detail: ClassVar[tuple[str, ...]] = ("give_back", "purge")

    subscriber_link = column("subscriber", lambda box: link_to("subscriptions_subscriber", box.pk, box))
    status_label = state_column("status", lambda box: Status(box.status), ACTIVATION_COLOURS)
    available = _count("available", lambda status: status.available)
    oldest = column("oldest", lambda box: relative(STATUS.of(box).oldest_published_at))
    in_flight = _count("in flight", lambda status: status.in_flight)
    waiting = _count("waiting", lambda status: status.waiting)
    redelivered = _count("redelivered", lambda status: status.redelivered)
    expired = _count("expired", lambda status: status.expired)
    is_ordered = column("ordered", lambda box: yes_or_no(box.mailbox_ordered))
    days = column("days until unread messages expire", lambda box: box.mailbox_days or settings.MAILBOX_DAYS)
    subscription_list = column(
        "subscriptions",
        lambda box: link_to_list(
            "subscriptions_subscription",
            f"{(status := STATUS.of(box)).subscriptions} PULL, {status.fetchable_subscriptions} of them fetchable now",
            subscriber__id__exact=box.pk,
            delivery_mode__exact=DeliveryMode.PULL,
        ),
    )
    delivery_list = column(
        "deliveries",
        lambda box: link_to_list(
            "delivery_delivery", "all deliveries of the subscriber", line__id__exact=box.lines.get(lane=Lane.MAIN).pk
        ),
    )
    returnable = column("messages in flight", lambda box: _in_flight_table(box, has_links=True))
    viewable = column("messages in flight", lambda box: _in_flight_table(box, has_links=False))

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Mailbox]":
        """Return the subscribers with a mailbox."""
        return with_mailbox(super().get_queryset(request))

    def get_fields(self, request: HttpRequest, obj: Mailbox | None = None) -> tuple[str, ...]:  # noqa: ARG002 - Django's
        """Return the fields; links to return what is in flight are shown to users who may follow them."""
        return (*self.fields, "returnable" if self.has_empty_permission(request) else "viewable")

    def search(self, rows: "QuerySet[Mailbox]", term: str) -> "QuerySet[Mailbox]":
        """Return the mailboxes of subscribers whose names contain the term."""
        return rows.filter(name__icontains=term)

    @action(
        description="Return what is in flight",
        permissions=["empty"],
        icon="undo",
        variant=ActionVariant.WARNING,
    )
    def give_back(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then make available at once what is in flight, or the one delivery that is asked for."""
        box = get_object_or_404(self.get_queryset(request), pk=object_id)
        if request.method == "POST":
            return self._done(request, box, *_given_back(box, request.POST.getlist(ACTION_CHECKBOX_NAME)))
        only = id_in(request.GET, "delivery")
        chosen = [
            FetchedDelivery(
                f"{one.pk}.{one.fetch_id}",
                one,
                status_if_returned(
                    cancel_requested=one.cancel_requested, fetches=one.fetches, max_redeliveries=box.max_redeliveries
                ),
            )
            for one in fetched(box, only)
        ]
        if not chosen:
            nothing = f"Delivery {only} is not in flight." if only is not None else "Nothing is in flight."
            return self._done(request, box, nothing, messages.WARNING)
        ending = sum(one.end is not None for one in chosen)
        question = _return_question(box, len(chosen), ending, is_single=only is not None)
        return self.confirmation(request, question, chosen, submit="Return messages", back=self.change_url(box.pk))

    @action(
        description="Purge",
        permissions=["empty"],
        icon="delete_sweep",
        variant=ActionVariant.DANGER,
    )
    def purge(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then end as CANCELLED all that is in it."""
        box = get_object_or_404(self.get_queryset(request), pk=object_id)
        if request.method == "POST":
            done = purge(box.pk, seconds=CANCEL_SECONDS)
            held = f"; {done.in_flight} in flight will be cancelled unless acknowledged" if done.in_flight else ""
            more = "" if done.is_complete else "; there is more, so purge it again"
            return self._done(request, box, f"Cancelled {plural(done.ended)}{held}{more}.", messages.SUCCESS)
        status, back = STATUS.of(box), self.change_url(box.pk)
        question = (
            f"Cancel all messages in this mailbox: {_counted(status.available)} available,"
            f" {_counted(status.waiting)} waiting, and {_in_flight(box)} unless acknowledged?"
            " They are never fetched again; this cannot be undone."
        )
        button: dict[str, Any] = {"submit": "Cancel messages", "variant": ActionVariant.DANGER}
        return self.confirmation(request, question, [box], back=back, **button)

    def _done(self, request: HttpRequest, box: Mailbox, note: str, level: int) -> HttpResponse:
        if level == messages.SUCCESS:
            self.log_change(request, box, note)
        self.message_user(request, note, level)
        return HttpResponseRedirect(self.change_url(box.pk))


def _in_flight_table(box: Mailbox, *, has_links: bool) -> SafeString | str:
    """Return what clients hold, next to time out first, each with a link to return it if wanted; a dash for nothing."""
    back = reverse("admin:delivery_mailbox_give_back", args=[box.pk])
    rows = [
        [
            link_to("delivery_delivery", one.pk),
            events_of(one),
            one.fetches - 1,
            relative(one.fetched_until),
            link(f"{back}?delivery={one.pk}", "Return") if has_links else "",
        ]
        for one in fetched(box)
    ]
    return table_or_dash(["delivery", "event type", "redeliveries", "in flight until", ""], rows)


def _return_question(box: Mailbox, number: int, ending: int, *, is_single: bool) -> str:
    """Return what is asked before `number` fetched messages are returned, of which `ending` end by it."""
    which = f"the {number} next to time out, of {_in_flight(box)}"
    if STATUS.of(box).in_flight <= number:
        which = f"all {number} in flight"
    if is_single:
        which = "this message"
    then = (
        f"{number - ending} will be available again, {ending} will end." if ending else "It can be fetched again then."
    )
    return f"Return {which}? A client may be working on it, and its receipt will no longer be valid. {then}"


def _given_back(box: Mailbox, chosen: list[str]) -> tuple[str, int]:
    """Return what was shown and is still in flight to the mailbox; return the outcome in words, and its level."""
    named = filter(None, map(CHOSEN.fullmatch, chosen[:MAX_RECEIPTS]))
    receipts = [Receipt(*map(int, one.groups())) for one in named]
    done = Counter(one.code for one in nack(box.pk, receipts).values() if one.status == HTTPStatus.OK)
    note = f"Returned {done[ReceiptCode.RETURNED]} of {len(receipts)}"
    if failed := done[ReceiptCode.FAILED]:
        note += f"; {failed} FAILED, redeliveries used up"
    if cancelled := done[ReceiptCode.CANCELLED]:
        note += f"; {cancelled} CANCELLED, as requested"
    return f"{note}.", messages.SUCCESS if done else messages.WARNING
