"""Replays and backfills in the admin."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from django import forms
from django.contrib import admin, messages
from django.core import signing
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin.row_ids import AutocompleteSelect
from broker_project.core.admin.theme import (
    ActionVariant,
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextInputWidget,
    action,
    after_dialog,
    dialog,
    display,
    page_of,
    progress,
    table,
)
from delivery.admin.read_only import ReadOnlyAdmin, instant, is_id, link_to, subscription_link
from delivery.models import Replay, ReplayKind, ReplayState
from delivery.replay import replay_job
from delivery.replay.eligibility import REPLAYABLE, RESUBMITTABLE
from delivery.replay.replay_job import ReplayFinished
from delivery.replay.selection import MAX_PACE, NothingToReplay, Selection
from subscriptions.models import EventType, Subscriber, Subscription

SEALED_SECONDS: Final = 3600
"""What was counted longer ago has to be counted again."""
SALT: Final = "delivery.admin.replays"

MAX_SHOWN: Final = 20
MOMENTS: Final = ("from", "to", "since")

ENDING = (ReplayState.CANCELLING, ReplayState.FAILING)
CANCELLING = (
    "What a replay has made by then is sent all the same. After a backfill its subscription is INACTIVE again, and all"
    " that it has is cancelled."
)


@dataclass(frozen=True, slots=True)
class ReplayQuestion:
    """What somebody wants made again."""

    selection: Selection
    subscription_id: int | None
    """The one that was named, if it was one."""
    pace: int | None

    def sealed(self) -> str:
        """Return it as text that a page carries and nobody changes."""
        return signing.dumps([self.selection.kept(), self.subscription_id, self.pace], salt=SALT)

    @classmethod
    def unsealed(cls, text: str) -> Self | None:
        """Return what was sealed; None for what was not, or too long ago."""
        try:
            kept, subscription_id, pace = signing.loads(text, salt=SALT, max_age=SEALED_SECONDS)
        except signing.BadSignature:
            return None
        return cls(Selection.of(kept), subscription_id, pace)


def _found_by(model: Any, field: str) -> AutocompleteSelect:
    """Return what finds one of those that `model`'s link refers to by what is typed."""
    return AutocompleteSelect(model._meta.get_field(field), admin.site)  # noqa: SLF001 - documented by Django


class ReplayForm(forms.Form):
    """Which deliveries are to be made again, and how fast."""

    subscription = forms.ModelChoiceField(
        Subscription.objects.all(), required=False, widget=_found_by(Replay, "subscription")
    )
    subscriber = forms.ModelChoiceField(
        Subscriber.objects.all(),
        required=False,
        widget=_found_by(Subscription, "subscriber"),
        help_text="Or a subscriber: all its subscriptions.",
    )
    event_type = forms.ModelChoiceField(
        EventType.objects.all(),
        required=False,
        widget=_found_by(Subscription, "event_type"),
        help_text="If only what was published as that is wanted.",
    )
    statuses = forms.MultipleChoiceField(
        choices=[(status, status) for status in sorted(REPLAYABLE)],
        initial=sorted(RESUBMITTABLE),
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
    )
    begin = forms.DateTimeField(
        required=False,
        label="From",
        widget=UnfoldAdminTextInputWidget,
        help_text="Made then or later (UTC), such as 2026-11-22 14:30.",
    )
    end = forms.DateTimeField(
        required=False, label="To", widget=UnfoldAdminTextInputWidget, help_text="Made before (UTC)."
    )
    pace = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_PACE,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="New deliveries a second at most; empty: as fast as it goes.",
    )

    def clean(self) -> dict[str, Any]:
        """Refuse both or none of a subscription and a subscriber, and a range that ends before it begins."""
        given: dict[str, Any] = self.cleaned_data
        if not self.errors and bool(given["subscription"]) == bool(given["subscriber"]):
            raise forms.ValidationError("Give a subscription or a subscriber.")
        if given.get("begin") and given.get("end") and given["begin"] >= given["end"]:
            self.add_error("end", "This is not after the beginning.")
        return given if self.errors else {**given, "selection": self._selection(given)}

    def asked(self) -> ReplayQuestion:
        """Return what the form says, once it is valid."""
        given = self.cleaned_data
        return ReplayQuestion(given["selection"], given["subscription"] and given["subscription"].pk, given["pace"])

    def _selection(self, given: dict[str, Any]) -> Selection | None:
        one: Subscription | None = given["subscription"]
        try:
            return Selection.among(
                [one] if one else given["subscriber"].subscriptions.all(),
                statuses=given["statuses"],
                event_type_id=given["event_type"] and given["event_type"].pk,
                begin=given["begin"],
                end=given["end"],
            )
        except NothingToReplay as nothing:
            self.add_error("subscription" if one else "subscriber", str(nothing))
            return None


def selection_table(replay: Replay) -> SafeString:
    """Return what was asked for; what is gone meanwhile is left out."""
    asked = replay.selection
    found = {
        "subscriber": _link(Subscriber, asked.get("subscriber")),
        "subscriptions": _links(asked.get("subscriptions", [])),
        "event type": _link(EventType, asked.get("event_type")),
        "statuses": ", ".join(asked.get("statuses", [])),
        **{name: instant(parse_datetime(asked[name])) for name in MOMENTS if asked.get(name)},
    }
    return table([], [(name, value) for name, value in found.items() if value])


def _link(model: type[Subscriber] | type[EventType], pk: int | None) -> SafeString | str:
    found = model.objects.filter(pk=pk or 0).first()
    return link_to(f"subscriptions_{model._meta.model_name}", found.pk, found) if found else ""  # noqa: SLF001


def _links(ids: list[int]) -> SafeString:
    found = Subscription.objects.filter(pk__in=ids[:MAX_SHOWN]).select_related("subscriber", "event_type")
    shown: list[object] = [subscription_link(one) for one in found.order_by("pk")]
    if len(ids) > MAX_SHOWN:
        shown.append(f"and {len(ids) - MAX_SHOWN} more")
    return format_html_join("", "<div>{}</div>", zip(shown, strict=True))


STATE_COLOURS = {
    **dict.fromkeys(map(str, ReplayState), "info"),
    **dict.fromkeys(("CANCELLING", "CANCELLED"), "warning"),
    **dict.fromkeys(("FAILING", "FAILED"), "danger"),
    "DONE": "success",
}


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
        in_flight = Replay.objects.filter(pk=object_id, finished_at=None).exclude(state__in=ENDING)
        return offered if in_flight.exists() else []

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
            return self._begin(request, ReplayQuestion.unsealed(request.POST["counted"]))
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

    def _begin(self, request: HttpRequest, asked: ReplayQuestion | None) -> HttpResponse:
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
