"""Backfilling a new subscription in the admin (behaviour 5.8)."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse

from broker_project.core.admin.theme import action
from delivery.admin.pausing import PausingAdmin
from delivery.replay import backfill_job
from delivery.replay.eligibility import NotBegun
from subscriptions.models import EventKind, Status, Subscription

QUESTION = "Send it, in order, all messages that are kept of before, and then what is published from now on?"


class BackfillingAdmin(PausingAdmin):
    """Subscriptions, of which those that are new can get what was published before them."""

    actions_detail = (*PausingAdmin.actions_detail, "backfill")

    def has_backfill_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send what was published before, and may let the subscription begin."""
        return request.user.has_perms(["delivery.replay", "subscriptions.change_subscription"])

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer it only of what is inactive, and may be new."""
        offered = super().get_actions_detail(request, object_id)
        wanted = Subscription.objects.filter(pk=object_id, kind=EventKind.TOPIC, status=Status.INACTIVE)
        return offered if wanted.exists() else [one for one in offered if one.path != "backfill"]

    @action(description="Backfill", permissions=["backfill"], icon="history")
    def backfill(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Count, ask, then let it get what is kept of before."""
        subscription = get_object_or_404(self.only(object_id).select_related("event_type", "subscriber"))
        try:
            if request.method == "POST":
                return self._begin(request, subscription)
            counted = backfill_job.count(subscription, None)
        except NotBegun as refused:
            self.message_user(request, str(refused), messages.WARNING)
            return HttpResponseRedirect(self.page_of(object_id))
        found = f"{counted.messages}{'' if counted.complete else ' or more'}"
        context = {
            **self.admin_site.each_context(request),
            "title": f"{QUESTION} There are {found} to look at, before any filter.",
            "chosen": [subscription],
            "back": self.page_of(object_id),
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/confirm.html", context)

    def _begin(self, request: HttpRequest, subscription: Subscription) -> HttpResponse:
        begun = backfill_job.begin(subscription.pk, since=None, created_by=str(request.user))
        self.log_change(request, subscription, "Backfilled.")
        return HttpResponseRedirect(reverse("admin:delivery_replay_change", args=[begun.pk]))
