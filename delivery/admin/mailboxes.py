"""Mailboxes in the admin: what waits, what clients hold, and how to return or purge it."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, Final, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import STATUS_COLOURS, ActionVariant, action, display
from delivery.admin.line_work import main_line_of
from delivery.admin.mailbox_work import (
    handed_out,
    in_flight_table,
    keep_standings,
    link_to_return,
    so_many,
    standing_of,
    with_mailbox,
)
from delivery.admin.read_only import ReadOnlyAdmin, instant, is_id, link_to, link_to_list, yes_or_no
from delivery.mailbox.acknowledge import MAX_RECEIPTS, give_back
from delivery.mailbox.available import end_in_vain
from delivery.mailbox.mailbox import Receipt
from delivery.mailbox.results import ReceiptCode
from delivery.mailbox.unread import PURGE_SECONDS, purge
from delivery.models import Delivery, Mailbox
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode

CHOSEN: Final = re.compile(r"(\d{1,18})\.(\d{1,9})", re.ASCII)
"""A delivery, and the number of the hand-out."""
WHY: Final = {DeliveryStatus.CANCELLED: "as was asked", DeliveryStatus.FAILED: "its redeliveries are used up"}

RETURNABLE: Final = "returnable"
LOOKED_AT: Final = "looked_at"
COUNTS: Final = ("available", "oldest", "in_flight", "waiting", "redelivered", "expired")


class HandOut(NamedTuple):
    """A hand-out that may be returned, as a form shows and sends it: only the newest of a delivery counts."""

    pk: str
    text: str
    ends: str
    """As what its delivery ends if it is returned; empty: it is available again."""

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.text}: {self.ends}" if self.ends else self.text


def wanted_of(box: Mailbox, asked: str) -> list[HandOut]:
    """Return what may be returned: the delivery that is asked for, or what is next to time out, as much as is shown."""
    return [_hand_out(box, one) for one in handed_out(box, only=int(asked) if is_id(asked) else None)]


def none_of(asked: str) -> str:
    """Return what is said where nothing of it is in flight."""
    return f"Delivery {asked} is not in flight." if is_id(asked) else "Nothing of it is in flight."


def question_of(box: Mailbox, chosen: Sequence[HandOut], asked: str) -> str:
    """Return what is asked before these are returned: how many of how many, and how many of them end by it."""
    ending = sum(bool(one.ends) for one in chosen)
    if is_id(asked):
        then = "It ends by that." if ending else "Whoever fetches next gets it."
        return f"Return this? Its client may be at work on it, and its receipt counts no more. {then}"
    then = (
        f"{len(chosen) - ending} will be available again, {ending} will end."
        if ending
        else "Whoever fetches next gets them."
    )
    which = _so_many_of(box, len(chosen))
    return f"Return {which}? Clients may be at work on them, and their receipts count no more. {then}"


def _so_many_of(box: Mailbox, shown: int) -> str:
    out = standing_of(box).in_flight
    return f"all {shown} in flight" if out <= shown else f"the {shown} next to time out, of {so_many(out)} in flight"


def given_back(box: Mailbox, chosen: Sequence[str]) -> tuple[str, int]:
    """Return what was shown and is in flight still; say what became of it, and at which level."""
    named = filter(None, map(CHOSEN.fullmatch, chosen[:MAX_RECEIPTS]))
    receipts = [Receipt(*map(int, one.groups())) for one in named]
    done = Counter(one.code for one in give_back(box.pk, receipts).values() if one.status == HTTPStatus.OK)
    failed, cancelled = done[ReceiptCode.FAILED], done[ReceiptCode.CANCELLED]
    note = f"Returned {done[ReceiptCode.RETURNED]} of {len(receipts)}"
    note += f"; {failed} {'has' if failed == 1 else 'have'} FAILED, redeliveries used up" if failed else ""
    note += f"; {cancelled} {'is' if cancelled == 1 else 'are'} CANCELLED, as was asked" if cancelled else ""
    return f"{note}.", messages.SUCCESS if done else messages.WARNING


def _hand_out(box: Mailbox, one: Delivery) -> HandOut:
    times = "once" if one.fetches == 1 else f"{one.fetches} times"
    end = end_in_vain(cancel_requested=one.cancel_requested, fetches=one.fetches, limit=box.max_redeliveries)
    ends = f"ends as {end}, {WHY[end]}" if end else ""
    return HandOut(f"{one.pk}.{one.fetches}", f"delivery {one.pk}, handed out {times}", ends)


class EmptyingAdmin(ReadOnlyAdmin[Mailbox]):
    """Mailboxes, from which clients' hand-outs can be taken back and which can be emptied."""

    actions_detail: ClassVar[tuple[str, ...]] = ("give_back", "purge")

    def has_empty_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may change mailboxes, which is only ever to take things out of them."""
        return request.user.has_perm("delivery.change_mailbox")

    @action(description="Return what is in flight", permissions=["empty"], icon="undo", variant=ActionVariant.WARNING)
    def give_back(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then make available at once what is in flight, or the one delivery that is asked for."""
        box = get_object_or_404(self.get_queryset(request), pk=object_id)
        if request.method == "POST":
            return self._done(request, box, *given_back(box, request.POST.getlist(ACTION_CHECKBOX_NAME)))
        asked = request.GET.get("delivery", "")
        chosen = wanted_of(box, asked)
        if not chosen:
            return self._done(request, box, none_of(asked), messages.WARNING)
        return self._asked(request, box, question_of(box, chosen, asked), chosen)

    @action(description="Purge", permissions=["empty"], icon="delete_sweep", variant=ActionVariant.DANGER)
    def purge(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then end as CANCELLED all that is in it."""
        box = get_object_or_404(self.get_queryset(request), pk=object_id)
        if request.method == "POST":
            return self._done(request, box, *_purged(box))
        return self._asked(request, box, _question(box), [box])

    def _asked(self, request: HttpRequest, box: Mailbox, question: str, chosen: list[Any]) -> HttpResponse:
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": question,
            "chosen": chosen,
            "checkbox": ACTION_CHECKBOX_NAME,
            "back": _page_of(box),
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/confirm.html", context)

    def _done(self, request: HttpRequest, box: Mailbox, note: str, level: int) -> HttpResponse:
        if level == messages.SUCCESS:
            self.log_change(request, box, note)
        self.message_user(request, note, level)
        return HttpResponseRedirect(_page_of(box))


def _page_of(box: Mailbox) -> str:
    return reverse("admin:delivery_mailbox_change", args=[box.pk])


def _question(box: Mailbox) -> str:
    standing = standing_of(box)
    there = f"{so_many(standing.available)} available, {so_many(standing.waiting)} waiting"
    out = f"{so_many(standing.in_flight)} in flight, unless acknowledged"
    return (
        f"Cancel all that is in this mailbox: {there}, and {out}?"
        " None of it is handed out again; this cannot be undone."
    )


def _purged(box: Mailbox) -> tuple[str, int]:
    done = purge(box.pk, seconds=PURGE_SECONDS)
    ended = f"Cancelled {done.cancelled} {'delivery' if done.cancelled == 1 else 'deliveries'}"
    out = f"; {done.in_flight} in flight end so unless they are acknowledged" if done.in_flight else ""
    more = "" if done.is_complete else "; there is more: purge it again"
    return f"{ended}{out}{more}.", messages.SUCCESS


@admin.register(Mailbox)
class MailboxAdmin(EmptyingAdmin):
    """What subscribers fetch themselves."""

    list_display = ("name", "status_label", *COUNTS, "is_ordered")
    ordering = ("name",)
    list_per_page = 20
    """Each is counted in the queue, up to thousands."""
    search_fields = ("name",)
    search_help_text = "A subscriber's name"
    fields = (
        *("subscriber_link", "status_label", *COUNTS, "is_ordered", "ack_seconds", "max_redeliveries"),
        *("subscription_list", "delivery_list"),
    )
    readonly_fields = (*fields, RETURNABLE, LOOKED_AT)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Mailbox]:
        """Return those that have something to fetch from."""
        return with_mailbox(super().get_queryset(request))

    def get_fields(self, request: HttpRequest, obj: Mailbox | None = None) -> tuple[str, ...]:  # noqa: ARG002 - Django's
        """Return what its page says; only who may return what is in flight is shown how."""
        return (*self.fields, RETURNABLE if self.has_empty_permission(request) else LOOKED_AT)

    def get_search_results(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        queryset: QuerySet[Mailbox],
        search_term: str,
    ) -> tuple[QuerySet[Mailbox], bool]:
        """Return the mailboxes of subscribers so called."""
        term = search_term.strip()
        return (queryset.filter(name__icontains=term) if term else queryset), False

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of mailboxes, with how they all stand read at once."""
        page = super().get_changelist_instance(request)
        keep_standings(page.result_list)
        return page

    @display(description="subscriber")
    def subscriber_link(self, box: Mailbox) -> SafeString | str:
        """Return a link to whose it is, where it is set up."""
        return link_to("subscriptions_subscriber", box.pk, box)

    @display(description="status", label=STATUS_COLOURS)
    def status_label(self, box: Mailbox) -> str:
        """Return whether its subscriber gets anything."""
        return box.status

    @display(description="available")
    def available(self, box: Mailbox) -> str:
        """Return how many are there for the next who asks, counted no further than needed."""
        return so_many(standing_of(box).available)

    @display(description="oldest")
    def oldest(self, box: Mailbox) -> str:
        """Return when the oldest of these was published."""
        return instant(standing_of(box).oldest_published_at)

    @display(description="in flight")
    def in_flight(self, box: Mailbox) -> str:
        """Return how many clients have and have not answered."""
        return so_many(standing_of(box).in_flight)

    @display(description="waiting")
    def waiting(self, box: Mailbox) -> str:
        """Return how many are HELD, delayed, or of subscriptions that are paused or INACTIVE."""
        return so_many(standing_of(box).waiting)

    @display(description="redelivered")
    def redelivered(self, box: Mailbox) -> str:
        """Return how many of the unfinished were handed out in vain."""
        return so_many(standing_of(box).redelivered)

    @display(description="expired")
    def expired(self, box: Mailbox) -> str:
        """Return how many nobody fetched in time, of what is kept."""
        return so_many(standing_of(box).expired)

    @display(description="ordered")
    def is_ordered(self, box: Mailbox) -> str:
        """Return whether one message is handed out at a time."""
        return yes_or_no(box.mailbox_ordered)

    @display(description="subscriptions")
    def subscription_list(self, box: Mailbox) -> SafeString:
        """Return a link to those that are fetched; paused or INACTIVE ones are so, but not now."""
        pulled = {"subscriber__id__exact": box.pk, "delivery_mode__exact": DeliveryMode.PULL}
        standing = standing_of(box)
        text = f"{standing.subscriptions} PULL, {standing.fetchable_subscriptions} of them can be fetched from now"
        return link_to_list("subscriptions_subscription", text, **pulled)

    @display(description="deliveries")
    def delivery_list(self, box: Mailbox) -> SafeString:
        """Return a link to all deliveries of its subscriber."""
        return link_to_list("delivery_delivery", "its subscriber's deliveries", line__id__exact=main_line_of(box))

    @display(description="fetched, not answered")
    def returnable(self, box: Mailbox) -> SafeString | str:
        """Return what clients have, next to time out first, each with a link to return it."""
        return in_flight_table(box, partial(link_to_return, box))

    @display(description="fetched, not answered")
    def looked_at(self, box: Mailbox) -> SafeString | str:
        """Return the same for whoever may only look."""
        return in_flight_table(box, lambda _: "")
