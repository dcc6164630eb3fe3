"""Replays and backfills in the admin."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from broker_project.core.admin.read_only import ReadOnlyAdmin, is_id
from broker_project.core.admin.theme import ActionVariant, action, after_dialog, dialog, display, page_of, progress
from delivery.admin.replay_form import Asked, ReplayForm
from delivery.admin.selections import selection_table
from delivery.models import Replay, ReplayKind, ReplayState
from delivery.replay import replay_job
from delivery.replay.replay_job import ReplayFinished

STATE_COLOURS = {
    **dict.fromkeys(map(str, ReplayState), "info"),
    **dict.fromkeys(("CANCELLING", "CANCELLED"), "warning"),
    **dict.fromkeys(("FAILING", "FAILED"), "danger"),
    "DONE": "success",
}

ENDING = (ReplayState.CANCELLING, ReplayState.FAILING)
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
    fields = (
        *("id", "kind", "state_label", "progress", "skipped", "reason", "selected", "pace"),
        *("created_by", "created_at", "updated_at", "finished_at"),
    )
    readonly_fields = fields
    actions_list: ClassVar[tuple[str, ...]] = ("new_replay",)
    actions_detail: ClassVar[tuple[str, ...]] = ("cancel",)

    def has_replay_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer cancelling only of what is under way."""
        offered: list[Any] = super().get_actions_detail(request, object_id)
        under_way = Replay.objects.filter(pk=object_id, finished_at=None).exclude(state__in=ENDING)
        return offered if under_way.exists() else []

    @display(description="state", ordering="state", label=STATE_COLOURS)
    def state_label(self, replay: Replay) -> str:
        """Return the state, coloured."""
        return replay.state

    @display(description="made")
    def progress(self, replay: Replay) -> SafeString:
        """Return how many of how many it has made, and how far it is with that."""
        return progress(_percent(replay), _made(replay))

    @display(description="of")
    def selected(self, replay: Replay) -> SafeString:
        """Return what was asked for."""
        return selection_table(replay)

    @action(description="New replay", permissions=["replay"], icon="replay", url_path="new")
    def new_replay(self, request: HttpRequest) -> HttpResponse:
        """Ask which deliveries, count them, and make them again once that was seen."""
        if "counted" in request.POST:
            return self._begin(request, Asked.unsealed(request.POST["counted"]))
        form = ReplayForm(request.POST or None, initial=_initial(request.GET))
        context = {**self.admin_site.each_context(request), **page_of(self, "New replay"), "form": form}
        if form.is_valid():
            asked = form.asked()
            context |= {"counted": replay_job.count(asked.selection), "seal": asked.sealed()}
        return TemplateResponse(request, "delivery/replay_form.html", context)

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
            replay_job.cancel(int(object_id), reason="cancelled in the admin")
            self.log_change(request, Replay.objects.get(pk=object_id), "Cancelled.")
            self.message_user(request, "Cancelled.", messages.SUCCESS)
        except ReplayFinished as finished:
            self.message_user(request, str(finished), messages.WARNING)
        return after_dialog(request, reverse("admin:delivery_replay_change", args=[object_id]))

    def _begin(self, request: HttpRequest, asked: Asked | None) -> HttpResponse:
        if asked is None:
            self.message_user(request, "That was counted too long ago: count again.", messages.WARNING)
            return HttpResponseRedirect(reverse("admin:delivery_replay_new_replay"))
        replay = replay_job.begin(
            asked.selection, pace=asked.pace, subscription_id=asked.subscription_id, created_by=str(request.user)
        )
        self.log_addition(request, replay, "Begun.")
        self.message_user(request, "Begun.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:delivery_replay_change", args=[replay.pk]))


def _made(replay: Replay) -> str:
    if replay.state == ReplayState.COUNTING:
        return f"counting: {replay.total} so far"
    looked_at = ", before any filter" if replay.kind == ReplayKind.BACKFILL else ""
    return f"{replay.filed} of {replay.total}{looked_at}"


def _percent(replay: Replay) -> int:
    if replay.state == ReplayState.DONE:
        return 100
    if replay.state == ReplayState.COUNTING:
        return 0
    return min(99, 100 * (replay.filed + replay.skipped) // max(1, replay.total))


def _initial(address: QueryDict) -> dict[str, Any]:
    """Return what the page that led here knows of what is wanted."""
    named = {name: address[name] for name in ("subscription", "subscriber") if is_id(address.get(name, ""))}
    statuses = address.getlist("statuses")
    return named | ({"statuses": statuses} if statuses else {})
