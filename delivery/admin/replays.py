"""Replays and backfills in the admin."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from delivery.admin.read_only import ReadOnlyAdmin
from delivery.admin.replay_form import ReplayForm
from delivery.again import replaying
from delivery.again.replaying import ReplayFinished
from delivery.models import Replay
from subscriptions.admin.theme import ActionVariant, action, after_dialog, dialog, display, page_of

STATE_COLOURS = {"RUNNING": "info", "DONE": "success", "CANCELLED": "warning", "FAILED": "danger"}

CANCELLING = (
    "What a replay has made by then is sent all the same. After a backfill its subscription is INACTIVE again, and all"
    " that it has is cancelled."
)


@admin.register(Replay)
class ReplayAdmin(ReadOnlyAdmin[Replay]):
    """How far each is."""

    list_display = ("id", "kind", "state_label", "subscription", "progress", "skipped", "created_by", "created_at")
    list_filter = ("kind", "state")
    list_select_related = ("subscription__subscriber", "subscription__event_type")
    exclude = ("ids", "last_given", "newest_before", "newest_filed")
    actions_list: ClassVar[tuple[str, ...]] = ("new_replay",)
    actions_detail: ClassVar[tuple[str, ...]] = ("cancel",)

    def has_replay_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer cancelling only of what is under way."""
        offered: list[Any] = super().get_actions_detail(request, object_id)
        return offered if Replay.objects.filter(pk=object_id, finished_at=None).exists() else []

    @display(description="state", ordering="state", label=STATE_COLOURS)
    def state_label(self, replay: Replay) -> str:
        """Return the state, coloured."""
        return replay.state

    @display(description="made")
    def progress(self, replay: Replay) -> str:
        """Return how many of how many it has made."""
        return f"{replay.filed} of {replay.total}"

    @action(description="New replay", permissions=["replay"], icon="replay", url_path="new")
    def new_replay(self, request: HttpRequest) -> HttpResponse:
        """Ask which deliveries, count them, and make them again once that was seen."""
        form = ReplayForm(request.POST or None)
        counted = None
        if form.is_valid():
            if "confirmed" in request.POST:
                return self._begin(request, form.cleaned_data)
            counted = replaying.count(form.cleaned_data["selection"])
        context = {**self.admin_site.each_context(request), **page_of(self, "New replay")}
        return TemplateResponse(request, "delivery/replay_form.html", {**context, "form": form, "counted": counted})

    @action(
        description="Cancel",
        permissions=["replay"],
        icon="cancel",
        variant=ActionVariant.DANGER,
        dialog=dialog("Cancel it?", CANCELLING, "Cancel it"),
    )
    def cancel(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """End it."""
        try:
            replaying.cancel(int(object_id), reason=f"cancelled by {request.user}")
            self.log_change(request, Replay.objects.get(pk=object_id), "Cancelled.")
            self.message_user(request, "Cancelled.", messages.SUCCESS)
        except ReplayFinished as finished:
            self.message_user(request, str(finished), messages.WARNING)
        return after_dialog(request, reverse("admin:delivery_replay_change", args=[object_id]))

    def _begin(self, request: HttpRequest, asked: dict[str, Any]) -> HttpResponse:
        replay = replaying.begin(
            asked["selection"],
            pace=asked["pace"],
            subscription_id=asked["subscription"],
            created_by=str(request.user),
        )
        self.log_addition(request, replay, f"Of {replay.total} deliveries.")
        self.message_user(request, f"Begun, of {replay.total}.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:delivery_replay_change", args=[replay.pk]))
