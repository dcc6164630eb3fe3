"""What people do about mailboxes in the admin: return what a client does not answer, and empty one."""

from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse

from broker_project.core.admin.read_only import ReadOnlyAdmin
from broker_project.core.admin.theme import ActionVariant, action
from delivery.admin.mailbox_work import so_many, standing_of
from delivery.admin.taking_back import given_back, none_of, question_of, wanted_of
from delivery.mailbox.purging import PURGE_SECONDS, purge
from delivery.models import Mailbox


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
