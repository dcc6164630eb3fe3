"""Pausing and resuming subscriptions in the admin: one from its page, many from the list."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import ActionVariant, action, after_dialog, dialog, display, label
from delivery.pause import Backfilling, NotPausable, pause_one, resume_one
from subscriptions.admin.subscriptions import PAUSE, SubscriptionAdmin
from subscriptions.models import EventKind, Subscription

PAUSING = "What is published for it is stored and waits; nothing is sent until it is resumed."
RESUMING = "What waits is sent, in order."
WHY = "in the admin"
REFUSALS = (NotPausable, Backfilling)

Turn = Callable[[Subscription], str]
"""Pauses or resumes one; returns what its history is to say."""


class PausingAdmin(SubscriptionAdmin):
    """Subscriptions, which can be paused and resumed here."""

    actions = (*SubscriptionAdmin.actions, "pause_chosen", "resume_chosen")
    actions_detail = (*SubscriptionAdmin.actions_detail, "pause", "resume")

    def has_pause_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may pause and resume, which takes no permission to change anything else."""
        return request.user.has_perm("subscriptions.pause")

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:  # noqa: ARG002 - Django's signature
        """Return the pause beside the status."""
        columns = [*self.list_display]
        columns.insert(columns.index("status_label") + 1, "pause_label")
        return tuple(columns)

    def get_readonly_fields(self, request: HttpRequest, obj: Subscription | None = None) -> tuple[str, ...]:
        """Return the pause too, if it is paused: that stands beside the status."""
        return (*super().get_readonly_fields(request, obj), *(PAUSE if obj and obj.paused_since else ()))

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer only what changes something; SYNC subscriptions never pause."""
        offered = super().get_actions_detail(request, object_id)
        row = self.only(object_id).values_list("kind", "paused_since").first()
        useless = {"pause", "resume"} if row and row[0] == EventKind.SYNC else {"pause" if row and row[1] else "resume"}
        names = {self.get_unfold_action(name).action_name for name in useless}
        return [one for one in offered if one.action_name not in names]

    @display(description="paused")
    def pause_label(self, subscription: Subscription) -> SafeString | str:
        """Return whether it is paused, or tried."""
        if subscription.paused_since is None:
            return "-"
        return label("ON TRIAL" if subscription.half_open else "PAUSED", "warning")

    @action(
        description="Pause",
        permissions=["pause"],
        icon="pause_circle",
        variant=ActionVariant.WARNING,
        dialog=dialog("Pause?", PAUSING, "Pause"),
    )
    def pause(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Pause one."""
        return self._turn(request, object_id, _pause)

    @action(
        description="Resume",
        permissions=["pause"],
        icon="play_circle",
        variant=ActionVariant.SUCCESS,
        dialog=dialog("Resume?", RESUMING, "Resume"),
    )
    def resume(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Resume one."""
        return self._turn(request, object_id, _resume)

    @admin.action(description="Pause", permissions=["pause"])
    def pause_chosen(self, request: HttpRequest, chosen: QuerySet[Subscription]) -> HttpResponse | None:
        """Ask, then pause many."""
        return self.each_confirmed(request, chosen, f"Pause these? {PAUSING}", _if_possible(_pause))

    @admin.action(description="Resume", permissions=["pause"])
    def resume_chosen(self, request: HttpRequest, chosen: QuerySet[Subscription]) -> HttpResponse | None:
        """Ask, then resume many."""
        return self.each_confirmed(request, chosen, f"Resume these? {RESUMING}", _if_possible(_resume))

    def _turn(self, request: HttpRequest, object_id: str, turn: Turn) -> HttpResponse:
        subscription = self.only(object_id).get()
        try:
            note = turn(subscription)
        except REFUSALS as refused:
            self.message_user(request, str(refused), messages.WARNING)
        else:
            self.log_change(request, subscription, note)
            self.message_user(request, note, messages.SUCCESS)
        return after_dialog(request, self.page_of(object_id))


def _pause(subscription: Subscription) -> str:
    pause_one(subscription.pk, reason=WHY)
    return "Is paused now."


def _resume(subscription: Subscription) -> str:
    resume_one(subscription.pk, reason=WHY)
    return "Goes on now."


def _if_possible(turn: Turn) -> Turn:
    """Return the same for many: where one is refused, its history says so."""

    def turned(subscription: Subscription) -> str:
        try:
            return turn(subscription)
        except REFUSALS as refused:
            return f"Not done. {refused}"

    return turned
